//! From rings to compressed segments on the disk, at a steady rate.
//!
//! `cargo bench -p dial9-bpf --bench disk -- --dump FILE`: FILE is a [record
//! dump](dial9_bpf_trace::dump). A producer on the same CPUs stamps its records
//! and puts them into rings of the recorder's usual size, as many a second as
//! the target says; this thread does what the recording thread does. The line,
//! the dispatch and the courier are the command's own.
#![expect(
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a bench prints"
)]

#[path = "../src/dispatch.rs"]
#[expect(dead_code, reason = "has more than is used here")]
mod dispatch;
#[path = "../src/outbox.rs"]
#[expect(dead_code, unused_imports, reason = "has more than is used here")]
mod outbox;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use dial9_bpf_ship::{convert::head_of_archive, courier::Compression, identity::Identity};
use dial9_bpf_trace::{
    check::check_file,
    clock::{Anchor, monotonic_ns},
    dump,
    line::{Config, Finished, Line},
    location::{Locations, TaskType},
    metadata::Metadata,
    rotate::Policy,
    segment::Owner,
    spool::Spool,
};
use dispatch::{Delivery, Dispatch, Shipping};
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::time::{ClockId, clock_gettime};

/// Records a second.
const RATE: u64 = 1_000_000;
/// Bytes of all rings, as `--ring-bytes` has it by default.
const RING_BYTES: usize = 32 << 20;
/// Place of a record's stamp.
const STAMP: std::ops::Range<usize> = 8..16;
/// As the command has them.
const PASS_INTERVAL: Duration = Duration::from_millis(5);
const TICK: Duration = Duration::from_secs(1);
const EPOCH: Duration = Duration::from_secs(2);
const MAX_SEGMENT_BYTES: u64 = 256 << 20;
/// The most that the recording thread may take at this rate, percent of a core.
const LIMIT_PERCENT: f64 = 15.0;

/// A ring entry.
#[derive(Clone, Copy)]
struct Entry {
    length: usize,
    bytes: [u8; 56],
}

type Rings = Vec<Consumer<Entry>>;

/// What the producer did.
#[derive(Debug)]
struct Produced {
    records: usize,
    lost: u64,
    time: Duration,
    cpu_ns: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let file = arguments.iter().position(|argument| argument == "--dump");
    let Some(file) = file.and_then(|at| arguments.get(at + 1)) else {
        println!("disk: no --dump FILE, nothing to do");
        return;
    };
    let dumped = std::fs::read(file).expect("a dump");
    let cpus = 1 + dump::entries(&dumped)
        .map(|(cpu, _)| cpu)
        .max()
        .expect("records");
    let each = RING_BYTES / size_of::<Entry>() / cpus as usize;
    let (producers, consumers) = (0..cpus).map(|_| RingBuffer::new(each)).unzip();
    let folder = Path::new(file).parent().expect("a file is in a folder");
    let dir = tempfile::tempdir_in(folder).expect("a folder");
    let began = cpu_ns(ClockId::ProcessCPUTime);
    // No record is older than the first segment.
    let started = start(dir.path());
    let pushed_ns = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&pushed_ns);
    let producer = thread::spawn(move || produce(&dumped, producers, &told));
    let recorded = record(started, consumers, &pushed_ns);
    let produced = producer.join().expect("it does not panic");
    let others_ns = cpu_ns(ClockId::ProcessCPUTime) - began - produced.cpu_ns - recorded.cpu_ns;
    report(&produced, &recorded, others_ns);
    verify(dir.path(), &produced, &recorded);
}

/// Puts each record into its CPU's ring when it is due, stamped.
fn produce(dumped: &[u8], mut rings: Vec<Producer<Entry>>, pushed_ns: &AtomicU64) -> Produced {
    let begin = Instant::now();
    let (mut records, mut lost) = (0, 0);
    let mut entries = dump::entries(dumped).peekable();
    while entries.peek().is_some() {
        let due = due_after(begin.elapsed());
        for (cpu, bytes) in entries.by_ref().take(due - records) {
            lost += u64::from(rings[cpu as usize].push(stamped(bytes)).is_err());
            records += 1;
        }
        pushed_ns.store(monotonic_ns(), Ordering::Release);
        thread::sleep(Duration::from_millis(1));
    }
    let time = begin.elapsed();
    pushed_ns.store(u64::MAX, Ordering::Release);
    Produced {
        records,
        lost,
        time,
        cpu_ns: cpu_ns(ClockId::ThreadCPUTime),
    }
}

/// Records after so long.
fn due_after(time: Duration) -> usize {
    let due = time.as_micros() * u128::from(RATE) / 1_000_000;
    usize::try_from(due).expect("fewer than there is memory for")
}

fn stamped(record: &[u8]) -> Entry {
    let mut bytes = [0; 56];
    bytes[..record.len()].copy_from_slice(record);
    bytes[STAMP].copy_from_slice(&monotonic_ns().to_ne_bytes());
    Entry {
        length: record.len(),
        bytes,
    }
}

/// What the recording thread did.
struct Recorded {
    finished: Finished,
    delivery: Delivery,
    cpu_ns: u64,
    /// Time until the last segment was compressed.
    time: Duration,
    /// Most records that waited in the rings at the begin of a pass.
    backlog: usize,
}

