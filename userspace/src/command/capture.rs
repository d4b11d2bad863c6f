//! `dial9-bpf capture`: declared probes alone, for a while, into one segment of bounded size.
//!
//! In: probe files, a target, a budget. Out: a segment, and a summary that says what is not
//! in it. Never: a link before or after that time; a hook of a signal that was not asked for;
//! bytes beyond the budget.

use std::{
    fs::{self, File},
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bytesize::ByteSize;
use dial9_bpf_attach::{Abilities, Prices, Target, Tracer, rings::check_budget};
use dial9_bpf_trace::{
    clock::Anchor,
    line::{Config, Finished, Line, Pass},
    location::Locations,
    rotate::Policy,
    segment::{Budget, ClosedSegment, Keep, Owner, Place},
};

use crate::{
    args::CaptureArgs,
    declared::{self, Resolved, Row},
    descriptors, exit, identity,
    objects::Scanner,
    plan_report::thousands,
    recording::{drain, open_gaps, pass_of},
    session::{PASS_INTERVAL, has_exited},
    status::{float, percent_of},
    stderr, stdout, stop,
};

/// What stands for stdout.
const STDOUT: &str = "-";

/// What a segment cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("a segment is not for a terminal: name a file, or a pipe behind")]
pub(crate) struct Unfit;

/// Runs the subcommand; the value is the exit code.
///
/// # Errors
/// Whatever `exit::of_failure` has a code for.
pub(crate) fn run(args: &CaptureArgs) -> anyhow::Result<u8> {
    descriptors::raise_limit();
    let stop = stop::flag()?;
    capture(args, &stop).map_err(descriptors::explain)
}

fn capture(args: &CaptureArgs, stop: &AtomicBool) -> anyhow::Result<u8> {
    let mut probes = declared::read(&args.probes)?;
    if let Some(filter) = &args.filter {
        declared::narrow(&mut probes, filter)?;
    }
    let output = Output::prepare(&args.output)?;
    check_budget(args.ring_bytes)?;
    let abilities = Abilities::probe(None)?;
    let target = Target::open(args.pid.get())?;
    let looking = (args.debug_file.as_deref(), args.strict);
    let mut resolved = declared::resolve(&target, &probes, looking)?;
    let prices = Prices::measure(abilities).ok();
    let mut tracer = Tracer::load_declared(&target, args.ring_bytes, abilities)?;
    let line = line_of(args, (&target, &tracer), &resolved)?;
    let definitions = std::mem::take(&mut resolved.declared);
    let mut running = Running {
        count: u32::try_from(definitions.definitions.len())?,
        rows: &resolved.rows,
        line,
        closed: Vec::new(),
        hits: Vec::new(),
    };
    tracer.declare(definitions)?;
    let tried = Instant::now();
    tracer.attach(&target, &[])?;
    say_attached(&target, &resolved.rows, (&tracer, tried.elapsed()));
    let began = Instant::now();
    let reason = running.record(&mut tracer, &target, (began, args.seconds, stop));
    // Hits end here, whatever went wrong.
    let window = began.elapsed();
    tracer.detach();
    let reason = reason?;
    let (finished, closed, lost) = running.finish(&mut tracer)?;
    output.write(&closed)?;
    let told = Told {
        args,
        target: &target,
        rows: &resolved.rows,
        hits: &finished.1,
        prices: prices.as_ref(),
        window,
        reason,
    };
    let summary = told.render(&finished.0, &closed, lost);
    if is_stdout(&args.output) {
        stderr::say(summary.trim_end());
    } else {
        stdout::print(&summary)?;
    }
    Ok(exit::of_recording(lost, finished.0.undecoded))
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new(STDOUT)
}

fn line_of(
    args: &CaptureArgs,
    (target, tracer): (&Target, &Tracer),
    resolved: &Resolved,
) -> anyhow::Result<Line> {
    let mut scanner = Scanner::new(false, args.debug_file.clone());
    let objects = scanner.all(target, false)?;
    let identity = identity::identity(target, Path::new("/"), (None, None))?;
    let budget = Budget {
        bytes: args.max_bytes,
        keep: args.keep.into(),
    };
    let config = Config {
        place: Place::Bounded(budget),
        owner: Owner::behind_sudo(),
        policy: Policy::without_epochs(u64::MAX),
        metadata: identity::metadata(target, &objects, &identity, (&[], tracer)),
    };
    let mut locations = Locations::of_objects(std::iter::empty());
    locations.declare(resolved.declarations.clone());
    Ok(Line::begin(config, locations, Anchor::read())?)
}

fn say_attached(target: &Target, rows: &[Row], (tracer, took): (&Tracer, Duration)) {
    let sites: usize = rows.iter().map(Row::sites).sum();
    stderr::say(format_args!(
        "attached to process {} ({}): {sites} sites of declared probes in {} ms, nothing else \
         of it",
        target.pid(),
        target.path().display(),
        took.as_millis(),
    ));
    for row in rows {
        stderr::say(row);
    }
    for (name, reason) in tracer.absent() {
        stderr::say(format_args!("missing: {name}: {reason}"));
    }
}

/// A capture between its links.
struct Running<'a> {
    count: u32,
    rows: &'a [Row],
    line: Line,
    closed: Vec<ClosedSegment>,
    hits: Vec<u64>,
}

