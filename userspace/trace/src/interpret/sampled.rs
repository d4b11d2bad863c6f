//! Where a thread was, and whose.
//!
//! In: a sample of a thread, with its frames. Out: dial9's event of it, with the worker
//! that the thread is. Never: a stack of a thread that waits where a worker parks: those are
//! parks, and no poll blocks there; nor the end of a gap, since a sample is no record of its
//! thread.

use super::Interpreter;
use super::lane::Out;
use crate::event::{CpuSample, Event};
use crate::location::Locations;
use crate::stacks::{Moment, Sampled};
use crate::threads::Work;

impl Interpreter {
    /// Where the frames of the next sample go.
    pub(crate) fn frames_mut(&mut self) -> &mut Vec<u64> {
        self.locations.frames_mut()
    }

    /// Says a sample with the frames that are in place.
    pub(crate) fn sampled(&mut self, sampled: &Sampled, out: &mut impl FnMut(&Event, &Locations)) {
        let Sampled {
            ts_ns,
            tid,
            name,
            moment,
            cpu,
            extent,
        } = *sampled;
        self.stats.records.count_stack(moment);
        let thread = self.threads.get(tid);
        let thread = thread.filter(|thread| thread.last_ns <= ts_ns);
        let polls = |work| !matches!(work, Work::WorkerLoop { .. });
        let is_in_poll = (thread.as_ref())
            .and_then(|thread| thread.open.last())
            .is_some_and(|poll| polls(poll.work));
        if moment == Moment::SwitchOut && !is_in_poll {
            self.stats.stacks.outside_polls += 1;
            return;
        }
        self.stats.stacks.count(extent);
        let worker = thread.and_then(|thread| thread.current_worker());
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        out.event(&Event::CpuSample(CpuSample {
            ts_ns,
            tid,
            name,
            moment,
            cpu,
            worker,
        }));
    }
}
