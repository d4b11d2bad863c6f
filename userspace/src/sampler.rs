//! When the counters of runtimes are read.
//!
//! In: the time, and what the line has learned of schedulers. Out: samples, to the
//! line; what there is to say of their absence. Never: a read that waits for a thread of
//! the target.

use dial9_bpf_attach::Runtimes;
use dial9_bpf_trace::{
    clock::monotonic_ns, event::RuntimeMetrics, line::Line, metadata::RUNTIME_METRICS,
};

/// Time between two samples, ns: dial9's.
const INTERVAL_NS: u64 = 10_000_000;

/// Samples the runtimes of a target.
#[derive(Debug)]
pub(crate) struct Sampler {
    runtimes: Runtimes,
    due_ns: u64,
}

impl Sampler {
    /// A sampler of these runtimes.
    pub(crate) fn new(runtimes: Runtimes) -> Self {
        Self {
            runtimes,
            due_ns: 0,
        }
    }

    /// Hears of new runtimes, and samples all when it is time.
    pub(crate) fn turn(&mut self, line: &mut Line) {
        line.take_schedulers(|(number, address)| self.runtimes.meet(number, address));
        let ts_ns = monotonic_ns();
        if ts_ns < self.due_ns {
            return;
        }
        self.due_ns = ts_ns + INTERVAL_NS;
        self.runtimes.sample(|sample| {
            line.sample(RuntimeMetrics {
                ts_ns,
                number: sample.number,
                global_queue: sample.global_queue,
                alive_tasks: sample.alive_tasks,
            });
        });
    }

    /// Tells the line what is missing of them, as far as that is known.
    pub(crate) fn tell(&self, line: &mut Line) {
        match self.runtimes.absent() {
            Some(reason) => line.note_absent(&[(RUNTIME_METRICS, reason.to_owned())]),
            None => line.note_present(RUNTIME_METRICS),
        }
    }
}
