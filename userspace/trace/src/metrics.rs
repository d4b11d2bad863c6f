//! What a sample says: counters of a runtime, or of the process.
//!
//! In: nothing. Out: the counters. Never: a value that Tokio or the kernel does not keep
//! itself.

/// A runtime's counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeMetrics {
    /// When; the same for all runtimes that are sampled together.
    pub ts_ns: u64,
    /// Tokio's number of the runtime, as in [`crate::metadata::Runtime`].
    pub number: u64,
    /// Tasks in its global queue.
    pub global_queue: u32,
    /// Tasks that have not ended.
    pub alive_tasks: u32,
}

/// What the target has used since it began: the counters of `getrusage(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// When.
    pub ts_ns: u64,
    /// CPU time in user mode, ns.
    pub user_cpu_ns: u64,
    /// CPU time in the kernel, ns.
    pub system_cpu_ns: u64,
    /// Most memory resident, bytes.
    pub max_rss_bytes: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Blocks of 512 bytes read from storage.
    pub block_input_ops: u64,
    /// Blocks of 512 bytes written to storage, or to the cache before it.
    pub block_output_ops: u64,
    /// Switches of threads that waited for something.
    pub voluntary_context_switches: u64,
    /// Switches of threads that could have run on.
    pub involuntary_context_switches: u64,
}

/// What the kernel's own threads have submitted to block devices since the recording
/// began: what processes have written before, file systems' journals, other services of
/// the kernel; whose it is, is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelIo {
    /// When.
    pub ts_ns: u64,
    /// Reads, and their bytes.
    pub reads: [u64; 2],
    /// Writes, and their bytes.
    pub writes: [u64; 2],
    /// Whatever is neither.
    pub others: [u64; 2],
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Of a runtime.
    Runtime(RuntimeMetrics),
    /// Of the process.
    Process(ResourceUsage),
    /// Of the kernel's own threads.
    KernelIo(KernelIo),
}

impl Sample {
    /// When.
    pub(crate) const fn ts_ns(&self) -> u64 {
        match self {
            Self::Runtime(sample) => sample.ts_ns,
            Self::Process(usage) => usage.ts_ns,
            Self::KernelIo(io) => io.ts_ns,
        }
    }
}
