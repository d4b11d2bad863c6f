//! What the kernel keeps of the processes that the target forks.
//!
//! They are copies of it, with its breakpoints, until they execute a program of
//! their own. One that shares the target's memory is none of them: it is there to
//! execute something (`vfork`, `posix_spawn`).

/// Processes that are kept at a time: entries of the map from a process id to the
/// time of its fork, `CLOCK_MONOTONIC`, ns.
pub const MAX_FORKED: u32 = 1 << 10;

/// A counter of forks, since the programs were loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ForkCount {
    /// Processes that the target has forked, or one of those.
    Forked = 0,
    /// Of these, how many have executed a program.
    Executed = 1,
    /// Processes beyond [`MAX_FORKED`], of which nothing else is known.
    Unkept = 2,
}

/// Entries of the array of counters.
pub const FORK_COUNTS: u32 = 3;
