//! The events of a trace on the wire.
//!
//! In: nothing. Out: structs whose schema names, field names and field order are dial9's
//! where dial9 has the event. Never: a field on a hot event that dial9 does not read:
//! those bytes are paid millions of times.
//!
//! Times are `CLOCK_MONOTONIC` in ns. Task ids are Tokio's `task::Id`.

use dial9_trace_format::{InternedStackFrames, InternedString, TraceEvent};

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
    /// dial9: before each poll. `local_queue` is 0 where it was not measured.
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
    /// dial9: a runtime's counters; all runtimes of a cycle have one time.
    RuntimeMetricsEvent {
        runtime_name: InternedString,
        global_queue_depth: u32,
        alive_tasks: u32,
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
        worker_id: Option<u64>,
    }
}
wire! {
    /// Ours: a call of `block_on`, as a span that ends here.
    BlockOnEvent {
        #[traceevent(unit = "ns", role = "span.duration")]
        duration_ns: u64,
        #[traceevent(role = "span.name")]
        name: InternedString,
        #[traceevent(role = "thread_id")]
        tid: u32,
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
wire! {
    /// Ours: a panic, at the time before its hook.
    PanicEvent {
        #[traceevent(role = "thread_id")]
        tid: u32,
        worker_id: Option<u64>,
        task_id: Option<u64>,
        file: Option<InternedString>,
        line: Option<u32>,
        column: Option<u32>,
        message: Option<InternedString>,
        message_cut: bool,
    }
}
wire! {
    /// Ours: a thread was off its CPU, as a span that ends here.
    OffCpuEvent {
        #[traceevent(unit = "ns", role = "span.duration")]
        duration_ns: u64,
        #[traceevent(role = "span.name")]
        name: InternedString,
        #[traceevent(role = "thread_id")]
        tid: u32,
        #[traceevent(role = "tokio.worker_id")]
        worker_id: Option<u64>,
        #[traceevent(role = "tokio.task_id")]
        task_id: Option<u64>,
        #[traceevent(unit = "ns")]
        wait_ns: Option<u64>,
        waker_tid: Option<u32>,
        woken_by_interrupt: Option<bool>,
    }
}
wire! {
    /// Ours: a block I/O of the target, as a span that ends here.
    BlockIoEvent {
        #[traceevent(unit = "ns", role = "span.duration")]
        duration_ns: u64,
        #[traceevent(role = "span.name")]
        name: InternedString,
        #[traceevent(role = "thread_id")]
        tid: u32,
        #[traceevent(role = "tokio.worker_id")]
        worker_id: Option<u64>,
        #[traceevent(role = "tokio.task_id")]
        task_id: Option<u64>,
        device: InternedString,
        sector: u64,
        #[traceevent(unit = "bytes")]
        bytes: u64,
        #[traceevent(unit = "ns")]
        queue_ns: Option<u64>,
        sync: bool,
        metadata: bool,
        readahead: bool,
        preflush: bool,
        fua: bool,
        merged: bool,
        error: Option<u32>,
    }
}
wire! {
    /// Ours: a thread has waited for a file to be synced, as a span that ends here.
    FileSyncEvent {
        #[traceevent(unit = "ns", role = "span.duration")]
        duration_ns: u64,
        #[traceevent(role = "span.name")]
        name: InternedString,
        #[traceevent(role = "thread_id")]
        tid: u32,
        #[traceevent(role = "tokio.worker_id")]
        worker_id: Option<u64>,
        #[traceevent(role = "tokio.task_id")]
        task_id: Option<u64>,
        device: InternedString,
        inode: u64,
        error: Option<u32>,
    }
}
wire! {
    /// Ours: block I/O of the kernel's own threads, whoever it is for.
    KernelIoEvent {
        #[traceevent(kind = "counter")]
        reads: u64,
        #[traceevent(unit = "bytes", kind = "counter")]
        read_bytes: u64,
        #[traceevent(kind = "counter")]
        writes: u64,
        #[traceevent(unit = "bytes", kind = "counter")]
        write_bytes: u64,
        #[traceevent(kind = "counter")]
        others: u64,
        #[traceevent(unit = "bytes", kind = "counter")]
        other_bytes: u64,
    }
}
wire! {
    /// dial9: what the process has used.
    ProcessResourceUsageEvent {
        #[traceevent(unit = "ns", kind = "counter")]
        user_cpu_ns: u64,
        #[traceevent(unit = "ns", kind = "counter")]
        system_cpu_ns: u64,
        #[traceevent(unit = "bytes", kind = "gauge")]
        max_rss_bytes: u64,
        #[traceevent(kind = "counter")]
        minor_faults: u64,
        #[traceevent(kind = "counter")]
        major_faults: u64,
        #[traceevent(kind = "counter")]
        block_input_ops: u64,
        #[traceevent(kind = "counter")]
        block_output_ops: u64,
        #[traceevent(kind = "counter")]
        voluntary_context_switches: u64,
        #[traceevent(kind = "counter")]
        involuntary_context_switches: u64,
    }
}
wire! {
    /// dial9: how many connections wait at a listener; `arrivals`, `drops` and `why` are
    /// ours.
    TcpAcceptQueueEvent<'a> {
        socket_cookie: u64,
        socket_inode: u64,
        ip_version: u8,
        local_addr: &'a str,
        local_port: u16,
        #[traceevent(kind = "gauge")]
        pending_connections: u32,
        backlog_limit: u32,
        #[traceevent(kind = "counter")]
        arrivals: u64,
        #[traceevent(kind = "counter")]
        drops: u64,
        why: InternedString,
    }
}
wire! {
    /// dial9: where a thread was when the profile's clock ticked (`source` 0), or when it
    /// left its CPU (1).
    CpuSampleEvent {
        worker_id: u64,
        tid: u32,
        source: u8,
        thread_name: Option<InternedString>,
        callchain: InternedStackFrames,
        cpu: Option<u64>,
    }
}
wire! {
    /// Ours: how the target ended.
    TargetEndEvent {
        exit_code: Option<u8>,
        signal: Option<u8>,
        signal_name: Option<InternedString>,
        core_dumped: Option<bool>,
        tid: Option<u32>,
        fault_address: Option<u64>,
        panic_file: Option<InternedString>,
        panic_line: Option<u32>,
        panic_column: Option<u32>,
        panic_message: Option<InternedString>,
    }
}
wire! {
    /// dial9: a function at an address of the callchains; it has no time.
    SymbolTableEntry {
        addr: u64,
        size: u64,
        symbol_name: InternedString,
        inline_depth: u64,
        source_file: InternedString,
        source_line: u64,
    }
}
