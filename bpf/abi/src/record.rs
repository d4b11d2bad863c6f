//! The records that a hit becomes.
//!
//! Every record is `repr(C)`, a multiple of 8 bytes, without padding, and
//! begins with a [`RecordHeader`]. A ring entry costs 8 bytes more (the kernel's
//! `struct bpf_ringbuf_hdr`).

use crate::text::PIECE_BYTES;

/// Which record follows the header. A newtype, not an enum: kernel bytes are
/// untrusted until `decode` has looked at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct RecordKind(pub u16);

impl RecordKind {
    /// A thread enters a task's poll function: [`PollStart`].
    pub const POLL_START: Self = Self(1);
    /// A poll call returned: [`PollEnd`].
    pub const POLL_END: Self = Self(2);
    /// A task was woken through its waker: [`TaskRecord`].
    pub const WAKE: Self = Self(3);
    /// A task was bound to a runtime: [`Spawn`].
    pub const SPAWN: Self = Self(4);
    /// A task completed, panicked or was cancelled: [`Terminate`].
    pub const TERMINATE: Self = Self(5);
    /// A worker is about to park: [`Park`].
    pub const PARK: Self = Self(6);
    /// A worker came back from a park: [`Park`].
    pub const UNPARK: Self = Self(7);
    /// Hits of this thread were lost before this point: [`Gap`]. Not a hit.
    pub const GAP: Self = Self(8);
    /// The target's last thread exits: [`Exit`].
    pub const EXIT: Self = Self(9);
    /// A thread gets a signal that ends the target: [`Signal`].
    pub const SIGNAL: Self = Self(10);
    /// A thread panics: [`Panic`].
    pub const PANIC: Self = Self(11);
    /// A piece of a text about a panic: [`Text`].
    pub const TEXT: Self = Self(12);
    /// A thread is on a CPU again: [`OffCpu`].
    pub const OFF_CPU: Self = Self(13);
    /// A thread has entered a runtime to block on a future: [`BlockOn`].
    pub const BLOCK_ON: Self = Self(14);
    /// A thread leaves it: [`BlockOn`].
    pub const BLOCK_ON_END: Self = Self(15);
    /// A connection was queued at a listener, or its queue was read: [`AcceptQueue`].
    pub const ACCEPT_QUEUE: Self = Self(16);
    /// The profile's clock has ticked while a thread ran: [`crate::stack::Stack`].
    pub const CPU_SAMPLE: Self = Self(17);
    /// A thread leaves its CPU to wait, inside a poll: [`crate::stack::Stack`].
    pub const OFF_CPU_STACK: Self = Self(18);

    /// A thread submits an I/O to a block device: [`IoBegin`].
    pub const IO_BEGIN: Self = Self(19);
    /// An I/O is done: [`IoEnd`].
    pub const IO_END: Self = Self(20);
    /// A file was synced: [`Sync`].
    pub const SYNC: Self = Self(21);
    /// A probe that a probe file declares was hit: [`crate::declared::Declared`].
    pub const DECLARED: Self = Self(22);

    /// The kinds that a hit can have, in the order of their numbers.
    pub const HITS: [Self; 21] = [
        Self::POLL_START,
        Self::POLL_END,
        Self::WAKE,
        Self::SPAWN,
        Self::TERMINATE,
        Self::PARK,
        Self::UNPARK,
        Self::EXIT,
        Self::SIGNAL,
        Self::PANIC,
        Self::TEXT,
        Self::OFF_CPU,
        Self::BLOCK_ON,
        Self::BLOCK_ON_END,
        Self::ACCEPT_QUEUE,
        Self::CPU_SAMPLE,
        Self::OFF_CPU_STACK,
        Self::IO_BEGIN,
        Self::IO_END,
        Self::SYNC,
        Self::DECLARED,
    ];

