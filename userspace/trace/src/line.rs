//! The whole way from ring bytes to closed segments, epoch by epoch.
//!
//! In: records, ring by ring, in passes; the kernel's loss counters; the time.
//! Out: closed segments, each with the records of its own time. Never: a look
//! at a clock, a wait for the disk, a record in a segment of another time, an
//! allocation in steady state.
//!
//! - A segment is closed once the watermark is [`GRACE_NS`] past its boundary:
//!   a thread that was preempted between the stamp and the end of its hit makes
//!   a record late. Until then the records after the boundary wait.
//! - A record from before the present segment is dropped, counted as a loss by
//!   the cause "late", and its thread has a gap, so that what pairs across it is
//!   closed. A gap record is never late: its time is that of its first lost hit.
//! - Boundaries pass by time, not by records: an idle target has its segments.
//! - A poll that is open at a boundary starts in one segment and ends in the
//!   next. Nothing is added, so that the sums over the sequence are exact;
//!   dial9's readers discard a start without an end at the end of a file, and
//!   an end without a start at its begin.
//! - Three kinds of event keep a time before their segment: the announcement of a
//!   task (its spawn), the end of a poll that a gap closes (its first lost hit),
//!   where the gap is known only after the boundary, and a panic whose message came
//!   after it.
//! - A worker that is busy throughout a segment has no park in it that would bind
//!   it to its thread. No park is made up: the counts would be false. The
//!   metadata says it, `dial9-bpf.worker_threads`.
//! - While nothing can be written, the events are counted. When it ends, a new
//!   segment begins with an `UnwrittenEvent`, and polls that were open meanwhile
//!   have no end.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;

use dial9_bpf_abi::loss::LossCause;
use dial9_bpf_abi::record::{Gap, RecordHeader, RecordKind};

use crate::clock::Anchor;
use crate::decode::{Record, declared};
use crate::event::{Sample, TargetEnd};
use crate::interpret::{Interpreter, LongPoll, OpenGap};
use crate::location::{Locations, ObjectTypes};
use crate::loss::{Loss, LossLedger};
use crate::mapping::Mapping;
use crate::metadata::{Metadata, Object};
use crate::rotate::Policy;
use crate::segment::{ClosedSegment, Cut, Evicted, Owner, Place, SegmentError};
use crate::sort::Sorter;
use crate::stacks::{Sampled, Waiting};
use crate::stats::{QueueCounts, StackCounts, Stats};
use output::{Ending, Output};
use watermark::Watermark;

pub use watermark::Pass;

mod epochs;
mod output;
mod watermark;

/// How far the watermark passes a boundary before the segment is closed, ns.
pub const GRACE_NS: u64 = 50_000_000;

/// Where and how a line records.
#[derive(Clone, Debug)]
pub struct Config {
    /// The spool, or memory.
    pub place: Place,
    /// Who owns its files.
    pub owner: Owner,
    /// When segments end.
    pub policy: Policy,
    /// The target.
    pub metadata: Metadata,
}

/// A recording in progress.
#[derive(Debug)]
pub struct Line {
    policy: Policy,
    sorter: Sorter,
    /// In order of time.
    samples: VecDeque<Sample>,
    stacks: Waiting,
    interpreter: Interpreter,
    output: Output,
    ledger: LossLedger,
    watermark: Watermark,
    boundary: Boundary,
    /// Everything before is in the output, ns.
    released_ns: u64,
    /// Records that did not decode: since the start, and in this segment.
    undecoded: (u64, u64),
    late: u64,
    /// Stacks that closed segments have told.
    stacks_told: StackCounts,
    /// The same of queues.
    queues_told: QueueCounts,
}

/// The end of the present segment.
#[derive(Clone, Copy, Debug)]
struct Boundary {
    ns: u64,
    /// False when it is early, since the segment is large.
    is_epoch: bool,
}

impl Line {
    /// A line whose first segment starts now, for a target with these types.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when the first segment cannot be created.
    pub fn begin(config: Config, locations: Locations, now: Anchor) -> Result<Self, SegmentError> {
        let Config {
            place,
            owner,
            policy,
            metadata,
        } = config;
        let mut interpreter = Interpreter::new(locations);
        interpreter.tell_waits(metadata.tells_waits);
        Ok(Self {
            policy,
            sorter: Sorter::new(),
            samples: VecDeque::new(),
            stacks: Waiting::default(),
            interpreter,
            output: Output::begin(place, owner, metadata, now)?,
            ledger: LossLedger::new(),
            watermark: Watermark::default(),
            boundary: Boundary {
                ns: policy.boundary_ns(now),
                is_epoch: true,
            },
            released_ns: now.mono_ns,
            undecoded: (0, 0),
            late: 0,
            stacks_told: StackCounts::default(),
            queues_told: QueueCounts::default(),
        })
    }

