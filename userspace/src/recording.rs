//! Everything between the rings and the closed segments, on one thread.
//!
//! In: a tracer's rings, in passes. Out: closed segments, handed over. Never: a
//! wait, a symbol lookup, an allocation in steady state.

use std::{path::PathBuf, sync::atomic::AtomicBool};

use anyhow::anyhow;
use dial9_bpf_attach::{AttachError, Tracer, rings::Drained};
use dial9_bpf_trace::{
    clock::Anchor,
    interpret::OpenGap,
    line::{Finished, Line, Pass},
    location::ObjectTypes,
    loss::Loss,
    metadata::Object,
    segment::ClosedSegment,
    stats::Stats,
};

use crate::{
    dispatch::{Delivery, Dispatch},
    flight::{Dumped, Flight},
    keep,
    kernel_io::{self, KernelIoSampler},
    listeners::Readings,
    mappings::Mappings,
    profile::Profile,
    sampler::Sampler,
};

/// Records that one pass takes at most from all rings: bounds the sorter's
/// memory when the rings were left alone for a while.
const PASS_RECORDS: usize = 32 << 10;
/// Time for which rings that are kept hold what is in the file already, ns.
const SETTLE_NS: u64 = 100_000_000;

/// A recording in progress.
#[derive(Debug)]
pub(crate) struct Recording {
    line: Line,
    dispatch: Dispatch,
    /// Keeps the segments in memory, unless all go into the spool.
    flight: Option<Flight>,
    sampler: Option<Sampler>,
    readings: Readings,
    profile: Option<Profile>,
    /// Where the target has code, where callchains are recorded.
    mappings: Option<Mappings>,
    kernel_io: KernelIoSampler,
    /// Whether it goes on while nothing can be written.
    goes_on: bool,
    /// The first reason for which nothing could be written.
    outage: Option<anyhow::Error>,
    is_outage_told: bool,
    lost: u64,
    /// Stacks that were left out to keep their bound.
    left_out: u64,
    /// Runs of programs that the kernel left out.
    missed_runs: u64,
    settled_ns: u64,
}

/// A recording that is over.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// What it comes to.
    pub(crate) finished: Finished,
    /// What became of its segments.
    pub(crate) delivery: Delivery,
    /// What the flight recorder has done, where there was one.
    pub(crate) dumped: Option<Dumped>,
    /// Hits lost, and records too late.
    pub(crate) lost: u64,
    /// Stacks that were left out to keep their bound.
    pub(crate) left_out: u64,
    /// Runs of programs that the kernel left out.
    pub(crate) missed_runs: u64,
    /// Why something is missing.
    pub(crate) failure: Option<anyhow::Error>,
}

impl Recording {
    /// A recording by a line that has begun.
    pub(crate) fn new(line: Line, dispatch: Dispatch, goes_on: bool) -> Self {
        Self {
            line,
            dispatch,
            flight: None,
            sampler: None,
            readings: Readings::default(),
            profile: None,
            mappings: None,
            kernel_io: KernelIoSampler::default(),
            goes_on,
            outage: None,
            is_outage_told: false,
            lost: 0,
            left_out: 0,
            missed_runs: 0,
            settled_ns: 0,
        }
    }

    /// The same, with a line in memory, of which only what is asked for goes into
    /// the spool.
    pub(crate) fn on_demand(mut line: Line, dispatch: Dispatch, flight: Flight) -> Self {
        flight.prepare(&mut line);
        let mut recording = Self::new(line, dispatch, true);
        recording.flight = Some(flight);
        recording
    }

    /// Samples these runtimes from now on.
    pub(crate) fn sample(&mut self, sampler: Sampler) {
        self.sampler = Some(sampler);
    }

    /// Takes the stacks of the profile from now on.
    pub(crate) fn profile(&mut self, profile: Profile) {
        self.profile = Some(profile);
    }

    /// Counters since the start.
    pub(crate) fn stats(&self) -> &Stats {
        self.line.stats()
    }

    /// Takes note of what turned out to be missing since the segment began; its
    /// end says it.
    pub(crate) fn note_absent(&mut self, absent: &[(&str, String)]) {
        self.line.note_absent(absent);
    }

    /// Tells from now on where the target has code.
    pub(crate) fn note_mappings(&mut self, mappings: Option<Mappings>) {
        self.mappings = mappings;
    }

    fn tell_mappings(&mut self) {
        let news = self.mappings.as_mut().and_then(Mappings::news);
        if let Some(mappings) = news {
            self.line.set_mappings(mappings);
        }
    }

