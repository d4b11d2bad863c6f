//! What each event and each of its fields means, in the words of `schemas/`.
//!
//! In: nothing. Out: texts. Never: in the built library.

pub(super) mod block_io;

/// What an event means, and each of its fields.
pub(super) type Meaning = (&'static str, &'static [(&'static str, &'static str)]);

const WORKER: (&str, &str) = (
    "worker_id",
    "dense from 0 for each target; 254 and 255 are skipped",
);
const TASK: (&str, &str) = ("task_id", "tokio::task::Id");
const TID: (&str, &str) = ("tid", "thread id in the initial pid namespace");
const QUEUE: (&str, &str) = (
    "local_queue",
    "tasks in the worker's queue; 0 where not measured (metadata tokio.local_queue=false)",
);
const CPU: (&str, &str) = ("cpu_time_ns", "CPU time of the thread, ns; never falls");
const LOCATION: (&str, &str) = (
    "spawn_loc",
    "where the task is spawned, else its type, else task@ and its vtable's offset",
);

pub(super) const POLL_START: Meaning = (
    "dial9: a worker begins to poll a task",
    &[WORKER, QUEUE, TASK, LOCATION],
);
pub(super) const POLL_END: Meaning = (
    "dial9: the worker's poll is over, or a gap hides the rest",
    &[WORKER],
);
pub(super) const PARK: Meaning = (
    "dial9: a worker is about to park",
    &[WORKER, QUEUE, CPU, TID],
);
pub(super) const UNPARK: Meaning = (
    "dial9: a worker came back from a park",
    &[
        WORKER,
        QUEUE,
        CPU,
        (
            "sched_wait_ns",
            "time in which the thread could have run and did not since the park, ns; absent: not measured",
        ),
        TID,
    ],
);
pub(super) const SPAWN: Meaning = (
    "dial9: a task exists; once for each task and segment, with the task's own time",
    &[
        TASK,
        LOCATION,
        ("instrumented", "true: the task's wakes are recorded"),
        (
            "worker_id",
            "the worker that spawned it; absent elsewhere and in later segments",
        ),
        (
            "first_sighting",
            "ours: the time is that of the task's first record, not of its spawn",
        ),
    ],
);
pub(super) const TERMINATE: Meaning = (
    "dial9: a task completed, panicked or was cancelled",
    &[TASK],
);
pub(super) const WAKE: Meaning = (
    "dial9: a task was woken",
    &[
        (
            "waker_task_id",
            "task in whose poll the wake was issued; 0 outside polls",
        ),
        ("woken_task_id", "tokio::task::Id"),
        (
            "target_worker",
            "worker that issued the wake; 255 for none and for ids above 253",
        ),
    ],
);
pub(super) const RUNTIME_METRICS: Meaning = (
    "dial9: a runtime's counters, as Tokio keeps them; of all runtimes at one time, every 10 ms",
    &[
        (
            "runtime_name",
            "tokio-N, N as in metadata runtime.tokio-N; the workers of a single runtime are under runtime.tokio",
        ),
        (
            "global_queue_depth",
            "tasks in the queue that all workers share",
        ),
        ("alive_tasks", "tasks that have not ended"),
    ],
);
pub(super) const CLOCK: Meaning = (
    "dial9: both clocks at one instant",
    &[("realtime_ns", "CLOCK_REALTIME, ns since 1970")],
);
pub(super) const METADATA: Meaning = (
    "dial9: the segment as a whole; at its start, and in full at its seal",
    &[(
        "entries",
        "keys and values; see userspace/trace/src/metadata.rs",
    )],
);
pub(super) const BLOCKING: Meaning = (
    "ours: a closure of the blocking pool ran to its end; a span that ends here",
    &[
        ("duration_ns", "how long it ran, ns"),
        (
            "name",
            "the closure's type, or task@ and its vtable's offset",
        ),
        TID,
        TASK,
        (
            "worker_id",
            "the worker that its thread was meanwhile; absent for all but a worker's loop \
             and closures that run a runtime of their own",
        ),
    ],
);
pub(super) const BLOCK_ON: Meaning = (
    "ours: a thread has blocked on a future, by block_on; a span that ends here",
    &[
        ("duration_ns", "how long it was in the runtime, ns"),
        ("name", "block_on"),
        TID,
    ],
);
pub(super) const LOSS: Meaning = (
    "ours: hits of one kind that one CPU lost by one cause; at the seal, where ever not 0",
    &[
        ("cpu", "the CPU"),
        ("kind", "kind of the missing records"),
        (
            "cause",
            "ring-full, no-ring, user-fault, slot-taken, table-full, unseen or late",
        ),
        ("lost", "hits lost in this segment"),
        ("total", "hits lost since attach"),
    ],
);
pub(super) const EVICTION: Meaning = (
    "ours: a sealed segment was deleted to keep the spool's budget; at the next seal",
    &[("segment", "its index"), ("bytes", "size of its file")],
);
pub(super) const UNWRITTEN: Meaning = (
    "ours: events of an interval could not be written; a span that ends here",
    &[
        ("duration_ns", "time since the first of them, ns"),
        ("events", "events not written"),
        ("cause", "the system's error"),
    ],
);
pub(super) const GAP: Meaning = (
    "ours: a thread lost hits; a span from the first of them to its next record, here",
    &[
        ("duration_ns", "time since the first lost hit, ns"),
        TID,
        (
            "lost",
            "hits lost; 0 where another thread's gap may be this one's too",
        ),
    ],
);
pub(super) const OFF_CPU: Meaning = (
    "ours: a thread was off its CPU; a span that ends when it is on one again",
    &[
        ("duration_ns", "time since it left, ns"),
        (
            "name",
            "why it left: preempted (or it yielded), blocked, blocked and uninterruptible, stopped",
        ),
        TID,
        (
            "worker_id",
            "the worker that the thread is; absent for others",
        ),
        (
            "task_id",
            "tokio::task::Id of what it was polling; absent outside polls seen to begin",
        ),
        (
            "wait_ns",
            "the part in which it could have run, ns: since its wake, or all of it; absent where the wake was not seen",
        ),
        (
            "waker_tid",
            "thread that woke it by a system call, or a thread of the kernel; absent for interrupts",
        ),
        (
            "woken_by_interrupt",
            "a timer, a device or the network woke it; absent where the wake was not seen",
        ),
    ],
);
pub(super) const ACCEPT_QUEUE: Meaning = (
    "dial9: how many connections wait to be accepted at a listener; of each in 10 ms the first, the fullest and the last",
    &[
        (
            "socket_cookie",
            "the listener's; no other socket of the machine gets it",
        ),
        ("socket_inode", "as in /proc/PID/fd"),
        ("ip_version", "4 or 6"),
        ("local_addr", "its address"),
        ("local_port", "its port"),
        ("pending_connections", "established, and not accepted yet"),
        ("backlog_limit", "the queue is full when it has more"),
        (
            "arrivals",
            "ours: connections queued since the recording, or the listener, began; those less the change of pending_connections were accepted",
        ),
        (
            "drops",
            "ours: what the kernel has dropped at the listener since it exists, as ss tells it",
        ),
        (
            "why",
            "ours: arrival of a connection, reading at a time, closed",
        ),
    ],
);
pub(super) const USAGE: Meaning = (
    "dial9: what the process has used since it began, ten times a second",
    &[
        (
            "user_cpu_ns",
            "CPU time in user mode, ns: the exact sum of both, divided as the kernel's ticks are",
        ),
        ("system_cpu_ns", "CPU time in the kernel, ns"),
        ("max_rss_bytes", "most memory resident so far"),
        ("minor_faults", "page faults without I/O"),
        ("major_faults", "page faults with I/O"),
        ("block_input_ops", "blocks of 512 bytes read from storage"),
        (
            "block_output_ops",
            "blocks of 512 bytes written to storage or to the cache before it",
        ),
        (
            "voluntary_context_switches",
            "switches of threads that waited; read once a second: of threads that have ended, up to a second before, and none of those that ended before the recording",
        ),
        (
            "involuntary_context_switches",
            "switches of threads that could have run on, as far as the others",
        ),
    ],
);
pub(super) const CPU_SAMPLE: Meaning = (
    "dial9: where a thread was: one tick of the profile, or one wait inside a poll",
    &[
        (
            "worker_id",
            "the worker that the thread is; 255 for others and where that is not known",
        ),
        TID,
        (
            "source",
            "0: the profile's clock ticked while the thread ran; 1: it left its CPU to wait, inside a poll",
        ),
        (
            "thread_name",
            "of the thread at that moment; absent where it has none",
        ),
        (
            "callchain",
            "leaf first, frames of the kernel before those of the user code; of the user code's all but the leaf are return addresses less 1",
        ),
        ("cpu", "the CPU that it was on"),
    ],
);
pub(super) const PANIC: Meaning = (
    "ours: a thread panicked, also where the panic was caught; a panic that is resumed is one more",
    &[
        TID,
        (
            "worker_id",
            "the worker, if the thread was polling a task of the runtime",
        ),
        (
            "task_id",
            "tokio::task::Id of what the thread was polling; absent outside polls seen to begin",
        ),
        (
            "file",
            "source file of the panic; absent without symbols, of a panic that is resumed, and if lost",
        ),
        (
            "line",
            "line, from 1; absent as the file, but not lost with it",
        ),
        ("column", "column, from 1; absent as the line"),
        (
            "message",
            "the payload, if it is a text and the panic unwinds; absent in panic=abort builds",
        ),
        (
            "message_cut",
            "the message goes on: only its first 504 bytes are copied",
        ),
    ],
);
pub(super) const TARGET_END: Meaning = (
    "ours: how the target ended; at its last thread's exit",
    &[
        ("exit_code", "absent where a signal ended it"),
        ("signal", "number of the signal that ended it"),
        ("signal_name", "absent for real-time signals"),
        ("core_dumped", "whether a core was written"),
        (
            "tid",
            "thread that got the signal; absent where the signal was the process's, as kill -9",
        ),
        (
            "fault_address",
            "address whose access failed, of signals that stand for a fault",
        ),
        (
            "panic_file",
            "of the panic that this thread had not got over; absent without one",
        ),
        ("panic_line", "as above"),
        ("panic_column", "as above"),
        ("panic_message", "as above"),
    ],
);
pub(super) const SYMBOL: Meaning = (
    "dial9: a function at an address of the callchains, added after the seal; no time",
    &[
        ("addr", "the address, as the callchains have it"),
        ("size", "0: not told"),
        (
            "symbol_name",
            "demangled; an address of which no symbol is known has no event",
        ),
        (
            "inline_depth",
            "0: the function whose code it is; higher: inlined into the one before",
        ),
        (
            "source_file",
            "path, by the debug information; empty where there is none",
        ),
        ("source_line", "from 1; 0 where it is not known"),
    ],
);
