//! The events of a trace, in memory; `wire` has them as they are written.
//!
//! In: nothing. Out: [`Event`], what the interpreter says. Never: a text: names and
//! messages are ids.
//!
//! Times are `CLOCK_MONOTONIC` in ns. Task ids are Tokio's `task::Id`.

use std::fmt;

pub use crate::block_io::{BlockIo, Device, Operation, Synced};
pub use crate::interpret::accept_queue::{AcceptQueue, Why};
pub use crate::metrics::{KernelIo, ResourceUsage, RuntimeMetrics, Sample};
pub use crate::stacks::{CpuSample, Moment, ThreadName};

use crate::location::LocationId;
use crate::texts::TextId;

/// One event, before encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker begins to poll a task.
    PollStart {
        /// When.
        ts_ns: u64,
        /// The polling worker.
        worker: u32,
        /// The polled task.
        task_id: u64,
        /// The task's type.
        location: LocationId,
        /// Tasks in the worker's queue then; `None` where that was not measured.
        queued: Option<u32>,
    },
    /// The worker's poll is over.
    PollEnd {
        /// When.
        ts_ns: u64,
        /// The polling worker.
        worker: u32,
    },
    /// A worker is about to park.
    Park(ParkEvent),
    /// A worker came back from a park.
    Unpark(ParkEvent),
    /// A task exists: bound to a runtime, or seen for the first time.
    Spawn {
        /// When it was spawned, or first seen.
        ts_ns: u64,
        /// The task.
        task_id: u64,
        /// Its type.
        location: LocationId,
        /// The worker that spawned it.
        worker: Option<u32>,
        /// Whether the time is that of the first record rather than the spawn.
        first_sighting: bool,
    },
    /// A task completed, panicked or was cancelled.
    Terminate {
        /// When.
        ts_ns: u64,
        /// The task.
        task_id: u64,
    },
    /// A task was woken.
    Wake {
        /// When.
        ts_ns: u64,
        /// The task in whose poll the wake was issued; 0 outside polls.
        waker: u64,
        /// The woken task.
        woken: u64,
        /// The worker that issued the wake; [`NO_WORKER`] for none.
        target_worker: u8,
    },
    /// A closure of the blocking pool ran to its end.
    Blocking {
        /// When it ended.
        ts_ns: u64,
        /// How long it ran.
        duration_ns: u64,
        /// Its type.
        location: LocationId,
        /// The thread that ran it.
        tid: u32,
        /// The task.
        task_id: u64,
        /// The worker that its thread was meanwhile: it is a worker's loop, or runs a
        /// runtime of its own.
        worker: Option<u32>,
    },
    /// A thread has blocked on a future.
    BlockOn {
        /// When it left the runtime.
        ts_ns: u64,
        /// How long it was in it.
        duration_ns: u64,
        /// The thread.
        tid: u32,
    },
    /// Hits of a thread were lost in an interval.
    Gap {
        /// Time of the thread's next record.
        ts_ns: u64,
        /// Time since the first lost hit.
        duration_ns: u64,
        /// The thread.
        tid: u32,
        /// Hits lost.
        lost: u64,
    },
    /// A runtime's counters.
    RuntimeMetrics(RuntimeMetrics),
    /// A thread panicked.
    Panic(Panicked),
    /// A thread was off its CPU.
    OffCpu(Absence),
    /// Where a thread was. Its frames are those that [`crate::location::Locations`] has at
    /// this moment.
    CpuSample(CpuSample),
    /// How many connections wait at a listener.
    AcceptQueue(AcceptQueue),
    /// What the target has used.
    Usage(ResourceUsage),
    /// A block I/O of the target.
    BlockIo(BlockIo),
    /// A thread has waited for a file to be synced.
    Synced(Synced),
    /// What the kernel's own threads have submitted.
    KernelIo(KernelIo),
    /// A declared probe was hit. Its values are those that
    /// [`crate::location::Locations`] has at this moment.
    Declared(DeclaredHit),
    /// The target ended.
    TargetEnd(TargetEnd),
}

impl Event {
    /// When; for a span, its end.
    #[inline]
    pub fn ts_ns(&self) -> u64 {
        match *self {
            Self::PollStart { ts_ns, .. }
            | Self::PollEnd { ts_ns, .. }
            | Self::Park(ParkEvent { ts_ns, .. })
            | Self::Unpark(ParkEvent { ts_ns, .. })
            | Self::Spawn { ts_ns, .. }
            | Self::Terminate { ts_ns, .. }
            | Self::Wake { ts_ns, .. }
            | Self::Blocking { ts_ns, .. }
            | Self::BlockOn { ts_ns, .. }
            | Self::Gap { ts_ns, .. }
            | Self::RuntimeMetrics(RuntimeMetrics { ts_ns, .. })
            | Self::Panic(Panicked { ts_ns, .. })
            | Self::OffCpu(Absence { ts_ns, .. })
            | Self::CpuSample(CpuSample { ts_ns, .. })
            | Self::AcceptQueue(AcceptQueue { ts_ns, .. })
            | Self::Usage(ResourceUsage { ts_ns, .. })
            | Self::BlockIo(BlockIo { ts_ns, .. })
            | Self::Synced(Synced { ts_ns, .. })
            | Self::KernelIo(KernelIo { ts_ns, .. })
            | Self::Declared(DeclaredHit { ts_ns, .. })
            | Self::TargetEnd(TargetEnd { ts_ns, .. }) => ts_ns,
        }
    }
}

/// A worker at a park.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkEvent {
    /// When.
    pub ts_ns: u64,
    /// The worker.
    pub worker: u32,
    /// CPU time of its thread, ns; never less than before.
    pub cpu_ns: u64,
    /// Its thread.
    pub tid: u32,
    /// Of an unpark: how long the thread could have run and did not since the park, ns;
    /// `None` where that is not known.
    pub wait_ns: Option<u64>,
    /// Tasks in the worker's queue then; `None` where that was not measured.
    pub queued: Option<u32>,
}