    /// Begins a pass over the rings.
    pub fn begin_pass(&mut self) {
        self.watermark.begin();
    }

    /// Takes one ring entry. Those of one ring come in the ring's order.
    #[inline]
    pub fn push(&mut self, cpu: u32, bytes: &[u8]) {
        let Ok(mut record) = Record::decode(bytes) else {
            self.undecoded.0 += 1;
            self.undecoded.1 += 1;
            return;
        };
        let header = *record.header();
        if header.kind != RecordKind::GAP {
            self.watermark.note(cpu, header.ts_ns);
            if header.ts_ns < self.output.started().mono_ns {
                return self.drop_late(cpu, header);
            }
        }
        if let Record::Declared(hit, payload) = &mut record {
            let behind = declared::bytes_of(hit, bytes);
            *payload = self.interpreter.keep_payload(header.ts_ns, behind);
        }
        self.sorter.push(record);
    }

    /// These are the addresses of the queues of workers, as far as they are known; records
    /// that come with others have no depth.
    pub fn know_queues(&mut self, queues: impl Iterator<Item = u64>) {
        self.interpreter.know_queues(queues);
    }

    /// Addresses of workers' cores whose queues have not been found, since this was last
    /// asked.
    pub fn take_cores(&mut self, each: impl FnMut(u64)) {
        self.interpreter.take_cores(each);
    }

    /// Takes a runtime's counters. Their time is not before that of others, and later
    /// than the begin of the last pass that has ended.
    pub fn sample(&mut self, sample: Sample) {
        self.samples.push_back(sample);
    }

    /// Takes a thread's stack: the frames, leaf first, those of the kernel before the
    /// others, of which all but the leaf's are return addresses less 1.
    pub fn stack(&mut self, sampled: Sampled, frames: &[u64]) {
        if sampled.ts_ns < self.output.started().mono_ns {
            self.late += 1;
            self.ledger.late(sampled.cpu, sampled.moment.kind());
            return;
        }
        self.stacks.push(sampled, frames);
    }

    /// Takes note of a stack that did not decode.
    pub fn undecoded_stack(&mut self) {
        self.undecoded.0 += 1;
        self.undecoded.1 += 1;
    }

    /// The number of each list of tasks and the address of its scheduler, as far as they
    /// have become known since this was last asked.
    pub fn take_schedulers(&mut self, each: impl FnMut((u64, u64))) {
        self.interpreter.take_schedulers(each);
    }

    /// Ends a pass that began at `began`, and came so far: encodes what is old
    /// enough that nothing older can still come, and hands over each segment
    /// that ends.
    pub fn end_pass(&mut self, began: Anchor, pass: Pass, sealed: &mut impl FnMut(ClosedSegment)) {
        let watermark_ns = self.watermark.end(began.mono_ns, pass);
        self.advance(watermark_ns, began, sealed);
    }

    /// As [`Line::end_pass`], for a producer that knows below which time all
    /// its records have been pushed. `now` is not before that time.
    pub fn advance(
        &mut self,
        watermark_ns: u64,
        now: Anchor,
        sealed: &mut impl FnMut(ClosedSegment),
    ) {
        while watermark_ns >= self.boundary.ns.saturating_add(GRACE_NS) {
            self.rotate(now, sealed);
        }
        self.release(watermark_ns.min(self.boundary.ns));
        if self.output.is_retry_due(now.mono_ns) {
            self.retry(now, sealed);
        }
        self.output.sync_clock(now);
        let has_begun = self.released_ns > self.output.started().mono_ns;
        if self.boundary.is_epoch && has_begun && self.policy.is_large(self.output.bytes()) {
            // Closed after the grace, as any other.
            self.boundary = Boundary {
                ns: self.released_ns,
                is_epoch: false,
            };
        }
    }

    /// Ends the present segment at a time that is not past, unless it ends before,
    /// and tells at the ends of those until then why they are wanted. For segments in
    /// memory: others are wanted anyway.
    pub fn want(&mut self, until_ns: u64, reason: String) {
        self.output.want(until_ns, reason);
        if self.boundary.ns > until_ns {
            self.boundary = Boundary {
                ns: until_ns,
                is_epoch: false,
            };
        }
    }