    /// The kind's name in reports and schemas; `None` for an unknown number.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::POLL_START => "poll-start",
            Self::POLL_END => "poll-end",
            Self::WAKE => "wake",
            Self::SPAWN => "spawn",
            Self::TERMINATE => "terminate",
            Self::PARK => "park",
            Self::UNPARK => "unpark",
            Self::GAP => "gap",
            Self::EXIT => "exit",
            Self::SIGNAL => "signal",
            Self::PANIC => "panic",
            Self::TEXT => "text",
            Self::OFF_CPU => "off-cpu",
            Self::BLOCK_ON => "block-on",
            Self::BLOCK_ON_END => "block-on-end",
            Self::ACCEPT_QUEUE => "accept-queue",
            Self::CPU_SAMPLE => "cpu-sample",
            Self::OFF_CPU_STACK => "off-cpu-stack",
            Self::IO_BEGIN => "io-begin",
            Self::IO_END => "io-end",
            Self::SYNC => "sync",
            Self::DECLARED => "declared",
            _ => return None,
        })
    }
}

/// [`PollStart::vtable`] and [`Spawn::vtable`] hold the vtable's run-time
/// address, not an index into the plan.
pub const FLAG_VTABLE_ADDRESS: u16 = 1;
/// [`Park::cpu_ns`] is the scheduler's own sum, behind by up to one tick; set
/// where the thread's switch-in was not seen.
pub const FLAG_CPU_BEHIND: u16 = 2;
/// [`Gap`] stands for every thread: two threads shared one slot.
pub const FLAG_GAP_ALL_THREADS: u16 = 4;
/// The task of a `TERMINATE` record is a closure of the blocking pool.
pub const FLAG_BLOCKING: u16 = 8;
/// [`OffCpu::waker`] is known.
pub const FLAG_WAKER: u16 = 16;
/// The wake came from an interrupt, or from what runs in its place: of no thread.
pub const FLAG_WOKEN_BY_INTERRUPT: u16 = 32;
/// The record of an accept queue is there for a connection that was queued.
pub const FLAG_ARRIVAL: u16 = 64;
/// The same, but at another listener of the port: which one, or whose, is not known.
pub const FLAG_UNRESOLVED: u16 = 128;
/// The listener closes.
pub const FLAG_CLOSED: u16 = 256;
/// The thread was off its CPU, but the kernel told one of the two switches only: since
/// when, or until when, is not known, and nothing but the thread and the time counts.
pub const FLAG_UNTOLD: u16 = 512;
/// The I/O of an `IO_END` became part of a request that was there before.
pub const FLAG_MERGED: u16 = 1024;
/// A file was synced as by `fdatasync`.
pub const FLAG_DATA_ONLY: u16 = 2048;
/// Position, in [`RecordHeader::flags`] of what a hit says of a task, of the number of
/// the object whose task it is: each object has a Tokio of its own, and that counts ids
/// and owners from 1.
pub const OBJECT_SHIFT: u32 = 8;

/// The first 16 bytes of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RecordHeader {
    /// Which record this is.
    pub kind: RecordKind,
    /// `FLAG_…` bits, and the object's number at [`OBJECT_SHIFT`].
    pub flags: u16,
    /// Thread id in the initial pid namespace; 0 where the hit is no thread's.
    pub tid: u32,
    /// `CLOCK_MONOTONIC`, ns.
    pub ts_ns: u64,
}

/// A thread enters a task's poll function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PollStart {
    /// Kind `POLL_START`.
    pub header: RecordHeader,
    /// Tokio's `task::Id`.
    pub task_id: u64,
    /// Stack pointer of the caller at its call instruction, bytes: equal to
    /// [`PollEnd::sp`] of the same poll.
    pub sp: u64,
    /// Index of the task vtable in the object's plan, or its run-time address under
    /// [`FLAG_VTABLE_ADDRESS`]; above it the depth of the worker's queue
    /// ([`crate::queue`]).
    pub vtable: u64,
}

