//! Where the line's events go: batches, and the segment of the present epoch.
//!
//! In: events, and the ends of epochs. Out: closed segments. Never: a failure
//! that ends the recording: without a file the events are counted until there
//! is one again, and the next segment begins by telling how many and why.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use crate::clock::Anchor;
use crate::encode::Encoder;
use crate::event::Event;
use crate::location::Locations;
use crate::loss::Loss;
use crate::mapping::Mapping;
use crate::metadata::{Metadata, Object, Runtime};
use crate::segment::{
    ActiveSegment, ClosedSegment, Closing, Cut, Evicted, Owner, Place, SegmentError,
};
use crate::stats::{QueueCounts, StackCounts};

/// Time between two attempts to write again, ns.
const RETRY_NS: u64 = 1_000_000_000;

/// A segment, or none for the time being.
#[derive(Debug)]
pub(super) struct Output {
    place: Place,
    owner: Owner,
    metadata: Metadata,
    encoder: Encoder,
    /// Size beyond which a batch ends.
    batch_bytes: usize,
    /// During an outage, what is still to be closed.
    segment: Option<ActiveSegment>,
    outage: Option<Outage>,
    /// Start of the segment, also of one that could not be begun.
    started: Anchor,
    /// Events in the encoder.
    batch_events: u64,
    /// Time of the first of them; 0 without one.
    batch_since_ns: u64,
    /// Events in the segment's file.
    written: u64,
    /// Events that are in no segment, since the start.
    unwritten: u64,
    /// Evictions that no segment has told.
    evicted: Vec<Evicted>,
    /// Which segments in memory are wanted: those that start before this time, ns;
    /// and why.
    wanted: Option<(u64, String)>,
}

/// Nothing can be written.
#[derive(Debug)]
struct Outage {
    /// Time of the first event that is not written, ns.
    since_ns: u64,
    events: u64,
    /// The first failure.
    error: SegmentError,
    retry_ns: u64,
}

/// What the rest of the line says at a segment's end.
#[derive(Debug)]
pub(super) struct Ending<'a> {
    pub(super) runtimes: Vec<Runtime>,
    pub(super) threads: Vec<(u32, u32)>,
    pub(super) losses: &'a [Loss],
    pub(super) undecoded: u64,
    pub(super) stacks: StackCounts,
    pub(super) queues: QueueCounts,
    pub(super) is_complete: bool,
    pub(super) anchor: Anchor,
}

impl Output {
    /// An output whose first segment starts at `started`.
    pub(super) fn begin(
        place: Place,
        owner: Owner,
        metadata: Metadata,
        started: Anchor,
    ) -> Result<Self, SegmentError> {
        let segment = ActiveSegment::create(&place, owner, &metadata, started)?;
        let batch_bytes = match &place {
            Place::Bounded(budget) => budget.batch_bytes(),
            Place::Spool(_) | Place::Memory => usize::MAX,
        };
        Ok(Self {
            batch_bytes,
            place,
            owner,
            metadata,
            encoder: Encoder::new(),
            segment: Some(segment),
            outage: None,
            started,
            batch_events: 0,
            batch_since_ns: 0,
            written: 0,
            unwritten: 0,
            evicted: Vec::new(),
            wanted: None,
        })
    }

    /// Appends an event.
    #[inline]
    pub(super) fn event(&mut self, event: &Event, locations: &Locations) {
        if self.encoder.is_full() || self.encoder.len() > self.batch_bytes {
            self.write();
        }
        if let Some(outage) = &mut self.outage {
            outage.events += 1;
            self.unwritten += 1;
            return;
        }
        self.batch_events += 1;
        // An announcement has its task's time.
        if self.batch_since_ns == 0 && !matches!(event, Event::Spawn { .. }) {
            self.batch_since_ns = event.ts_ns();
        }
        self.encoder.event(event, locations);
    }

    /// Writes the batch, so that a reader of the active file is not far behind,
    /// and looks whether the file is still there.
    pub(super) fn flush(&mut self) {
        self.write();
        if self.outage.is_none()
            && let Some(segment) = &self.segment
            && let Err(error) = segment.check_linked()
        {
            // What the file has goes with it.
            self.batch_events = std::mem::take(&mut self.written);
            self.batch_since_ns = self.started.mono_ns;
            self.fail(error);
        }
    }