    /// Takes note of polls that last so long from now on, ns.
    pub fn watch_polls(&mut self, limit_ns: u64) {
        self.interpreter.watch_polls(limit_ns);
    }

    /// The longest of those since this was last asked.
    pub fn take_long_poll(&mut self) -> Option<LongPoll> {
        self.interpreter.take_long_poll()
    }

    /// Writes what is encoded, so that a reader of the active file is not far
    /// behind, and looks whether the file is still there.
    pub fn flush(&mut self) {
        self.output.flush();
    }

    /// Takes one of the kernel's loss counters, hits since attach.
    pub fn read_loss(&mut self, cpu: u32, kind: RecordKind, cause: LossCause, total: u64) {
        self.ledger.read(cpu, kind, cause, total);
    }

    /// Takes note of what turned out to be missing since the segment began, by
    /// name, and why: its end says it.
    pub fn note_absent(&mut self, absent: &[(&str, String)]) {
        for (name, reason) in absent {
            self.output.note_absent(name, reason);
        }
    }

    /// What the present segment lacks, since its size is bounded.
    pub fn dropped(&self) -> Cut {
        self.output.dropped()
    }

    /// What else is to be told of the segment, by key: its end does.
    pub fn set_facts(&mut self, facts: Vec<(String, String)>) {
        self.output.set_facts(facts);
    }

    /// Takes note of how many processes the target has forked so far: the segment's
    /// end says it.
    pub fn note_forked(&mut self, forked: u64) {
        self.output.note_forked(forked);
    }

    /// Takes note of how many stacks were left out so far to keep their bound: the
    /// segment's end says it.
    pub fn note_stacks_left_out(&mut self, left_out: u64) {
        self.output.note_stacks_left_out(left_out);
    }

    /// Takes back that something is missing.
    pub fn note_present(&mut self, name: &str) {
        self.output.note_present(name);
    }

    /// The target has one more object, of the next number; records of it come after
    /// this.
    pub fn add_object(&mut self, types: ObjectTypes) {
        self.interpreter.add_object(types);
    }

    /// Takes note of what is known of the objects now, by number: the segment's end
    /// says it.
    pub fn set_objects(&mut self, objects: Vec<Object>) {
        self.output.set_objects(objects);
    }

    /// Takes note of where the target has code: the segment's end says it.
    pub fn set_mappings(&mut self, mappings: Vec<Mapping>) {
        self.output.set_mappings(mappings);
    }

    /// Takes note of what threads are called: the segment's end says it.
    pub fn note_threads(&mut self, names: &BTreeMap<u32, String>) {
        self.output.note_threads(names);
    }

    /// Takes note of an eviction: the next segment that ends tells it.
    pub fn evicted(&mut self, evicted: Evicted) {
        self.output.evicted(evicted);
    }

    /// Takes note that a closed segment could not be committed and is lost.
    pub fn lose(&mut self, segment: &ClosedSegment) {
        self.output.lose(segment.events());
    }

    /// Interprets all records, after the last pass: closes the segments that are due.
    pub fn drain(&mut self, end: Anchor, sealed: &mut impl FnMut(ClosedSegment)) {
        while end.mono_ns > self.boundary.ns {
            self.rotate(end, sealed);
        }
        self.release(u64::MAX);
    }

    /// Ends the recording, after the last pass: closes what is due, then what
    /// the kernel lost and nobody reported, then the last segment. During an
    /// outage there is one more attempt.
    pub fn finish(
        mut self,
        end: Anchor,
        gaps: &[OpenGap],
        sealed: &mut impl FnMut(ClosedSegment),
    ) -> Finished {
        self.drain(end, sealed);
        let Self {
            interpreter,
            output,
            ..
        } = &mut self;
        interpreter.finish(end.mono_ns, gaps, &mut |event, locations| {
            output.event(event, locations);
        });
        self.released_ns = end.mono_ns;
        if let Some(crash) = self.interpreter.target_end().filter(|end| end.is_crash())
            && self.output.is_unwanted()
        {
            (self.output).want(u64::MAX, format!("the target ended: {crash}"));
        }
        if self.output.outage().is_some() {
            self.retry(end, sealed);
        }
        self.close(end, true, sealed);
        Finished {
            stats: *self.stats(),
            target_end: self.interpreter.target_end().copied(),
            undecoded: self.undecoded.0,
            late: self.late,
            unsorted: self.sorter.late(),
            losses: self.losses(),
            unwritten: self.output.unwritten(),
            unsealed: self.output.path(),
            is_wanted: !self.output.is_unwanted(),
        }
    }

