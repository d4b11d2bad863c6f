//! What the kernel keeps of the target's threads: who is on which CPU, who is off and
//! since when, and who lost hits.

/// Entries of the arrays of threads; a power of two.
pub const SLOTS: u32 = 1 << 14;

/// The thread of the target that is on a CPU, in an array by CPU: written when
/// the scheduler switches, so that a hit knows its thread without a call (a call
/// costs 25 ns). Padded to a cache line, so that CPUs do not share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OnCpu {
    /// The thread; 0 while no thread of the target is on the CPU, and for one
    /// that was on it before the tracepoint was.
    pub tid: u32,
    /// Always 0.
    pub reserved: u32,
    /// When it was switched in, `CLOCK_MONOTONIC`, ns.
    pub on_ns: u64,
    /// `sched_entity.sum_exec_runtime` at that moment, ns.
    pub cpu_ns: u64,
    /// Always 0.
    pub padding: [u64; 5],
}

/// A thread that is off its CPU, in an array by the low bits of the tid. Two threads
/// may share a slot; then the interval of the first is a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Away {
    /// The thread.
    pub tid: u32,
    /// Its state when it left the CPU: bits of `task_struct.__state`.
    pub state: u32,
    /// When it left, `CLOCK_MONOTONIC`, ns; [`ON`] while it is on a CPU; 0 where neither was
    /// seen.
    pub off_ns: u64,
    /// The thread that woke it; 0 where none is known.
    pub waker: u32,
    /// `record::FLAG_WAKER`, `record::FLAG_WOKEN_BY_INTERRUPT` or 0.
    pub flags: u32,
    /// When it was woken since it was last on a CPU, `CLOCK_MONOTONIC`, ns; 0 where it was
    /// not.
    pub wake_ns: u64,
}

/// [`Away::off_ns`] of a thread that is on a CPU.
pub const ON: u64 = u64::MAX;

/// The innermost poll that a thread has begun, in an array by the low bits of the tid.
/// Of two threads that share a slot the one that has begun later counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Polling {
    /// The thread.
    pub tid: u32,
    /// Always 0.
    pub reserved: u32,
    /// Stack pointer of the poll, as `record::PollStart` has it; 0 outside polls.
    pub sp: u64,
}

/// The queue of the worker that last parked on a thread, in an array by the low bits of
/// the tid. Of two threads that share a slot the one that has parked later counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Queued {
    /// The thread.
    pub tid: u32,
    /// Always 0.
    pub reserved: u32,
    /// Address of the queue's `ArcInner`; 0 where it is not known.
    pub queue: u64,
}

/// What a thread lost since its last record, in an array by the low bits of the
/// tid (a hash lookup would cost 32 ns on every hit). Two threads may share a
/// slot; then the gap is everybody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LostHits {
    /// The thread; [`LOST_BY_SEVERAL`] for more than one.
    pub tid: u32,
    /// Always 0.
    pub reserved: u32,
    /// When the first of the lost hits happened, `CLOCK_MONOTONIC`, ns.
    pub since_ns: u64,
    /// Hits lost; 0 when nothing is.
    pub lost: u64,
}

/// [`LostHits::tid`] when several threads lost hits in one slot.
pub const LOST_BY_SEVERAL: u32 = u32::MAX;

/// The slot of a thread.
pub const fn slot_index(tid: u32) -> u32 {
    tid & (SLOTS - 1)
}

const _: () = assert!(size_of::<OnCpu>() == 64);
const _: () = assert!(size_of::<LostHits>() == 24);
const _: () = assert!(size_of::<Away>() == 32);
const _: () = assert!(size_of::<Polling>() == 16);
const _: () = assert!(size_of::<Queued>() == 16);
