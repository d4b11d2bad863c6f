//! Each record in the segment of its own time, and nothing lost between two
//! segments: known records at known times against what the files hold.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use dial9_bpf_abi::record::{Park, PollEnd, PollStart, RecordHeader, RecordKind};
use dial9_bpf_trace::check::{Report, check_file};
use dial9_bpf_trace::clock::Anchor;
use dial9_bpf_trace::decode::Record;
use dial9_bpf_trace::line::{Config, Line, Pass};
use dial9_bpf_trace::location::{Locations, TaskType};
use dial9_bpf_trace::metadata::Metadata;
use dial9_bpf_trace::rotate::Policy;
use dial9_bpf_trace::segment::{ClosedSegment, Owner, SealedSegment};
use dial9_trace_format::decoder::Decoder;
use dial9_trace_format::types::FieldValueRef;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// Start of the recording: 0.3 s into a second of the wall clock.
const START: Anchor = Anchor {
    mono_ns: 5_000 * SECOND,
    unix_ns: 1_800_000_000 * SECOND + 300 * MS,
};
const PASS: u64 = 5 * MS;

/// Records by the time at which a pass can see them, with their CPU.
type Timeline = BTreeMap<(u64, u64), (u32, Record)>;

fn put(timeline: &mut Timeline, cpu: u32, delay_ns: u64, record: Record) {
    let seen_ns = record.header().ts_ns + delay_ns;
    let nth = timeline.len() as u64;
    assert_eq!(timeline.insert((seen_ns, nth), (cpu, record)), None);
}

fn header(kind: RecordKind, tid: u32, ts_ns: u64) -> RecordHeader {
    RecordHeader {
        kind,
        flags: 0,
        tid,
        ts_ns,
    }
}

/// One poll of a thread.
fn poll(timeline: &mut Timeline, tid: u32, task_id: u64, (from, to): (u64, u64), delay_ns: u64) {
    let sp = 0x7fff_0000 + u64::from(tid);
    let start = PollStart {
        header: header(RecordKind::POLL_START, tid, from),
        task_id,
        sp,
        vtable: 0,
    };
    let end = PollEnd {
        header: header(RecordKind::POLL_END, tid, to),
        sp,
    };
    put(timeline, tid, delay_ns, Record::PollStart(start));
    put(timeline, tid, delay_ns, Record::PollEnd(end));
}

/// A worker on CPU 0 that polls every 10 ms and parks between; one on CPU 1
/// with a few polls of several seconds; CPU 2 has nothing at all. A record can
/// be seen up to 40 ms after its time.
fn timeline(seconds: u64) -> Timeline {
    let mut timeline = Timeline::new();
    for nth in 0..seconds * 100 {
        let at = START.mono_ns + nth * 10 * MS + 1;
        let delay_ns = (nth * 7919) % 40 * MS;
        poll(&mut timeline, 0, 1 + nth % 50, (at, at + 3 * MS), delay_ns);
        for (kind, at) in [
            (RecordKind::PARK, at + 4 * MS),
            (RecordKind::UNPARK, at + 9 * MS),
        ] {
            let park = Park {
                header: header(kind, 0, at),
                cpu_ns: 1000 + at - START.mono_ns,
                core: 0,
                queue: 0,
            };
            let record = if kind == RecordKind::PARK {
                Record::Park(park)
            } else {
                Record::Unpark(park)
            };
            put(&mut timeline, 0, delay_ns, record);
        }
    }
    for nth in 0..seconds / 5 {
        let at = START.mono_ns + nth * 5 * SECOND + 77;
        poll(&mut timeline, 1, 1000 + nth, (at, at + 3500 * MS), 0);
    }
    timeline
}

/// What came out.
struct Run {
    dir: tempfile::TempDir,
    sealed: Vec<SealedSegment>,
    late: u64,
}

