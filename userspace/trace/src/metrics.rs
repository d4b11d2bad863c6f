//! What a sample of a runtime says.
//!
//! In: nothing. Out: the counters. Never: a value that Tokio does not keep itself.

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