fn record(
    (mut line, mut dispatch): (Line, Dispatch),
    mut rings: Rings,
    pushed_ns: &AtomicU64,
) -> Recorded {
    let began = cpu_ns(ClockId::ThreadCPUTime);
    let begin = Instant::now();
    let (mut backlog, mut ticked) = (0, Instant::now());
    loop {
        // Before the rings are looked at: everything older is in them.
        let until_ns = pushed_ns.load(Ordering::Acquire);
        let now = Anchor::read();
        backlog = backlog.max(drain(&mut rings, &mut line));
        line.advance(until_ns.min(now.mono_ns), now, &mut |closed| {
            dispatch.hand_over(closed);
        });
        if until_ns == u64::MAX {
            break;
        }
        if ticked.elapsed() >= TICK {
            ticked = Instant::now();
            line.flush();
            let _ = dispatch.tell(&mut line);
        }
        thread::sleep(PASS_INTERVAL);
    }
    let finished = line.finish(Anchor::read(), &[], &mut |closed| {
        dispatch.hand_over(closed);
    });
    let cpu_ns = cpu_ns(ClockId::ThreadCPUTime) - began;
    let delivery = dispatch.finish(&AtomicBool::new(false));
    Recorded {
        finished,
        delivery,
        cpu_ns,
        time: begin.elapsed(),
        backlog,
    }
}

fn drain(rings: &mut Rings, line: &mut Line) -> usize {
    let mut drained = 0;
    for (cpu, ring) in (0..).zip(rings) {
        let waiting = ring.slots();
        let chunk = ring.read_chunk(waiting).expect("so many are there");
        for entry in chunk {
            line.push(cpu, &entry.bytes[..entry.length]);
        }
        drained += waiting;
    }
    drained
}

fn start(dir: &Path) -> (Line, Dispatch) {
    let shipping = Shipping {
        identity: Identity {
            service: "bench".to_owned(),
            instance: "bench".to_owned(),
            boot_id: "bench-1".to_owned(),
        },
        compression: Compression::Gzip,
        upload: None,
        names: None,
    };
    let spool = Spool::open(dir, Owner::default(), u64::MAX, head_of_archive);
    let (spool, _) = spool.expect("a folder");
    let dispatch = Dispatch::start(dir, spool, shipping).expect("a thread");
    let config = Config {
        place: dir.into(),
        owner: Owner::default(),
        policy: Policy::new(EPOCH, MAX_SEGMENT_BYTES).expect("whole seconds"),
        metadata: Metadata::default(),
    };
    let unnamed = |i: u64| TaskType {
        name: None,
        address: i * 64,
        blocking: false,
    };
    let types: Vec<_> = (0..8192).map(unnamed).collect();
    let line = Line::begin(config, Locations::new(&types, 0), Anchor::read());
    (line.expect("room"), dispatch)
}

fn report(produced: &Produced, recorded: &Recorded, others_ns: u64) {
    let Recorded {
        finished,
        delivery,
        cpu_ns,
        time,
        backlog,
    } = recorded;
    let events = finished.stats.events.total();
    let seconds = produced.time.as_secs_f64();
    let of_a_core = |ns: u64| ns as f64 / 1e7 / seconds;
    let (raw, packed) = (delivery.tally.raw_bytes, delivery.compressed_bytes());
    println!("records                  {:>12}", produced.records);
    println!("events                   {events:>12}");
    println!("seconds                  {seconds:>12.1}");
    println!("events a second          {:>12.0}", events as f64 / seconds);
    println!("lost in full rings       {:>12}", produced.lost);
    println!(
        "too late, undecoded      {:>12}",
        finished.late + finished.undecoded
    );
    println!("most that waited         {backlog:>12}");
    println!("segments                 {:>12}", delivery.tally.closed);
    println!(
        "bytes an event, raw      {:>12.2}",
        raw as f64 / events as f64
    );
    println!(
        "  compressed             {:>12.2}",
        packed.unwrap_or(0) as f64 / events as f64
    );
    println!(
        "last one compressed, s   {:>12.2}",
        time.saturating_sub(produced.time).as_secs_f64()
    );
    println!("cpu, percent of a core");
    println!("  recording thread       {:>12.1}", of_a_core(*cpu_ns));
    println!("  courier                {:>12.1}", of_a_core(others_ns));
    println!(
        "  producer               {:>12.1}",
        of_a_core(produced.cpu_ns)
    );
    println!(
        "recording thread, percent of a core for a million events a second: {:.1} (limit {LIMIT_PERCENT})",
        *cpu_ns as f64 / events as f64 / 10.0
    );
}

/// Everything is in the segments.
fn verify(dir: &Path, produced: &Produced, recorded: &Recorded) {
    let finished = &recorded.finished;
    assert_eq!(
        (produced.lost, finished.late, finished.undecoded),
        (0, 0, 0)
    );
    assert_eq!((finished.unwritten, finished.unsorted), (0, 0));
    assert!(
        recorded.delivery.compressed_bytes().is_some(),
        "{:?}",
        recorded.delivery
    );
    let mut polls = 0;
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let report = check_file(&entry.expect("it can be read on").path()).expect("a segment");
        polls += report.events.get("PollStartEvent").copied().unwrap_or(0);
    }
    assert_eq!(polls, finished.stats.events.poll_start, "poll starts");
}

fn cpu_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