/// Feeds a timeline in passes; `step` is the wall clock's offset at a time.
fn run(timeline: &Timeline, epoch: u64, max_bytes: u64, step: impl Fn(u64) -> i64) -> Run {
    // Set, the files stay there for other readers.
    let kept = std::env::var_os("DIAL9_BPF_KEEP");
    let parent = kept.clone().map_or_else(std::env::temp_dir, Into::into);
    let mut dir = tempfile::tempdir_in(parent).unwrap();
    dir.disable_cleanup(kept.is_some());
    let types = [TaskType {
        name: Some("service::handle::{closure#0}".into()),
        address: 0x1000,
        blocking: false,
    }];
    let config = Config {
        place: dir.path().into(),
        owner: Owner::default(),
        policy: Policy::new(Duration::from_secs(epoch), max_bytes).unwrap(),
        metadata: Metadata::default(),
    };
    let mut line = Line::begin(config, Locations::new(&types, 0), START).unwrap();
    let mut closed: Vec<ClosedSegment> = Vec::new();
    let mut records = timeline.iter().peekable();
    let mut bytes = Vec::new();
    let mut now_ns = START.mono_ns;
    let anchor = |mono_ns: u64| {
        let anchor = START.at(mono_ns);
        Anchor {
            unix_ns: anchor.unix_ns.checked_add_signed(step(mono_ns)).unwrap(),
            ..anchor
        }
    };
    while records.peek().is_some() {
        now_ns += PASS;
        line.begin_pass();
        while let Some((_, (cpu, record))) = records.next_if(|((seen, _), _)| *seen <= now_ns) {
            bytes.clear();
            record.encode(&mut bytes);
            line.push(*cpu, &bytes);
        }
        line.end_pass(anchor(now_ns), Pass::All, &mut |segment| {
            closed.push(segment);
        });
        if now_ns % SECOND < PASS {
            line.flush();
        }
    }
    assert_eq!(line.outage().map(|(since_ns, _)| since_ns), None);
    let finished = line.finish(anchor(now_ns + 1), &[], &mut |segment| closed.push(segment));
    assert_eq!((finished.unwritten, finished.undecoded), (0, 0));
    let commit = |segment: ClosedSegment| segment.commit().unwrap();
    Run {
        dir,
        sealed: closed.into_iter().map(commit).collect(),
        late: finished.late,
    }
}

/// An event of a file: name, time, worker.
type Seen = (String, u64, Option<u64>);

fn events(path: &Path) -> Vec<Seen> {
    let bytes = std::fs::read(path).unwrap();
    let mut events = Vec::new();
    let mut decoder = Decoder::new(&bytes).unwrap();
    decoder
        .for_each_event(|event| {
            let worker = match (event.schema.fields().first(), event.fields.first()) {
                (Some(field), Some(FieldValueRef::Varint(worker)))
                    if field.name() == "worker_id" =>
                {
                    Some(*worker)
                }
                _ => None,
            };
            events.push((event.name.to_owned(), event.timestamp_ns, worker));
        })
        .unwrap();
    events
}

fn sound(segment: &SealedSegment) -> Report {
    let report = check_file(&segment.path).unwrap();
    assert!(report.is_sound(), "{}", report.render());
    report
}

/// Every event is within its segment, and each segment begins where the one
/// before has ended. Returns the events of all, in the order of the files.
fn assert_sequence(run: &Run) -> Vec<Seen> {
    let mut all = Vec::new();
    let mut before_ns = START.mono_ns;
    for segment in &run.sealed {
        sound(segment);
        let (start, end) = (segment.started.mono_ns, segment.ended.mono_ns);
        assert_eq!(start, before_ns, "segment {}", segment.index);
        before_ns = end;
        for event in events(&segment.path) {
            let (name, ts_ns, _) = &event;
            match name.as_str() {
                "TaskSpawnEvent" => assert!(*ts_ns < end),
                "ClockSyncEvent" | "SegmentMetadataEvent" => {
                    assert!((start..=end).contains(ts_ns));
                }
                _ => assert!((start..end).contains(ts_ns), "{event:?} in {start}..{end}"),
            }
            all.push(event);
        }
    }
    assert_eq!(
        std::fs::read_dir(run.dir.path()).unwrap().count(),
        run.sealed.len()
    );
    all
}

/// Time in polls of each worker, as a reader of the whole sequence has it.
fn polled_ns(events: &[Seen]) -> (u64, BTreeMap<u64, u64>) {
    let mut open = HashMap::new();
    let (mut polls, mut sums) = (0, BTreeMap::new());
    for (name, ts_ns, worker) in events {
        let worker = worker.unwrap_or_default();
        match name.as_str() {
            "PollStartEvent" => assert_eq!(open.insert(worker, *ts_ns), None),
            "PollEndEvent" => {
                let since_ns = open.remove(&worker).unwrap();
                polls += 1;
                *sums.entry(worker).or_default() += ts_ns - since_ns;
            }
            _ => {}
        }
    }
    assert!(open.is_empty());
    (polls, sums)
}

fn count(events: &[Seen], name: &str) -> u64 {
    events.iter().filter(|event| event.0 == name).count() as u64
}