/// A hit of a declared probe, or a call from its begin to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredHit {
    /// When; of a call, when it returned.
    pub ts_ns: u64,
    /// Which event, by its place among the declarations.
    pub event: usize,
    /// How long a call took, ns.
    pub duration_ns: Option<u64>,
}

/// An interval in which a thread was off its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// When the thread was on a CPU again.
    pub ts_ns: u64,
    /// Time since it left the last one, ns.
    pub duration_ns: u64,
    /// The thread.
    pub tid: u32,
    /// Why it left.
    pub why: Off,
    /// The part of that time in which it could have run, ns; `None` where its wake was
    /// not seen.
    pub wait_ns: Option<u64>,
    /// Who woke it.
    pub woken_by: Option<Waker>,
    /// The worker that it is.
    pub worker: Option<u32>,
    /// The task that it polls; 0 outside polls.
    pub task_id: u64,
}

/// Why a thread leaves its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// Another thread runs in its place, also after `sched_yield`.
    Preempted,
    /// It waits, and a signal may end that.
    Blocked,
    /// It waits in the kernel and no signal can end that, as for a disk.
    Uninterruptible,
    /// A signal or a debugger has stopped it.
    Stopped,
}

impl Off {
    /// Every reason, in the order of its number.
    pub(crate) const ALL: [Self; 4] = [
        Self::Preempted,
        Self::Blocked,
        Self::Uninterruptible,
        Self::Stopped,
    ];

    /// From `task_struct.__state` (include/linux/sched.h, 5.10 to 6.18).
    pub(crate) const fn of_state(state: u32) -> Self {
        const UNINTERRUPTIBLE: u32 = 2;
        const STOPPED_OR_TRACED: u32 = 4 | 8;
        if state == 0 {
            Self::Preempted
        } else if state & STOPPED_OR_TRACED != 0 {
            Self::Stopped
        } else if state & UNINTERRUPTIBLE != 0 {
            Self::Uninterruptible
        } else {
            Self::Blocked
        }
    }

    /// The interval's name in the trace.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Preempted => "off-CPU: preempted",
            Self::Blocked => "off-CPU: blocked",
            Self::Uninterruptible => "off-CPU: blocked, uninterruptible",
            Self::Stopped => "off-CPU: stopped",
        }
    }
}

/// Who wakes a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waker {
    /// A thread, of this or of another process, by a system call; or one of the kernel's.
    Thread(u32),
    /// An interrupt: a timer, a device, or the network; no thread is known to be behind it.
    Interrupt,
}

/// A panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked {
    /// When; before the panic's hook.
    pub ts_ns: u64,
    /// The thread.
    pub tid: u32,
    /// The task that it polled; 0 outside polls.
    pub task_id: u64,
    /// The worker that polled it; `None` for a closure of the blocking pool.
    pub worker: Option<u32>,
    /// Where.
    pub at: PanicPlace,
    /// The message, where it is a text.
    pub message: Option<TextId>,
    /// Whether the message goes on.
    pub is_message_cut: bool,
}

/// Where a panic happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PanicPlace {
    /// Path of the source file.
    pub file: Option<TextId>,
    /// Line, from 1; 0 where it is not known.
    pub line: u32,
    /// Column, from 1; 0 where it is not known.
    pub column: u32,
}

/// The target's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetEnd {
    /// When its last thread exited.
    pub ts_ns: u64,
    /// How.
    pub how: Ended,
    /// The thread that got the signal, where the signal was one thread's.
    pub tid: Option<u32>,
    /// The address of a fault.
    pub fault_address: Option<u64>,
    /// Where that thread was panicking, and with which message.
    pub panic: Option<(PanicPlace, Option<TextId>)>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited.
    Exit {
        /// With this code.
        code: u8,
    },
    /// A signal ended it.
    Signal {
        /// The signal's number.
        number: u8,
        /// Whether a core was written.
        is_core_dumped: bool,
    },
}

impl Ended {
    /// From a status as `wait(2)` reports it.
    pub(crate) fn of_status(status: u64) -> Self {
        let [low, code, ..] = status.to_le_bytes();
        match low & 0x7f {
            0 => Self::Exit { code },
            number => Self::Signal {
                number,
                is_core_dumped: low & 0x80 != 0,
            },
        }
    }
}

impl TargetEnd {
    /// Whether a signal ended it that nobody sends to stop a service: not `SIGHUP`,
    /// `SIGINT` or `SIGTERM`.
    pub fn is_crash(&self) -> bool {
        matches!(self.how, Ended::Signal { number, .. } if ![1, 2, 15].contains(&number))
    }
}

impl fmt::Display for TargetEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.how {
            Ended::Exit { code } => write!(f, "exit code {code}")?,
            Ended::Signal { number, .. } => write!(f, "signal {number}")?,
        }
        if let Ended::Signal { number, .. } = self.how
            && let Some(name) = signal_name(number)
        {
            write!(f, " ({name})")?;
        }
        self.tid.map_or(Ok(()), |tid| write!(f, ", thread {tid}"))
    }
}

/// The name of a signal that can end a process (include/uapi/asm-generic/signal.h,
/// as on x86-64).
pub(crate) const fn signal_name(number: u8) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        16 => "SIGSTKFLT",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        26 => "SIGVTALRM",
        27 => "SIGPROF",
        29 => "SIGIO",
        30 => "SIGPWR",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// [`Event::Wake`]'s worker when the waking thread is none.
pub const NO_WORKER: u8 = 255;
