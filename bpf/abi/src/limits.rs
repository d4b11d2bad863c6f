//! Every capacity of the kernel side, and the bytes it implies.

/// CPUs that can have a ring: entries of the outer map.
pub const MAX_CPUS: u32 = 1024;
/// The kernel side's target while hits do not count: no process has this id.
pub const NO_TARGET: u32 = u32::MAX;
/// Default budget of all rings together, bytes.
pub const DEFAULT_RING_BYTES: u64 = 32 << 20;
/// Entries of the array of known tasks, 8 bytes each; a power of two.
pub const KNOWN_TASKS: u32 = 1 << 16;