    /// Adds the wall clock when it is due.
    pub(super) fn sync_clock(&mut self, now: Anchor) {
        if self.outage.is_none()
            && let Some(segment) = &mut self.segment
        {
            segment.sync_clock_at(now, &mut self.encoder);
        }
    }

    /// Closes the segment; `None` during an outage, and when one begins here.
    pub(super) fn close(&mut self, ending: &Ending<'_>) -> Option<ClosedSegment> {
        self.flush();
        if self.outage.is_some() {
            return None;
        }
        match self.close_segment(ending)? {
            Ok(closed) => Some(closed),
            Err(error) => {
                self.batch_since_ns = ending.anchor.mono_ns;
                self.fail(error);
                None
            }
        }
    }

    /// Begins the next segment. During an outage only its start is noted.
    pub(super) fn begin_next(&mut self, started: Anchor) {
        self.started = started;
        if self.outage.is_some() {
            return;
        }
        match ActiveSegment::create(&self.place, self.owner, &self.metadata, started) {
            Ok(segment) => self.segment = Some(segment),
            Err(error) => {
                self.batch_since_ns = started.mono_ns;
                self.fail(error);
            }
        }
    }

    /// Whether an outage is due for another attempt.
    pub(super) fn is_retry_due(&self, now_ns: u64) -> bool {
        let due = |outage: &Outage| now_ns >= outage.retry_ns;
        self.outage.as_ref().is_some_and(due)
    }

    /// Ends an outage if it can: closes the segment that failed, and begins one
    /// at `started` which tells what is missing. What it closed is handed to
    /// `sealed` in any case. True when events can be written again.
    pub(super) fn retry(
        &mut self,
        started: Anchor,
        now_ns: u64,
        ending: &Ending<'_>,
        sealed: &mut impl FnMut(ClosedSegment),
    ) -> bool {
        let Some(outage) = &mut self.outage else {
            return false;
        };
        outage.retry_ns = now_ns.saturating_add(RETRY_NS);
        let (since_ns, events) = (outage.since_ns, outage.events);
        let cause = outage.error.source.to_string();
        if let Some(Ok(closed)) = self.close_segment(ending) {
            sealed(closed);
        }
        let created = ActiveSegment::create(&self.place, self.owner, &self.metadata, started);
        let Ok(mut segment) = created else {
            return false;
        };
        let mut encoder = Encoder::new();
        encoder.unwritten(started.mono_ns, since_ns, events, &cause);
        if segment.write_batch(encoder.cut()).is_err() {
            // It has nothing that the next attempt does not write again.
            segment.discard();
            return false;
        }
        // One that still cannot be closed stays behind for a recovery.
        self.segment = Some(segment);
        self.outage = None;
        self.started = started;
        true
    }

    /// Something that is missing, and why; the segment's end tells it.
    pub(super) fn note_absent(&mut self, name: &str, reason: &str) {
        let known = &mut self.metadata.absent;
        if known.iter().all(|(known, _)| known != name) {
            known.push((name.to_owned(), reason.to_owned()));
        }
    }

    /// Intervals off the CPU so far that were not told whole; the segment's end tells it.
    pub(super) fn note_untold(&mut self, absences: u64) {
        self.metadata.untold_absences = absences;
    }

    /// Processes that the target has forked so far; the segment's end tells it.
    pub(super) fn note_forked(&mut self, forked: u64) {
        self.metadata.forked = forked;
    }

    /// Stacks that were left out to keep their bound; the segment's end tells it.
    pub(super) fn note_stacks_left_out(&mut self, left_out: u64) {
        self.metadata.stacks_left_out = left_out;
    }

    /// Something that is not missing after all.
    pub(super) fn note_present(&mut self, name: &str) {
        self.metadata.absent.retain(|(known, _)| known != name);
    }

    /// What threads are called, all of them.
    pub(super) fn note_threads(&mut self, names: &BTreeMap<u32, String>) {
        if *names != self.metadata.threads {
            self.metadata.threads.clone_from(names);
        }
    }

    /// The target's objects, all of them, by number.
    pub(super) fn set_objects(&mut self, objects: Vec<Object>) {
        self.metadata.objects = objects;
    }

    pub(super) fn set_mappings(&mut self, mappings: Vec<Mapping>) {
        self.metadata.mappings = mappings;
    }

