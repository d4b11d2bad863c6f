//! The ends of segments: at a boundary, in an outage, at the very end.
//!
//! In: the line's state and the time. Out: closed segments. Never: a counter
//! that is told twice or not at all: only a segment that is closed takes its
//! counters along.

use crate::loss::Loss;

use super::{Anchor, Boundary, ClosedSegment, Ending, Line};

impl Line {
    /// Ends the present segment at its boundary and begins the next there. The
    /// boundary's time on the wall clock is what `now` gives it.
    pub(super) fn rotate(&mut self, now: Anchor, sealed: &mut impl FnMut(ClosedSegment)) {
        let Boundary { ns, is_epoch } = self.boundary;
        self.release(ns);
        let Self {
            interpreter,
            output,
            ..
        } = self;
        interpreter.rotate(&mut |event, locations| output.event(event, locations));
        let at = now.at(ns);
        self.close(at, is_epoch, sealed);
        self.output.begin_next(at);
        self.begin_epoch();
    }

    pub(super) fn retry(&mut self, now: Anchor, sealed: &mut impl FnMut(ClosedSegment)) {
        let Some((since_ns, _)) = self.output.outage() else {
            return;
        };
        let losses = self.ledger.losses();
        let ending = self.ending(&losses, false, now.at(since_ns));
        let started = now.at(self.released_ns);
        let mut is_closed = false;
        let is_over = self
            .output
            .retry(started, now.mono_ns, &ending, &mut |segment| {
                is_closed = true;
                sealed(segment);
            });
        if is_closed {
            self.begin_counters();
        }
        if is_over {
            let Self {
                interpreter,
                output,
                ..
            } = self;
            interpreter.interrupt();
            interpreter.rotate(&mut |event, locations| output.event(event, locations));
            self.begin_epoch();
        }
    }

    pub(super) fn close(
        &mut self,
        anchor: Anchor,
        is_complete: bool,
        sealed: &mut impl FnMut(ClosedSegment),
    ) {
        let losses = self.ledger.losses();
        let ending = self.ending(&losses, is_complete, anchor);
        if let Some(closed) = self.output.close(&ending) {
            self.begin_counters();
            sealed(closed);
        }
    }

    /// What the segment that was closed has told is not told again.
    fn begin_counters(&mut self) {
        self.ledger.begin_segment();
        self.undecoded.1 = 0;
        self.stacks_told = self.stats().stacks;
        self.queues_told = self.stats().queues;
    }

    /// What is known of a segment that ends now.
    fn ending<'a>(&mut self, losses: &'a [Loss], is_complete: bool, anchor: Anchor) -> Ending<'a> {
        let stats = *self.stats();
        self.output.note_untold(stats.untold_absences);
        Ending {
            runtimes: self.interpreter.runtimes(),
            threads: self.interpreter.worker_threads(),
            losses,
            undecoded: self.undecoded.1,
            stacks: stats.stacks.since(&self.stacks_told),
            queues: stats.queues.since(&self.queues_told),
            is_complete,
            anchor,
        }
    }

    pub(super) fn begin_epoch(&mut self) {
        self.boundary = Boundary {
            ns: self.policy.boundary_ns(self.output.started()),
            is_epoch: true,
        };
    }
}