impl Running<'_> {
    fn pass(&mut self, tracer: &mut Tracer) -> Pass {
        let Self { line, closed, .. } = self;
        let began = Anchor::read();
        line.begin_pass();
        let pass = pass_of(drain(tracer, line));
        line.end_pass(began, pass, &mut |segment| closed.push(segment));
        pass
    }

    /// Records until something ends it: why.
    fn record(
        &mut self,
        tracer: &mut Tracer,
        target: &Target,
        (began, duration, stop): (Instant, Duration, &AtomicBool),
    ) -> anyhow::Result<&'static str> {
        loop {
            let is_more_to_take = self.pass(tracer) == Pass::Part;
            if tracer.has_executed()? {
                return Ok("the target executed another program");
            }
            if self.line.dropped().until_ns.is_some() {
                return Ok("the size is used up");
            }
            if stop.load(Ordering::Relaxed) {
                return Ok("interrupted");
            }
            if began.elapsed() >= duration {
                return Ok("the time is over");
            }
            if let Some((_, error)) = self.line.outage() {
                anyhow::bail!(error.in_full());
            }
            if !is_more_to_take && has_exited(target, PASS_INTERVAL) {
                return Ok("the target exited");
            }
        }
    }

    /// Takes what is left of a detached tracer and ends the segment; also the hits by
    /// definition, and how many were lost.
    fn finish(
        mut self,
        tracer: &mut Tracer,
    ) -> anyhow::Result<((Finished, Vec<u64>), ClosedSegment, u64)> {
        while self.pass(tracer) != Pass::All {}
        let losses = tracer.losses()?;
        for loss in &losses {
            self.line
                .read_loss(loss.cpu, loss.kind, loss.cause, loss.lost);
        }
        let mut lost = losses.iter().map(|loss| loss.lost).sum::<u64>();
        let gaps = open_gaps(tracer, lost)?;
        self.hits = tracer.declared_hits(self.count)?;
        self.line.set_facts(declared::facts(self.rows, &self.hits));
        let Self {
            line,
            mut closed,
            hits,
            ..
        } = self;
        let finished = line.finish(Anchor::read(), &gaps, &mut |segment| closed.push(segment));
        lost += finished.late;
        let closed = closed.pop().context("the segment could not be closed")?;
        Ok(((finished, hits), closed, lost))
    }
}

/// Where the segment goes; a file that is not whole goes away with it.
struct Output {
    path: PathBuf,
    file: Option<(File, PathBuf)>,
}