/// A poll call returned (or a branch reached the same instruction: the
/// interpreter drops an end whose `sp` matches no open poll).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PollEnd {
    /// Kind `POLL_END`.
    pub header: RecordHeader,
    /// Stack pointer after the call, bytes.
    pub sp: u64,
}

/// A thread blocks on a future, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockOn {
    /// Kind `BLOCK_ON` or `BLOCK_ON_END`.
    pub header: RecordHeader,
    /// Stack pointer of the function that enters the runtime, bytes: equal at both.
    pub sp: u64,
}

/// A task was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TaskRecord {
    /// Kind `WAKE`.
    pub header: RecordHeader,
    /// Tokio's `task::Id`.
    pub task_id: u64,
}

/// A task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Terminate {
    /// Kind `TERMINATE`.
    pub header: RecordHeader,
    /// Tokio's `task::Id`.
    pub task_id: u64,
    /// Tokio's number of the list that the task was in, which is that of a runtime or
    /// of a `LocalSet` and never given twice (Tokio 1.22 to 1.54,
    /// `src/runtime/task/list.rs`); 0 where it is not known.
    pub owner: u64,
    /// Address of the `ArcInner` of the task's scheduler, where the scheduler is the
    /// first of the task's core (Tokio 1.24 to 1.54 without its feature `tracing`,
    /// `src/runtime/task/core.rs`); 0 where it is not known.
    pub scheduler: u64,
}

/// A task was bound to a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Spawn {
    /// Kind `SPAWN`; always with [`FLAG_VTABLE_ADDRESS`].
    pub header: RecordHeader,
    /// Tokio's `task::Id`.
    pub task_id: u64,
    /// Run-time address of the task's vtable.
    pub vtable: u64,
}

/// A worker parks or came back from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Park {
    /// Kind `PARK` or `UNPARK`.
    pub header: RecordHeader,
    /// CPU time of the thread since its start, ns.
    pub cpu_ns: u64,
    /// Address of the worker's core; 0 where it is not known, as at an `UNPARK`.
    pub core: u64,
    /// What may be the address of the worker's queue, with the depth ([`crate::queue`]);
    /// 0 where nothing is known.
    pub queue: u64,
}

/// Hits of one thread were lost: precedes the thread's next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Gap {
    /// Kind `GAP`; `ts_ns` is the time of the first lost hit.
    pub header: RecordHeader,
    /// Hits lost in this slot since its last record.
    pub lost: u64,
}

/// The target's last thread exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Exit {
    /// Kind `EXIT`; the thread is the last.
    pub header: RecordHeader,
    /// The process's status as `wait(2)` reports it.
    pub status: u64,
}

/// A thread gets a signal whose default action ends the process, and the target
/// has no handler for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Signal {
    /// Kind `SIGNAL`; the thread is the one that gets it.
    pub header: RecordHeader,
    /// The signal's number.
    pub number: u32,
    /// `si_code`: who sent it (man 2 sigaction).
    pub code: i32,
    /// `si_addr`, which means something in a fault only.
    pub address: u64,
}

/// A thread panics. The pieces of the file's name follow, with the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Panic {
    /// Kind `PANIC`.
    pub header: RecordHeader,
    /// Line of the `panic!`, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

/// A piece of a text. The pieces of one text have one time and follow each other
/// in the ring, but for other threads' records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Text {
    /// Kind `TEXT`; the flags say which piece this is ([`crate::text`]).
    pub header: RecordHeader,
    /// The text's bytes, as the target has them; 0 behind its end.
    pub bytes: [u8; PIECE_BYTES],
}

/// A thread was off its CPU and is on one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct OffCpu {
    /// Kind `OFF_CPU`; the time is that of the switch to the thread.
    pub header: RecordHeader,
    /// When the CPU switched away from it, `CLOCK_MONOTONIC`, ns.
    pub off_ns: u64,
    /// When it was woken, `CLOCK_MONOTONIC`, ns; 0 where that was not seen. It may lie a
    /// little before `off_ns`: a thread can be woken while it is about to sleep.
    pub wake_ns: u64,
    /// Its state when it left the CPU: bits of `task_struct.__state`
    /// (include/linux/sched.h), 0 where it could have run on.
    pub state: u32,
    /// The thread that woke it, under [`FLAG_WAKER`]; 0 otherwise.
    pub waker: u32,
}

