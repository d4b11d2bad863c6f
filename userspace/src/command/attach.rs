//! `dial9-bpf attach`: a target, its plan, a tracer and a recording, until one
//! of them ends.
//!
//! In: checked arguments. Out: a sealed segment, an exit code. Never: a reason
//! for the target to wait.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use dial9_bpf_attach::{Abilities, AttachError, Options, Prices, Target, Tracer};
use dial9_bpf_probes::plan::Plan;
use dial9_bpf_trace::{
    clock::Anchor,
    location::Locations,
    segment::{ActiveSegment, Owner},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    args::AttachArgs,
    exit,
    identity,
    output::Output,
    plan_report,
    recording::Recording,
    status::{self, Cost, Snapshot, Summary},
};

/// Time between two passes over the rings. The rings never wake us: a wake-up
/// costs the target microseconds a hit, a timer nothing.
const PASS_INTERVAL: Duration = Duration::from_millis(5);
/// Time between two status lines.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Interrupted,
    DurationOver,
    TargetExited,
    TargetExecuted,
}

impl End {
    const fn reason(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::DurationOver => "the duration is over",
            Self::TargetExited => "the target exited",
            Self::TargetExecuted => "the target executed another program",
        }
    }
}

/// Runs the subcommand; the value is the exit code.
///
/// # Errors
/// Whatever `exit::code_of` has a code for.
pub fn run(args: &AttachArgs) -> anyhow::Result<u8> {
    let pid = args.pid.get();
    if args.dry_run {
        return dry_run(args);
    }
    let mut output = Output::prepare(&args.output, pid)?;
    let abilities = Abilities::probe(None)?;
    let target = Target::open(pid)?;
    let plan = plan_of(&target, args)?;
    let prices = Prices::measure(abilities).ok();
    let mut tracer =
        Tracer::load(&target, Options { ring_bytes: args.ring_bytes, abilities })?;
    let stop = stop_flag()?;
    let mut session = Session::begin(&target, &plan, output.dir(), prices, &tracer)?;
    output.keep();
    announce(&target, &plan, &mut tracer)?;
    let end = session.record(&mut tracer, &stop, args.duration);
    tracer.detach();
    session.finish(&mut tracer, end)
}

fn dry_run(args: &AttachArgs) -> anyhow::Result<u8> {
    let target = Target::open(args.pid.get())?;
    let plan = plan_of(&target, args)?;
    let prices = Abilities::probe(None)
        .and_then(Prices::measure)
        .map_err(|error| error.to_string());
    print!("{}", plan_report::render(&target, &plan, prices));
    Ok(exit::DONE)
}

fn plan_of(target: &Target, args: &AttachArgs) -> anyhow::Result<Plan> {
    let bytes = target.read_executable()?;
    let plan = dial9_bpf_probes::scan(&bytes)
        .with_context(|| format!("nothing to trace in process {}", target.pid()))?;
    Ok(if args.no_single_step { plan.without_single_step() } else { plan })
}

/// Attaches, and says so.
fn announce(target: &Target, plan: &Plan, tracer: &mut Tracer) -> Result<(), AttachError> {
    let began = Instant::now();
    tracer.attach(target, plan)?;
    eprintln!(
        "attached to process {} ({}): {} sites in {} ms",
        target.pid(),
        target.path().display(),
        plan.sites.len(),
        began.elapsed().as_millis()
    );
    for miss in &plan.misses {
        eprintln!("absent: {}: {}", miss.probe.name(), miss.reason);
    }
    Ok(())
}

/// Set by Ctrl-C and by SIGTERM.
fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// One recording of one target.
struct Session<'a> {
    target: &'a Target,
    recording: Recording,
    cost: Option<Cost>,
    began: Instant,
    lost: u64,
}

impl<'a> Session<'a> {
    fn begin(
        target: &'a Target,
        plan: &Plan,
        dir: &Path,
        prices: Option<Prices>,
        tracer: &Tracer,
    ) -> anyhow::Result<Self> {
        let metadata = identity::metadata(target, plan, tracer.cpu_time_behind());
        let segment =
            ActiveSegment::create(dir, Owner::behind_sudo(), &metadata, Anchor::read())?;
        let locations = Locations::new(&identity::task_types(plan), identity::load_bias(target, plan)?);
        Ok(Self {
            target,
            recording: Recording::new(segment, metadata, locations),
            cost: prices.map(|prices| Cost::new(plan, &prices)),
            began: Instant::now(),
            lost: 0,
        })
    }

    /// Passes over the rings until the end.
    ///
    /// # Errors
    /// When the segment cannot be written.
    fn record(
        &mut self,
        tracer: &mut Tracer,
        stop: &AtomicBool,
        duration: Option<Duration>,
    ) -> anyhow::Result<End> {
        let mut before = self.snapshot();
        loop {
            let is_empty = self.recording.pass(tracer)?;
            let elapsed = self.began.elapsed();
            if elapsed >= before.elapsed + STATUS_INTERVAL {
                self.recording.flush()?;
                self.lost = self.recording.read_losses(tracer)?;
                let now = self.snapshot();
                eprintln!("{}", status::line(&before, &now));
                before = now;
                if !self.target.is_same() && !has_exited(self.target, Duration::ZERO) {
                    return Ok(End::TargetExecuted);
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            if duration.is_some_and(|duration| elapsed >= duration) {
                return Ok(End::DurationOver);
            }
            if is_empty && has_exited(self.target, PASS_INTERVAL) {
                return Ok(End::TargetExited);
            }
        }
    }

    /// Seals and sums up; the value is the exit code.
    ///
    /// # Errors
    /// When the recording failed, or its end cannot be written.
    fn finish(mut self, tracer: &mut Tracer, end: anyhow::Result<End>) -> anyhow::Result<u8> {
        let kept = format!("what was recorded is in {}", self.recording.path().display());
        let end = end.with_context(|| kept.clone())?;
        self.recording.finish(tracer).with_context(|| kept.clone())?;
        self.lost = self.recording.read_losses(tracer)?;
        let (stats, undecoded) = (*self.recording.stats(), self.recording.undecoded());
        let mut snapshot = self.snapshot();
        let sealed = self.recording.seal().with_context(|| kept)?;
        snapshot.bytes = sealed.bytes;
        let (file, compressed_bytes, failure) = match sealed.compress() {
            Ok(compressed) => (compressed.path, Some(compressed.bytes), None),
            Err(error) => (error.segment.path.clone(), None, Some(error)),
        };
        let summary = Summary {
            target: self.target,
            end: snapshot,
            reason: end.reason(),
            stats: &stats,
            undecoded,
            file: file.display().to_string(),
            compressed_bytes,
        };
        print!("{}", summary.render());
        if let Some(error) = failure {
            return Err(error.into());
        }
        let is_whole = self.lost == 0 && undecoded == 0;
        Ok(if is_whole { exit::DONE } else { exit::LOST })
    }

    fn snapshot(&self) -> Snapshot {
        let stats = self.recording.stats();
        Snapshot {
            elapsed: self.began.elapsed(),
            events: stats.events.total(),
            lost: self.lost,
            bytes: self.recording.bytes(),
            paid: self.cost.map(|cost| cost.of(&stats.records)),
        }
    }
}

/// Waits for the target's end, at most `timeout`.
fn has_exited(target: &Target, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
    let pidfd = target.pidfd();
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    // A signal ends the wait early: the caller looks at its flag.
    matches!(poll(&mut fds, Some(&timeout)), Ok(1))
}
