//! The texts in `schemas/`: what each event and each record consists of.
//!
//! In: the wire structs and the record ABI. Out: one file for each event and
//! one for the records; the test fails when they are not what is committed.
//! Never: in the built library.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};

use dial9_bpf_abi::declared::Declared;
use dial9_bpf_abi::record::{
    AcceptQueue, BlockOn, Exit, Gap, IoBegin, IoEnd, OffCpu, Panic, Park, PollEnd, PollStart,
    RecordHeader, RecordKind, Signal, Spawn, Sync, TaskRecord, Terminate, Text,
};
use dial9_bpf_abi::stack::Stack;
use dial9_trace_format::TraceEvent;
use dial9_trace_format::schema::{FieldAnnotation, FieldDef};

use crate::wire::{
    BlockIoEvent, BlockOnEvent, BlockingTaskEvent, ClockSyncEvent, CpuSampleEvent, EvictionEvent,
    FileSyncEvent, GapEvent, KernelIoEvent, LossEvent, OffCpuEvent, PanicEvent, PollEndEvent,
    PollStartEvent, ProcessResourceUsageEvent, RuntimeMetricsEvent, SegmentMetadataEvent,
    SymbolTableEntry, TargetEndEvent, TaskSpawnEvent, TaskTerminateEvent, TcpAcceptQueueEvent,
    UnwrittenEvent, WakeEventEvent, WorkerParkEvent, WorkerUnparkEvent,
};

use meanings::{block_io::*, *};

mod meanings;

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

fn events() -> [(PathBuf, String); 26] {
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
        event::<CpuSampleEvent>(CPU_SAMPLE),
        event::<ProcessResourceUsageEvent>(USAGE),
        event::<TcpAcceptQueueEvent<'_>>(ACCEPT_QUEUE),
        event::<BlockIoEvent>(BLOCK_IO),
        event::<FileSyncEvent>(FILE_SYNC),
        event::<KernelIoEvent>(KERNEL_IO),
        event::<PanicEvent>(PANIC),
        event::<TargetEndEvent>(TARGET_END),
        event::<SymbolTableEntry>(SYMBOL),
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
    let word = "index in the plan, or run-time address under flag 1; above bit 48 depth + 1";
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
        cpu_ns: "CPU time of the thread, ns",
        core: "address of the worker's core, or 0",
        queue: "address of its queue, or 0; above bit 48 depth + 1"
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
    let fields = fields!(AcceptQueue {
        header: head,
        cookie: "of the listener",
        inode: "its number",
        address: "as on the wire; IPv4 in the first 4 bytes",
        arrivals: "connections queued",
        depth: "connections that wait",
        limit: "the queue is full above it",
        drops: "sk_drops",
        port: "in the machine's order",
        family: "AF_INET or AF_INET6"
    });
    record(text, "accept-queue", size_of::<AcceptQueue>(), &fields);
    let fields = fields!(Stack {
        header: head,
        ip: "of the user code",
        sp: "address of the first byte that is copied",
        bp: "of the user code",
        name: "of the thread, ends at the first 0",
        cpu: "the CPU",
        kernel_frames: "words that follow: return addresses in the kernel, leaf first",
        user_bytes: "bytes that follow those: the user stack from sp up",
        reserved: "0"
    });
    let name = "cpu-sample, off-cpu-stack, and what follows";
    record(text, name, size_of::<Stack>(), &fields);
    io_records(text);
}

fn io_records(text: &mut String) {
    let head = "as above";
    let fields = fields!(IoBegin {
        header: head,
        bio: "address of the struct bio"
    });
    record(text, "io-begin", size_of::<IoBegin>(), &fields);
    let fields = fields!(IoEnd {
        header: head,
        bio: "address of the struct bio",
        begin_ns: "CLOCK_MONOTONIC, ns",
        issue_ns: "CLOCK_MONOTONIC, ns; 0 where it was not seen",
        sector: "512 bytes",
        bytes: "how much",
        operation: "bi_opf",
        major: "of the disk",
        minor: "its first",
        submitter: "its tid",
        status: "bi_status"
    });
    record(text, "io-end", size_of::<IoEnd>(), &fields);
    let fields = fields!(Sync {
        header: head,
        begin_ns: "CLOCK_MONOTONIC, ns",
        inode: "its number",
        device: "of its file system: dev_t as in the kernel",
        error: "negative, or 0"
    });
    record(text, "sync", size_of::<Sync>(), &fields);
    let fields = fields!(Declared {
        header: head,
        sp: "of calls and returns: at the function's begin",
        definition: "index",
        present: "bit 0: the first field was read",
        field_count: "fields",
        bytes: "of all fields that have some; they follow, up to a multiple of 8",
        fields: "numbers, and lengths of bytes"
    });
    record(text, "declared", size_of::<Declared>(), &fields);
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