/// The queue of connections that a listening TCP socket has not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AcceptQueue {
    /// Kind `ACCEPT_QUEUE`, of no thread; the flags say why it was read.
    pub header: RecordHeader,
    /// Cookie of the listener, which no other socket gets.
    pub cookie: u64,
    /// Number of its inode.
    pub inode: u64,
    /// Its address as on the wire: the first 4 bytes, or all of IPv6.
    pub address: [u64; 2],
    /// Connections queued since it is known and hits count.
    pub arrivals: u64,
    /// Connections in the queue: `sk_ack_backlog`.
    pub depth: u32,
    /// The queue is full when it has more: `sk_max_ack_backlog`.
    pub limit: u32,
    /// What the listener has dropped since it exists: `sk_drops`.
    pub drops: u32,
    /// Its port.
    pub port: u16,
    /// `AF_INET` or `AF_INET6`.
    pub family: u16,
}

/// A thread submits an I/O: so that it is known what the thread did then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct IoBegin {
    /// Kind `IO_BEGIN`.
    pub header: RecordHeader,
    /// Address of its `struct bio`, which may be another one's once this is done.
    pub bio: u64,
}

/// An I/O is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct IoEnd {
    /// Kind `IO_END`, of no thread: whoever an interrupt found ends it.
    pub header: RecordHeader,
    /// Address of its `struct bio`.
    pub bio: u64,
    /// When it was submitted, `CLOCK_MONOTONIC`, ns: the time of its `IO_BEGIN`.
    pub begin_ns: u64,
    /// When a driver got its request, `CLOCK_MONOTONIC`, ns; 0 where that was not seen.
    pub issue_ns: u64,
    /// Where on the disk, in 512 bytes.
    pub sector: u64,
    /// How much, bytes.
    pub bytes: u32,
    /// `bio.bi_opf`: operation and flags.
    pub operation: u32,
    /// The disk's major number.
    pub major: u32,
    /// Its first minor number.
    pub minor: u32,
    /// The thread that submitted it.
    pub submitter: u32,
    /// `bio.bi_status`; 0 where it did not fail.
    pub status: u32,
}

/// A file was synced, or could not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sync {
    /// Kind `SYNC`; the time is that of its end.
    pub header: RecordHeader,
    /// When it began, `CLOCK_MONOTONIC`, ns.
    pub begin_ns: u64,
    /// Number of the file's inode.
    pub inode: u64,
    /// Device of its file system, as the kernel has it: 20 bits of minor number.
    pub device: u32,
    /// The error, negative; 0 for none.
    pub error: i32,
}

const _: () = assert!(size_of::<RecordHeader>() == 16 && align_of::<RecordHeader>() == 8);
const _: () = assert!(size_of::<PollStart>() == 40);
const _: () = assert!(size_of::<PollEnd>() == 24);
const _: () = assert!(size_of::<BlockOn>() == 24);
const _: () = assert!(size_of::<TaskRecord>() == 24);
const _: () = assert!(size_of::<Terminate>() == 40);
const _: () = assert!(size_of::<Spawn>() == 32);
const _: () = assert!(size_of::<Park>() == 40);
const _: () = assert!(size_of::<Gap>() == 24);
const _: () = assert!(size_of::<Exit>() == 24);
const _: () = assert!(size_of::<Signal>() == 32);
const _: () = assert!(size_of::<Panic>() == 24);
const _: () = assert!(size_of::<Text>() == 40);
const _: () = assert!(size_of::<OffCpu>() == 40);
const _: () = assert!(size_of::<AcceptQueue>() == 72);
