//! When it is read what the kernel's own threads have submitted to block devices.
//!
//! In: the time. Out: samples, to the line. Never: more than one a second.

use dial9_bpf_attach::Tracer;
use dial9_bpf_trace::{
    clock::monotonic_ns,
    event::{KernelIo, Sample},
    line::Line,
};

/// Time between two samples, ns.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Samples a tracer's counters.
#[derive(Debug, Default)]
pub(crate) struct KernelIoSampler {
    due_ns: u64,
}

impl KernelIoSampler {
    /// Samples them if it is time.
    pub(crate) fn turn(&mut self, tracer: &Tracer, line: &mut Line) {
        let now_ns = monotonic_ns();
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + INTERVAL_NS;
            sample(tracer, line, now_ns);
        }
    }
}

/// Samples them now. What cannot be read is not in the trace then; the next sample has it.
pub(crate) fn sample(tracer: &Tracer, line: &mut Line, ts_ns: u64) {
    if let Ok(Some(io)) = tracer.kernel_io() {
        line.sample(Sample::KernelIo(KernelIo {
            ts_ns,
            reads: io.reads,
            writes: io.writes,
            others: io.others,
        }));
    }
}