#[test]
fn across_a_hundred_boundaries_each_record_is_in_its_epoch() {
    let run = run(&timeline(101), 1, u64::MAX, |_| 0);
    let events = assert_sequence(&run);
    assert_eq!(run.late, 0);
    // 0.7 s, then whole seconds.
    assert_eq!(run.sealed.len(), 102);
    let (polls, sums) = polled_ns(&events);
    assert_eq!(polls, 101 * 100 + 20);
    assert_eq!(
        sums,
        BTreeMap::from([(0, 10_100 * 3 * MS), (1, 20 * 3500 * MS)])
    );
    for park in ["WorkerParkEvent", "WorkerUnparkEvent"] {
        assert_eq!(count(&events, park), 10_100);
    }
    for segment in &run.sealed[1..101] {
        assert_eq!(segment.started.unix_ns % SECOND, 0);
        assert_eq!(segment.ended.mono_ns - segment.started.mono_ns, SECOND);
        let report = sound(segment);
        let polls = report.events["PollStartEvent"];
        let of_cpu_1 = events_in(segment, "PollStartEvent", 1);
        assert_eq!(polls - of_cpu_1, 100);
        assert_eq!(report.metadata["segment.complete"], "true");
        assert_eq!(report.metadata["dial9-bpf.worker_threads"], "0:0,1:1");
    }
}

fn events_in(segment: &SealedSegment, name: &str, worker: u64) -> u64 {
    let is_it = |event: &&Seen| event.0 == name && event.2 == Some(worker);
    events(&segment.path).iter().filter(is_it).count() as u64
}

#[test]
fn the_grid_follows_a_stepped_wall_clock_at_the_next_boundary() {
    let at = |second: u64| START.mono_ns + second * SECOND;
    let step = move |mono_ns| match mono_ns {
        ns if ns < at(10) => 0,
        ns if ns < at(20) => 37_300_000_000,
        ns if ns < at(30) => -3_600_250_000_000,
        ns => i64::try_from((ns - at(30)) / 4000).unwrap(),
    };
    let run = run(&timeline(40), 2, u64::MAX, step);
    let events = assert_sequence(&run);
    assert_eq!(polled_ns(&events).0, 40 * 100 + 8);
    let lengths: Vec<u64> = run
        .sealed
        .iter()
        .map(|segment| segment.ended.mono_ns - segment.started.mono_ns)
        .collect();
    // Each step makes one short epoch, at the boundary that it finds.
    let short = |length: &&u64| **length < 2 * SECOND - MS;
    let (_, middle) = lengths.split_first().unwrap();
    let (_, middle) = middle.split_last().unwrap();
    assert_eq!(middle.iter().filter(short).count(), 3, "{lengths:?}");
    assert!(middle.iter().all(|length| *length <= 2 * SECOND + 2 * MS));
    let slewed = |segment: &&SealedSegment| segment.started.mono_ns > at(33);
    for segment in run.sealed.iter().filter(slewed) {
        // Slewed by 250 ppm: on the grid but for what one epoch is slewed by.
        let off_ns = (segment.started.unix_ns + MS) % (2 * SECOND);
        assert!(off_ns < 2 * MS, "{off_ns}");
    }
}

#[test]
fn a_large_segment_is_sealed_early_and_its_epoch_goes_on() {
    let run = run(&timeline(40), 10, 20 << 10, |_| 0);
    let events = assert_sequence(&run);
    assert_eq!(run.late, 0);
    let (polls, sums) = polled_ns(&events);
    assert_eq!(polls, 40 * 100 + 8);
    assert_eq!(sums[&0], 4000 * 3 * MS);
    let complete: Vec<bool> = run
        .sealed
        .iter()
        .map(|segment| sound(segment).metadata["segment.complete"] == "true")
        .collect();
    // Five epochs begin or end here, the last with the recording.
    assert_eq!(complete.iter().filter(|is| **is).count(), 5, "{complete:?}");
    assert!(complete.len() > 10, "{complete:?}");
    for (segment, is_complete) in run.sealed.iter().zip(complete) {
        let is_on_grid = segment.ended.unix_ns.is_multiple_of(10 * SECOND);
        let is_last = segment.index + 1 == run.sealed.len() as u64;
        assert_eq!(is_on_grid || is_last, is_complete);
        assert!(segment.bytes < 24 << 10, "{} bytes", segment.bytes);
    }
}

#[test]
fn segments_of_a_sequence_and_one_segment_say_the_same() {
    let timeline = timeline(12);
    let whole = run(&timeline, 3600, u64::MAX, |_| 0);
    let split = run(&timeline, 1, u64::MAX, |_| 0);
    let ours = |run: &Run| {
        let is_ours = |event: &Seen| event.0.starts_with("Poll") || event.0.starts_with("Worker");
        let mut events = assert_sequence(run);
        events.retain(is_ours);
        events
    };
    assert_eq!(whole.sealed.len(), 1);
    assert_eq!(split.sealed.len(), 13);
    assert_eq!(ours(&whole), ours(&split));
}
