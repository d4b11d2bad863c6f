//! The texts in `schemas/`: what each event and each record consists of.
//!
//! In: the wire structs and the record ABI. Out: one file for each event and
//! one for the records; the test fails when they are not what is committed.
//! Never: in the built library.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};

use dial9_bpf_abi::record::{
    BlockOn, Exit, Gap, OffCpu, Panic, Park, PollEnd, PollStart, RecordHeader, RecordKind, Signal,
    Spawn, TaskRecord, Terminate, Text,
};
use dial9_trace_format::TraceEvent;
use dial9_trace_format::schema::{FieldAnnotation, FieldDef};

use crate::event::{
    BlockOnEvent, BlockingTaskEvent, ClockSyncEvent, EvictionEvent, GapEvent, LossEvent,
    OffCpuEvent, PanicEvent, PollEndEvent, PollStartEvent, ProcessResourceUsageEvent,
    RuntimeMetricsEvent, SegmentMetadataEvent, TargetEndEvent, TaskSpawnEvent, TaskTerminateEvent,
    UnwrittenEvent, WakeEventEvent, WorkerParkEvent, WorkerUnparkEvent,
};

/// What an event means, and each of its fields.
type Meaning = (&'static str, &'static [(&'static str, &'static str)]);

const WORKER: (&str, &str) = (
    "worker_id",
    "dense from 0 for each target; 254 and 255 are skipped",
);
const TASK: (&str, &str) = ("task_id", "tokio::task::Id");
const TID: (&str, &str) = ("tid", "thread id in the initial pid namespace");
const QUEUE: (&str, &str) = (
    "local_queue",
    "0: not measured (metadata tokio.local_queue=false)",
);
const CPU: (&str, &str) = ("cpu_time_ns", "CPU time of the thread, ns; never falls");
const LOCATION: (&str, &str) = (
    "spawn_loc",
    "the task's type, or task@ and its vtable's offset",
);

