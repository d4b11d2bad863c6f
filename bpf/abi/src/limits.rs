//! Every capacity of the kernel side, and the bytes it implies.

/// CPUs that can have a ring: entries of the outer map.
pub const MAX_CPUS: u32 = 1024;
/// Words of the target bitmap: one bit for each pid below `pid_max`'s ceiling
/// of 2^22 (`PID_MAX_LIMIT`, include/linux/threads.h).
pub const TARGET_WORDS: u32 = (1 << 22) / 64;
/// Default budget of all rings together, bytes.
pub const DEFAULT_RING_BYTES: u64 = 32 << 20;
/// Entries of the array of known tasks, 8 bytes each; a power of two.
pub const KNOWN_TASKS: u32 = 1 << 16;