    /// Why segments in memory are wanted that start before a time: their ends tell
    /// it.
    pub(super) fn want(&mut self, until_ns: u64, reason: String) {
        self.wanted = Some((until_ns, reason));
    }

    /// Whether nobody may ever read the present segment.
    pub(super) fn is_unwanted(&self) -> bool {
        self.is_in_memory() && self.why_wanted().is_none()
    }

    /// What the present segment lacks, since its size is bounded.
    pub(super) fn dropped(&self) -> Cut {
        let segment = self.segment.as_ref();
        segment.map(ActiveSegment::dropped).unwrap_or_default()
    }

    /// What else is to be told of the segment: its end does.
    pub(super) fn set_facts(&mut self, facts: Vec<(String, String)>) {
        self.metadata.facts = facts;
    }

    fn why_wanted(&self) -> Option<&str> {
        let (until_ns, reason) = self.wanted.as_ref()?;
        (self.started.mono_ns < *until_ns).then_some(reason)
    }

    pub(super) fn is_in_memory(&self) -> bool {
        self.place == Place::Memory
    }

    /// An eviction, to be told at the next end of a segment that is wanted.
    pub(super) fn evicted(&mut self, evicted: Evicted) {
        self.evicted.push(evicted);
    }

    /// Counts events of a segment that was closed and then lost.
    pub(super) fn lose(&mut self, events: u64) {
        self.unwritten += events;
    }

    /// Events that are in no segment, since the start.
    pub(super) fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// Since when nothing is written at present, and why.
    pub(super) fn outage(&self) -> Option<(u64, &SegmentError)> {
        let outage = self.outage.as_ref()?;
        Some((outage.since_ns, &outage.error))
    }

    pub(super) fn started(&self) -> Anchor {
        self.started
    }

    /// The segment's file, where it has one.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let segment = self.segment.as_ref()?;
        (!self.is_in_memory()).then(|| segment.path())
    }

    /// Its size with what is not yet written, bytes.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = self.segment.as_ref().map_or(0, ActiveSegment::bytes);
        bytes + self.encoder.len() as u64
    }

    #[cfg(test)]
    pub(super) fn segment(&mut self) -> Option<&mut ActiveSegment> {
        self.segment.as_mut()
    }

    /// Closes the segment if there is one; it stays when that fails.
    fn close_segment(
        &mut self,
        ending: &Ending<'_>,
    ) -> Option<Result<ClosedSegment, SegmentError>> {
        let is_unwanted = self.is_unwanted();
        let evicted: &[Evicted] = if is_unwanted { &[] } else { &self.evicted };
        let segment = self.segment.take()?;
        let closed = segment.close(&Closing {
            metadata: &self.metadata,
            runtimes: &ending.runtimes,
            threads: &ending.threads,
            losses: ending.losses,
            evicted,
            undecoded: ending.undecoded,
            stacks: ending.stacks,
            queues: ending.queues,
            unwritten: self.unwritten,
            dump: self.why_wanted(),
            is_complete: ending.is_complete,
            anchor: ending.anchor,
            events: self.written,
        });
        Some(match closed {
            Ok(closed) => {
                if !is_unwanted {
                    self.evicted.clear();
                }
                self.written = 0;
                Ok(closed)
            }
            Err(refused) => {
                let (segment, error) = *refused;
                self.segment = Some(segment);
                Err(error)
            }
        })
    }

    fn write(&mut self) {
        if self.encoder.is_empty() {
            return;
        }
        let Some(segment) = &mut self.segment else {
            return;
        };
        let events = (self.batch_events, self.batch_since_ns);
        match segment.write_events(self.encoder.cut(), events) {
            Ok(()) => {
                self.written += std::mem::take(&mut self.batch_events);
                self.batch_since_ns = 0;
            }
            Err(error) => self.fail(error),
        }
    }

    /// Begins an outage: what is in the batch is lost.
    #[cold]
    fn fail(&mut self, error: SegmentError) {
        if error.source.kind() == io::ErrorKind::NotFound {
            self.segment = None;
            self.written = 0;
        }
        if !self.encoder.is_empty() {
            self.encoder.cut();
        }
        let events = std::mem::take(&mut self.batch_events);
        self.unwritten += events;
        self.outage = Some(Outage {
            since_ns: std::mem::take(&mut self.batch_since_ns),
            events,
            error,
            retry_ns: 0,
        });
    }
}