    /// Removes the segment of a recording that did not begin.
    ///
    /// # Errors
    ///
    /// The system's; the file stays, for a recovery.
    pub fn discard(self) -> io::Result<()> {
        self.path().map_or(Ok(()), std::fs::remove_file)
    }

    /// Counters since the start.
    pub fn stats(&self) -> &Stats {
        self.interpreter.stats()
    }

    /// Records whose bytes did not decode, since the start.
    pub fn undecoded(&self) -> u64 {
        self.undecoded.0
    }

    /// Records that came after the segment of their time, since the start.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Events that are in no segment since none could be written.
    pub fn unwritten(&self) -> u64 {
        self.output.unwritten()
    }

    /// Hits lost since the start, by CPU, kind and cause.
    pub fn losses(&self) -> Vec<Loss> {
        self.ledger.losses()
    }

    /// Since when nothing is written at present, and why.
    pub fn outage(&self) -> Option<(u64, &SegmentError)> {
        self.output.outage()
    }

    /// Bytes of the present segment.
    pub fn bytes(&self) -> u64 {
        self.output.bytes()
    }

    /// Of those, the ones that are in a file, or on their way there.
    pub fn file_bytes(&self) -> u64 {
        if self.output.is_in_memory() {
            0
        } else {
            self.output.bytes()
        }
    }

    /// Both clocks at the start of the present segment.
    pub fn started(&self) -> Anchor {
        self.output.started()
    }

    /// The time before which every record is in the output, `CLOCK_MONOTONIC` ns.
    pub fn released_ns(&self) -> u64 {
        self.released_ns
    }

    /// The end of the present segment, `CLOCK_MONOTONIC` ns.
    pub fn boundary_ns(&self) -> u64 {
        self.boundary.ns
    }

    /// The file of the present segment, where it has one.
    pub fn path(&self) -> Option<PathBuf> {
        self.output.path()
    }

    #[cold]
    fn drop_late(&mut self, cpu: u32, header: RecordHeader) {
        self.late += 1;
        self.ledger.late(cpu, header.kind);
        let pairs = [
            RecordKind::POLL_START,
            RecordKind::POLL_END,
            RecordKind::PARK,
            RecordKind::UNPARK,
        ];
        if pairs.contains(&header.kind) {
            self.sorter.push(Record::Gap(Gap {
                header: RecordHeader {
                    kind: RecordKind::GAP,
                    flags: 0,
                    tid: header.tid,
                    ts_ns: self.output.started().mono_ns,
                },
                lost: 1,
            }));
        }
    }

    fn release(&mut self, until_ns: u64) {
        let Self {
            sorter,
            samples,
            stacks,
            interpreter,
            output,
            ..
        } = self;
        let mut sample_before = |ts_ns, interpreter: &mut Interpreter, output: &mut Output| {
            while let Some(sample) = samples.pop_front_if(|sample| sample.ts_ns() < ts_ns) {
                interpreter.sample(sample, &mut |event, locations| {
                    output.event(event, locations);
                });
            }
            while let Some(sampled) = stacks.pop_before(ts_ns, interpreter.frames_mut()) {
                interpreter.sampled(&sampled, &mut |event, locations| {
                    output.event(event, locations);
                });
            }
        };
        sorter.release(until_ns, |record| {
            sample_before(record.header().ts_ns, interpreter, output);
            interpreter.record(record, &mut |event, locations| {
                output.event(event, locations);
            });
        });
        sample_before(until_ns, interpreter, output);
        interpreter.forget_payloads(until_ns);
        self.released_ns = self.released_ns.max(until_ns);
    }
}

/// What a recording comes to.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Counters of records and events.
    pub stats: Stats,
    /// How the target ended, where that was seen.
    pub target_end: Option<TargetEnd>,
    /// Records whose bytes did not decode.
    pub undecoded: u64,
    /// Records that came after the segment of their time.
    pub late: u64,
    /// Records that came after later ones had been interpreted.
    pub unsorted: u64,
    /// Hits lost, by CPU, kind and cause.
    pub losses: Vec<Loss>,
    /// Events that are in no segment.
    pub unwritten: u64,
    /// The last segment's file, where it could not be closed: a recovery seals
    /// it.
    pub unsealed: Option<PathBuf>,
    /// False when the last segment is in memory and nobody wants it.
    pub is_wanted: bool,
}

#[cfg(test)]
mod tests;
