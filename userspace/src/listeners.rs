//! When accept queues are read that nobody comes to.
//!
//! In: the time. Out: readings, as records in the rings. Never: more than a hundredth
//! of a core.

use dial9_bpf_attach::Tracer;
use dial9_bpf_trace::clock::monotonic_ns;

/// Time between two readings, ns, unless one takes long.
const INTERVAL_NS: u64 = 100_000_000;
/// How much longer the time between two is than a reading takes, at least.
const SHARE: u64 = 100;

/// Reads a target's.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    due_ns: u64,
}

impl Readings {
    /// Reads them if it is time. What the kernel refuses once it may refuse again: the
    /// trace has arrivals then, and no readings.
    pub(crate) fn turn(&mut self, tracer: &Tracer) {
        let now_ns = monotonic_ns();
        if now_ns < self.due_ns {
            return;
        }
        // One that fails is done later.
        let _ = tracer.read_accept_queues();
        let end_ns = monotonic_ns();
        self.due_ns = end_ns + INTERVAL_NS.max(SHARE * (end_ns - now_ns));
    }
}