impl Output {
    fn prepare(path: &Path) -> anyhow::Result<Self> {
        let path = path.to_owned();
        if is_stdout(&path) {
            if io::stdout().is_terminal() {
                return Err(Unfit.into());
            }
            return Ok(Self { path, file: None });
        }
        let name = path.file_name().context("no name of a file")?;
        let name = format!(".{}.{}", name.display(), std::process::id());
        let made = path.with_file_name(name);
        let file = Owner::behind_sudo()
            .create(&made)
            .with_context(|| format!("cannot create {}", made.display()))?;
        let file = Some((file, made));
        Ok(Self { path, file })
    }

    fn write(mut self, segment: &ClosedSegment) -> anyhow::Result<()> {
        let path = self.path.display().to_string();
        let written = match &self.file {
            None => segment.write_to(io::stdout().lock()),
            Some((file, made)) => segment
                .write_to(file)
                .and_then(|()| file.sync_data())
                .and_then(|()| fs::rename(made, &self.path)),
        };
        written.with_context(|| format!("cannot write {path}"))?;
        self.file = None;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((_, made)) = &self.file {
            // What is left says by its name what it was.
            let _ = fs::remove_file(made);
        }
    }
}

/// What the summary says.
struct Told<'a> {
    args: &'a CaptureArgs,
    target: &'a Target,
    rows: &'a [Row],
    hits: &'a [u64],
    prices: Option<&'a Prices>,
    window: Duration,
    reason: &'a str,
}

impl Told<'_> {
    fn render(&self, finished: &Finished, closed: &ClosedSegment, lost: u64) -> String {
        let cut = closed.cut();
        let sealed = closed.sealed();
        let mut lines = vec![format!(
            "captured of process {} ({}) for {:.1} s: {}",
            self.target.pid(),
            self.target.path().display(),
            self.window.as_secs_f64(),
            self.reason
        )];
        for row in self.rows {
            let [first, second] = row.hits(self.hits);
            let ends = if second > 0 && first > 0 {
                format!(", {} ends", thousands(second))
            } else {
                String::new()
            };
            let begins = if first > 0 { first } else { second };
            lines.push(format!(
                "{}: {} hits{ends}, those that do not count included",
                row.probe,
                thousands(begins)
            ));
        }
        let events =
            finished.stats.events.declared - cut.events.min(finished.stats.events.declared);
        lines.push(format!("events: {}", thousands(events)));
        if cut.events > 0 {
            let begin_ns = cut.from_ns.unwrap_or(sealed.started.mono_ns);
            let end_ns = cut.until_ns.unwrap_or(sealed.ended.mono_ns);
            let covered = Duration::from_nanos(end_ns.saturating_sub(begin_ns));
            let (which, what) = match Keep::from(self.args.keep) {
                Keep::Newest => ("last", "older ones went"),
                Keep::Oldest => ("first", "later ones are not in it"),
            };
            lines.push(format!(
                "left out to keep {}: {} events: the {which} {:.3} s are in it, {what}",
                ByteSize(self.args.max_bytes),
                thousands(cut.events),
                covered.as_secs_f64()
            ));
        }
        lines.push(format!("lost: {}", thousands(lost)));
        if finished.stats.unpaired_calls > 0 {
            let calls = thousands(finished.stats.unpaired_calls);
            lines.push(format!("calls without an end: {calls}"));
        }
        if let Some(prices) = self.prices {
            let paid = declared::paid(self.rows, self.hits, prices);
            let percent = percent_of(paid, self.window);
            lines.push(format!(
                "cost: about {percent:.1} % of a core, without what reading the values costs"
            ));
        }
        let each = float(sealed.bytes) / float(events.max(1));
        let output = self.args.output.display();
        lines.push(format!(
            "{output}: {}, {each:.1} bytes an event",
            ByteSize(sealed.bytes)
        ));
        lines.join("\n") + "\n"
    }
}
