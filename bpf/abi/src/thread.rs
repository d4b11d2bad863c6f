//! What the kernel keeps for each traced thread, in an array indexed by the low
//! bits of the tid (a hash lookup would cost 32 ns on every hit).

/// Entries of the thread array; a power of two.
pub const SLOTS: u32 = 1 << 14;

/// One thread's slot. Two threads whose tids agree in the low bits share it:
/// `on_tid` says whose the on-CPU part is, and a gap that two of them share is
/// marked as everybody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadSlot {
    /// Thread that `on_ns` and `cpu_ns` belong to; 0 before the first switch-in.
    pub on_tid: u32,
    /// Thread that lost hits; 0 when nothing is lost, `u32::MAX` for several.
    pub lost_tid: u32,
    /// When the thread was last switched in, `CLOCK_MONOTONIC`, ns.
    pub on_ns: u64,
    /// `sched_entity.sum_exec_runtime` at that moment, ns.
    pub cpu_ns: u64,
    /// When the first of the lost hits happened, `CLOCK_MONOTONIC`, ns.
    pub lost_ns: u64,
    /// Hits lost since the thread's last record.
    pub lost: u64,
}

/// [`ThreadSlot::lost_tid`] when several threads lost hits in one slot.
pub const LOST_BY_SEVERAL: u32 = u32::MAX;

/// The slot of a thread.
pub const fn slot_index(tid: u32) -> u32 {
    tid & (SLOTS - 1)
}

const _: () = assert!(size_of::<ThreadSlot>() == 40);