const POLL_START: Meaning = (
    "dial9: a worker begins to poll a task",
    &[WORKER, QUEUE, TASK, LOCATION],
);
const POLL_END: Meaning = (
    "dial9: the worker's poll is over, or a gap hides the rest",
    &[WORKER],
);
const PARK: Meaning = (
    "dial9: a worker is about to park",
    &[WORKER, QUEUE, CPU, TID],
);
const UNPARK: Meaning = (
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
const SPAWN: Meaning = (
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
const TERMINATE: Meaning = (
    "dial9: a task completed, panicked or was cancelled",
    &[TASK],
);
const WAKE: Meaning = (
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
const RUNTIME_METRICS: Meaning = (
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
const CLOCK: Meaning = (
    "dial9: both clocks at one instant",
    &[("realtime_ns", "CLOCK_REALTIME, ns since 1970")],
);
const METADATA: Meaning = (
    "dial9: the segment as a whole; at its start, and in full at its seal",
    &[(
        "entries",
        "keys and values; see userspace/trace/src/metadata.rs",
    )],
);
const BLOCKING: Meaning = (
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
const BLOCK_ON: Meaning = (
    "ours: a thread has blocked on a future, by block_on; a span that ends here",
    &[
        ("duration_ns", "how long it was in the runtime, ns"),
        ("name", "block_on"),
        TID,
    ],
);
const LOSS: Meaning = (
    "ours: hits of one kind that one CPU lost by one cause; at the seal, where ever not 0",
    &[
        ("cpu", "the CPU"),
        ("kind", "kind of the missing records"),
        (
            "cause",
            "ring-full, no-ring, user-fault, slot-taken or late",
        ),
        ("lost", "hits lost in this segment"),
        ("total", "hits lost since attach"),
    ],
);
const EVICTION: Meaning = (
    "ours: a sealed segment was deleted to keep the spool's budget; at the next seal",
    &[("segment", "its index"), ("bytes", "size of its file")],
);
const UNWRITTEN: Meaning = (
    "ours: events of an interval could not be written; a span that ends here",
    &[
        ("duration_ns", "time since the first of them, ns"),
        ("events", "events not written"),
        ("cause", "the system's error"),
    ],
);
const GAP: Meaning = (
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
const OFF_CPU: Meaning = (
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
const USAGE: Meaning = (
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
            "switches of threads that waited; of threads that have ended, up to a tenth of a second before, and none of those that ended before the recording",
        ),
        (
            "involuntary_context_switches",
            "switches of threads that could have run on, as far as the others",
        ),
    ],
);
const PANIC: Meaning = (
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
const TARGET_END: Meaning = (
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

fn event<T: TraceEvent>((what, fields): Meaning) -> (PathBuf, String) {
    let schema = T::schema_entry();
    let mut text = format!("{}\n{what}\n\n", schema.name());
    let names: Vec<&str> = schema.fields().iter().map(FieldDef::name).collect();
    let told: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, told, "{}: each field has a meaning", schema.name());
    let mut row = |cells: [&str; 6]| {
        let [name, wire, unit, kind, role, meaning] = cells;
        writeln!(
            text,
            "{name:<15} {wire:<15} {unit:<5} {kind:<8} {role:<14} {meaning}"
        )
        .unwrap();
    };
    row(["field", "type", "unit", "kind", "role", "meaning"]);
    for (at, (field, (_, meaning))) in schema.fields().iter().zip(fields).enumerate() {
        let annotation = |key| {
            let here = |a: &&FieldAnnotation| usize::from(a.field_index()) == at && a.key() == key;
            schema
                .annotations()
                .iter()
                .find(here)
                .map_or("-", |annotation| annotation.value())
        };
        let wire = format!("{:?}", field.field_type());
        let (unit, kind) = (annotation("unit"), annotation("kind"));
        row([
            field.name(),
            &wire,
            unit,
            kind,
            annotation("dial9.role"),
            meaning,
        ]);
    }
    (format!("{}.txt", schema.name()).into(), text)
}

fn events() -> [(PathBuf, String); 20] {
    [
        event::<PollStartEvent>(POLL_START),
        event::<PollEndEvent>(POLL_END),
        event::<WorkerParkEvent>(PARK),
        event::<WorkerUnparkEvent>(UNPARK),
        event::<TaskSpawnEvent>(SPAWN),
        event::<TaskTerminateEvent>(TERMINATE),
        event::<WakeEventEvent>(WAKE),
        event::<RuntimeMetricsEvent>(RUNTIME_METRICS),
        event::<ClockSyncEvent>(CLOCK),
        event::<SegmentMetadataEvent>(METADATA),
        event::<BlockingTaskEvent>(BLOCKING),
        event::<BlockOnEvent>(BLOCK_ON),
        event::<LossEvent>(LOSS),
        event::<GapEvent>(GAP),
        event::<EvictionEvent>(EVICTION),
        event::<UnwrittenEvent>(UNWRITTEN),
        event::<OffCpuEvent>(OFF_CPU),
        event::<ProcessResourceUsageEvent>(USAGE),
        event::<PanicEvent>(PANIC),
        event::<TargetEndEvent>(TARGET_END),
    ]
}

/// A field of a record: name, offset, size, unit.
type Field = (&'static str, usize, usize, &'static str);

macro_rules! fields {
    ($record:ident { $($field:ident: $unit:expr),* $(,)? }) => {
        [$((
            stringify!($field),
            offset_of!($record, $field),
            // A pointer to a field, never read: its type gives the size.
            size_of_field(|record: &$record| &record.$field),
            $unit,
        )),*]
    };
}

fn size_of_field<R, F>(_: fn(&R) -> &F) -> usize {
    size_of::<F>()
}

fn record(text: &mut String, name: &str, bytes: usize, fields: &[Field]) {
    writeln!(text, "\n{name}, {bytes} bytes").unwrap();
    for (field, offset, size, unit) in fields {
        writeln!(text, "{offset:>6} {size:>4}  {field:<8} {unit}").unwrap();
    }
}

fn records() -> (PathBuf, String) {
    let mut text = String::from(
        "The records of the rings (bpf/abi/src/record.rs); integers in the machine's order.\n\
         Columns: offset and size in bytes, field, unit.\n\nkinds:",
    );
    let mut kinds = [&RecordKind::HITS[..], &[RecordKind::GAP]].concat();
    kinds.sort_unstable();
    for kind in kinds {
        write!(text, " {}={}", kind.0, kind.name().unwrap()).unwrap();
    }
    text.push('\n');
    let (id, stack) = ("tokio::task::Id", "stack pointer, bytes");
    let header = fields!(RecordHeader {
        kind: "see above",
        flags: "FLAG_ bits",
        tid: "thread id, initial pid namespace",
        ts_ns: "CLOCK_MONOTONIC, ns",
    });
    record(&mut text, "header", size_of::<RecordHeader>(), &header);
    let word = "index in the plan, or run-time address under flag 1";
    let head = "as above";
    let fields = fields!(PollStart {
        header: head,
        task_id: id,
        sp: stack,
        vtable: word
    });
    record(&mut text, "poll-start", size_of::<PollStart>(), &fields);
    let fields = fields!(PollEnd {
        header: head,
        sp: stack
    });
    record(&mut text, "poll-end", size_of::<PollEnd>(), &fields);
    let fields = fields!(BlockOn {
        header: head,
        sp: stack
    });
    let (name, bytes) = ("block-on, block-on-end", size_of::<BlockOn>());
    record(&mut text, name, bytes, &fields);
    let fields = fields!(TaskRecord {
        header: head,
        task_id: id
    });
    record(&mut text, "wake", size_of::<TaskRecord>(), &fields);
    let fields = fields!(Terminate {
        header: head,
        task_id: id,
        owner: "Tokio's number of the list of tasks, or 0",
        scheduler: "address of the scheduler's ArcInner, or 0"
    });
    record(&mut text, "terminate", size_of::<Terminate>(), &fields);
    let fields = fields!(Spawn {
        header: head,
        task_id: id,
        vtable: "run-time address"
    });
    record(&mut text, "spawn", size_of::<Spawn>(), &fields);
    let fields = fields!(Park {
        header: head,
        cpu_ns: "CPU time of the thread, ns"
    });
    record(&mut text, "park, unpark", size_of::<Park>(), &fields);
    let fields = fields!(Gap {
        header: head,
        lost: "hits lost since the thread's last record"
    });
    record(&mut text, "gap", size_of::<Gap>(), &fields);
    life_records(&mut text);
    ("record-layout.txt".into(), text)
}

fn life_records(text: &mut String) {
    let head = "as above";
    let fields = fields!(Exit {
        header: head,
        status: "as wait(2) reports it"
    });
    record(text, "exit", size_of::<Exit>(), &fields);
    let fields = fields!(Signal {
        header: head,
        number: "the signal's",
        code: "si_code",
        address: "si_addr"
    });
    record(text, "signal", size_of::<Signal>(), &fields);
    let fields = fields!(Panic {
        header: head,
        line: "from 1",
        column: "from 1"
    });
    record(text, "panic", size_of::<Panic>(), &fields);
    let fields = fields!(Text {
        header: head,
        bytes: "a piece of a text, by its flags (bpf/abi/src/text.rs)"
    });
    record(text, "text", size_of::<Text>(), &fields);
    let fields = fields!(OffCpu {
        header: head,
        off_ns: "CLOCK_MONOTONIC, ns",
        wake_ns: "CLOCK_MONOTONIC, ns; 0 where it was not seen",
        state: "task_struct.__state",
        waker: "its tid, or 0"
    });
    record(text, "off-cpu", size_of::<OffCpu>(), &fields);
}

#[test]
fn the_committed_schemas_are_what_is_written() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas");
    let bless = std::env::var_os("DIAL9_BPF_BLESS").is_some();
    for (name, text) in events().into_iter().chain([records()]) {
        let path = dir.join(&name);
        if bless {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == text,
            "schemas/{} differs: run `cargo xtask schemas --bless`\n{text}",
            name.display()
        );
    }
}
