//! The events of a trace, in memory and on the wire.
//!
//! In: nothing. Out: [`Event`], what the interpreter says; and the wire
//! structs, whose schema names, field names and field order are dial9's where
//! dial9 has the event. Never: a field on a hot event that dial9 does not
//! read: those bytes are paid millions of times.
//!
//! Times are `CLOCK_MONOTONIC` in ns. Task ids are Tokio's `task::Id`.

use dial9_trace_format::{InternedString, TraceEvent};

use crate::location::LocationId;

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
            | Self::Gap { ts_ns, .. } => ts_ns,
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
}

/// [`Event::Wake`]'s worker when the waking thread is none.
pub const NO_WORKER: u8 = 255;

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident $(<$l:lifetime>)? { $($(#[$m:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(TraceEvent)]
        #[traceevent(wire_slot)]
        pub(crate) struct $name $(<$l>)? {
            #[traceevent(timestamp)]
            pub(crate) ts_ns: u64,
            $($(#[$m])* pub(crate) $field: $type,)*
        }
    };
}

wire! {
    /// dial9: before each poll. `local_queue` is not measured and 0.
    PollStartEvent {
        worker_id: u64,
        local_queue: u8,
        task_id: u64,
        spawn_loc: InternedString,
    }
}
wire! {
    /// dial9: after the poll.
    PollEndEvent {
        worker_id: u64,
    }
}
wire! {
    /// dial9: a worker is about to park.
    WorkerParkEvent {
        worker_id: u64,
        local_queue: u8,
        cpu_time_ns: u64,
        tid: u32,
    }
}
wire! {
    /// dial9: a worker came back from a park.
    WorkerUnparkEvent {
        worker_id: u64,
        local_queue: u8,
        cpu_time_ns: u64,
        sched_wait_ns: Option<u64>,
        tid: u32,
    }
}
wire! {
    /// dial9: a task exists; `first_sighting` is ours.
    TaskSpawnEvent {
        task_id: u64,
        spawn_loc: InternedString,
        instrumented: bool,
        worker_id: Option<u64>,
        first_sighting: bool,
    }
}
wire! {
    /// dial9: a task's end.
    TaskTerminateEvent {
        task_id: u64,
    }
}
wire! {
    /// dial9: a wake; `target_worker` is the worker that issued it.
    WakeEventEvent {
        waker_task_id: u64,
        woken_task_id: u64,
        target_worker: u8,
    }
}
wire! {
    /// dial9: the wall clock at this time.
    ClockSyncEvent {
        realtime_ns: u64,
    }
}
wire! {
    /// dial9: what is known about the segment as a whole.
    SegmentMetadataEvent {
        entries: Vec<(String, String)>,
    }
}
wire! {
    /// Ours: a closure of the blocking pool, as a span that ends here.
    BlockingTaskEvent {
        #[traceevent(unit = "ns", role = "span.duration")]
        duration_ns: u64,
        #[traceevent(role = "span.name")]
        name: InternedString,
        #[traceevent(role = "thread_id")]
        tid: u32,
        task_id: u64,
    }
}
wire! {
    /// Ours: hits of one kind that a CPU lost by one cause.
    LossEvent {
        cpu: u32,
        kind: InternedString,
        cause: InternedString,
        lost: u64,
        #[traceevent(kind = "counter")]
        total: u64,
    }
}
wire! {
    /// Ours: an interval in which a thread lost hits, as a span that ends here.
    GapEvent {
        #[traceevent(unit = "ns", role = "span.duration")]
        duration_ns: u64,
        #[traceevent(role = "thread_id")]
        tid: u32,
        lost: u64,
    }
}
wire! {
    /// Ours: a sealed segment that left the spool unread, to keep its budget.
    EvictionEvent {
        segment: u64,
        #[traceevent(unit = "bytes")]
        bytes: u64,
    }
}
wire! {
    /// Ours: an interval whose events could not be written, as a span that
    /// ends here.
    UnwrittenEvent {
        #[traceevent(unit = "ns", role = "span.duration")]
        duration_ns: u64,
        events: u64,
        cause: InternedString,
    }
}