    /// Takes note of how many processes the target has forked; the segment's end
    /// says it.
    pub(crate) fn note_forked(&mut self, forked: u64) {
        self.line.note_forked(forked);
    }

    /// The target has one more object, of the next number: these are all.
    pub(crate) fn add_object(&mut self, types: ObjectTypes, objects: Vec<Object>) {
        self.line.add_object(types);
        self.line.set_objects(objects);
    }

    /// Takes note of what is known of the objects now, by number.
    pub(crate) fn set_objects(&mut self, objects: Vec<Object>) {
        self.line.set_objects(objects);
    }

    /// Bytes of all segments so far, uncompressed; of a flight recorder, of those that
    /// it has in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let whole = match &self.flight {
            Some(flight) => flight.bytes(),
            None => self.dispatch.tally().raw_bytes,
        };
        whole + self.line.bytes()
    }

    /// Hits lost so far, by CPU, kind and cause.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.line.losses()
    }

    /// Hits lost so far, and records too late.
    pub(crate) fn lost(&self) -> u64 {
        self.lost + self.line.late()
    }

    /// Removes the segment of a recording that did not begin.
    ///
    /// # Errors
    /// The system's; the file stays.
    pub(crate) fn discard(self) -> std::io::Result<()> {
        self.line.discard()
    }

    /// Takes what is in the rings and encodes what is old enough that nothing
    /// older can still come. Returns how far it came.
    pub(crate) fn pass(&mut self, tracer: &mut Tracer) -> Pass {
        let Self {
            line,
            dispatch,
            flight,
            sampler,
            readings,
            profile,
            kernel_io,
            ..
        } = self;
        let began = Anchor::read();
        readings.turn(tracer);
        line.begin_pass();
        let drained = drain(tracer, line);
        let stacks = profile.as_mut().map(|profile| profile.pass(tracer, line));
        let pass = pass_of(drained.and(stacks.unwrap_or(Drained::All)));
        line.end_pass(began, pass, &mut |closed| route(flight, dispatch, closed));
        if let Some(sampler) = sampler {
            sampler.turn(tracer, line);
        }
        kernel_io.turn(tracer, line);
        if let Some(flight) = flight {
            flight.turn(line, dispatch, began);
        }
        self.note_outage();
        if tracer.is_kept() {
            self.settle(tracer, began.mono_ns);
        }
        pass
    }

    /// From time to time, and when the rings fill: writes what is encoded and lets
    /// go of it in the rings.
    fn settle(&mut self, tracer: &mut Tracer, now_ns: u64) {
        if now_ns >= self.settled_ns + SETTLE_NS || tracer.rings().are_half_full() {
            self.line.flush();
            keep::settle(&self.line, tracer);
            self.settled_ns = now_ns;
        }
    }

    /// Whether nothing can be written and the recording is to end with that.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.goes_on && self.outage.is_some()
    }

    /// What is due once a second: writes what is encoded, reads the kernel's loss
    /// counters, hears what became of the segments. Returns what there is to say.
    ///
    /// # Errors
    /// [`AttachError`] when the counters cannot be read.
    pub(crate) fn tick(&mut self, tracer: &Tracer) -> Result<Option<String>, AttachError> {
        self.line.flush();
        self.note_outage();
        if let Some(sampler) = &self.sampler {
            sampler.tell(&mut self.line);
        }
        self.tell_mappings();
        let said = self.dispatch.tell(&mut self.line);
        self.read_losses(tracer)?;
        let outage = self.tell_outage();
        let upload = said.map(|text| format!("the upload waits: {text}"));
        let dumps = self.flight.as_mut().and_then(Flight::said);
        let said: Vec<String> = [outage, upload, dumps].into_iter().flatten().collect();
        Ok((!said.is_empty()).then(|| said.join("\n")))
    }

    /// Takes the last records of a detached tracer, and what its threads lost at
    /// the very end; then waits for what becomes of the segments. A hit that has
    /// reserved its place by now submits it. `stop` is set to cut the wait short.
    pub(crate) fn finish(mut self, tracer: &mut Tracer, stop: &AtomicBool) -> Recorded {
        while self.pass(tracer) != Pass::All {}
        let counted = self.read_losses(tracer);
        let (gaps, unread) = match open_gaps(tracer, self.lost) {
            Ok(gaps) => (gaps, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        if let Some(sampler) = &self.sampler {
            sampler.tell(&mut self.line);
        }
        self.tell_mappings();
        kernel_io::sample(tracer, &mut self.line, Anchor::read().mono_ns);
        let _ = self.dispatch.tell(&mut self.line);
        let Self {
            mut line,
            mut dispatch,
            mut flight,
            outage,
            lost,
            left_out,
            missed_runs,
            ..
        } = self;
        let end = Anchor::read();
        line.drain(end, &mut |closed| route(&mut flight, &mut dispatch, closed));
        if let Some(flight) = &mut flight {
            flight.want(&mut line, end.mono_ns);
        }
        let finished = line.finish(end, &gaps, &mut |closed| {
            route(&mut flight, &mut dispatch, closed);
        });
        let (dumped, undumped) = flight
            .map(|flight| flight.finish(finished.is_wanted, &mut dispatch))
            .unzip();
        let delivery = dispatch.finish(stop);
        let unread = counted.err().or(unread).map(anyhow::Error::from);
        let failure = outage
            .or_else(|| undumped.flatten().map(anyhow::Error::msg))
            .or_else(|| finished.unsealed.as_ref().map(unsealed))
            .or_else(|| delivery.failure.clone().map(anyhow::Error::msg))
            .or(unread);
        Recorded {
            lost: lost + finished.late,
            left_out,
            missed_runs,
            finished,
            delivery,
            dumped,
            failure,
        }
    }

    /// Takes note of what the kernel did not run. Where it does not tell, as without
    /// procfs, there is nothing to say.
    fn note_missed_runs(&mut self, tracer: &Tracer) {
        let missed = tracer.missed_runs().unwrap_or_default();
        for (name, count) in &missed {
            let reason = format!("not run {count} times by the kernel, for whatever process");
            self.line.note_absent(&[(&format!("runs.{name}"), reason)]);
        }
        self.missed_runs = missed.iter().map(|(_, count)| count).sum();
    }

    fn read_losses(&mut self, tracer: &Tracer) -> Result<(), AttachError> {
        let losses = tracer.losses()?;
        for loss in &losses {
            self.line
                .read_loss(loss.cpu, loss.kind, loss.cause, loss.lost);
        }
        self.lost = losses.iter().map(|loss| loss.lost).sum();
        self.note_missed_runs(tracer);
        if tracer.takes_off_cpu_stacks() {
            self.left_out = tracer.stacks_left_out()?;
            self.line.note_stacks_left_out(self.left_out);
        }
        Ok(())
    }

    fn tell_outage(&mut self) -> Option<String> {
        let error = self.outage.as_ref().filter(|_| self.goes_on)?;
        let is_told = std::mem::replace(&mut self.is_outage_told, true);
        (!is_told).then(|| format!("nothing can be written for now: {error:#}"))
    }

    fn note_outage(&mut self) {
        if self.outage.is_none()
            && let Some((_, error)) = self.line.outage()
        {
            self.outage = Some(anyhow::Error::msg(error.in_full()));
        }
    }
}

/// Takes what is in the rings, up to a bound.
pub(crate) fn drain(tracer: &mut Tracer, line: &mut Line) -> Drained {
    let rings = tracer.rings();
    let limit_each = PASS_RECORDS.div_ceil(rings.count().max(1));
    rings.drain(limit_each, |cpu, bytes| line.push(cpu, bytes))
}

/// How far a pass came.
pub(crate) fn pass_of(drained: Drained) -> Pass {
    match drained {
        Drained::All => Pass::All,
        Drained::Part => Pass::Part,
        Drained::Blocked => Pass::Blocked,
    }
}

/// What threads lost at the very end, of a detached tracer of which so many hits were lost.
///
/// # Errors
/// [`AttachError`] when the kernel's slots cannot be read.
pub(crate) fn open_gaps(tracer: &Tracer, lost: u64) -> Result<Vec<OpenGap>, AttachError> {
    if lost == 0 {
        return Ok(Vec::new());
    }
    let gaps = tracer.pending_gaps()?;
    let open = gaps.iter().map(|gap| OpenGap {
        tid: gap.tid,
        since_ns: gap.since_ns,
        lost: gap.lost,
    });
    Ok(open.collect())
}

/// Hands a closed segment to who keeps it.
fn route(flight: &mut Option<Flight>, dispatch: &mut Dispatch, closed: ClosedSegment) {
    match flight {
        Some(flight) => flight.take(closed),
        None => dispatch.hand_over(closed),
    }
}

#[expect(clippy::ptr_arg, reason = "the field's type")]
fn unsealed(path: &PathBuf) -> anyhow::Error {
    anyhow!("cannot close {}", path.display())
}
