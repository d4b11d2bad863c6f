use std::fs::{File, OpenOptions};
use std::time::Duration;

use dial9_bpf_abi::record::{PollEnd, PollStart, TaskRecord};
use tempfile::TempDir;

use super::*;
use crate::check::{Report, check_file};
use crate::event::RuntimeMetrics;
use crate::fixtures::{names, spool_dir};
use crate::location::TaskType;
use crate::recover::{no_archives, recover};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 100 * SECOND;

fn anchor(mono_ns: u64) -> Anchor {
    Anchor {
        mono_ns,
        unix_ns: 1_800_000_000 * SECOND + mono_ns,
    }
}

/// A line of epochs of ten seconds, with what it has closed.
struct Recorder {
    dir: TempDir,
    line: Line,
    closed: Vec<ClosedSegment>,
}

impl Recorder {
    fn new() -> Self {
        let dir = spool_dir();
        let place = Place::from(dir.path());
        Self::at(place, dir)
    }

    fn in_memory() -> Self {
        Self::at(Place::Memory, spool_dir())
    }

    fn at(place: Place, dir: TempDir) -> Self {
        let types = [TaskType {
            name: Some("task".into()),
            address: 8,
            blocking: false,
        }];
        let config = Config {
            place,
            owner: Owner::default(),
            policy: Policy::new(Duration::from_secs(10), u64::MAX).unwrap(),
            metadata: Metadata::default(),
        };
        let line = Line::begin(config, Locations::new(&types, 0), anchor(START)).unwrap();
        let closed = Vec::new();
        Self { dir, line, closed }
    }

    fn push(&mut self, record: &Record) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        self.line.push(0, &bytes);
    }

    fn start(&mut self, ts_ns: u64, task_id: u64) {
        self.push(&Record::PollStart(PollStart {
            header: header(RecordKind::POLL_START, ts_ns),
            task_id,
            sp: 64,
            vtable: 0,
        }));
    }

    fn end(&mut self, ts_ns: u64) {
        self.push(&Record::PollEnd(PollEnd {
            header: header(RecordKind::POLL_END, ts_ns),
            sp: 64,
        }));
    }

    fn advance(&mut self, watermark_ns: u64) {
        let Self { line, closed, .. } = self;
        line.advance(watermark_ns, anchor(watermark_ns), &mut |c| closed.push(c));
        line.flush();
    }

    /// Turns the disk full, or gives it its space back.
    fn swap_file(&mut self, file: &mut File) {
        self.line.output.segment().unwrap().swap_file(file);
    }

    /// Ends at a time; the reports of all segments, oldest first.
    fn finish(mut self, end_ns: u64) -> (Finished, Vec<Report>, TempDir) {
        let closed = &mut self.closed;
        let finished = self
            .line
            .finish(anchor(end_ns), &[], &mut |c| closed.push(c));
        let dir = self.dir.path();
        let reports = self.closed.into_iter().map(|mut segment| {
            segment.place(dir).unwrap();
            let sealed = segment.commit().unwrap();
            let report = check_file(&sealed.path).unwrap();
            assert!(report.is_sound(), "{}", report.render());
            report
        });
        let reports = reports.collect();
        (finished, reports, self.dir)
    }
}

fn header(kind: RecordKind, ts_ns: u64) -> RecordHeader {
    RecordHeader {
        kind,
        flags: 0,
        tid: 7,
        ts_ns,
    }
}

fn events(report: &Report, name: &str) -> u64 {
    report.events.get(name).copied().unwrap_or(0)
}

#[test]
fn a_record_within_the_grace_is_in_its_segment() {
    let boundary = START + 10 * SECOND;
    let mut recorder = Recorder::new();
    recorder.start(boundary + 5, 1);
    recorder.advance(boundary + GRACE_NS - 1);
    assert!(recorder.closed.is_empty());
    recorder.end(boundary - 5);
    recorder.start(boundary - 10, 2);
    recorder.advance(boundary + GRACE_NS);
    assert_eq!(recorder.closed.len(), 1);
    recorder.end(boundary + 9);
    let (finished, reports, _dir) = recorder.finish(boundary + SECOND);
    assert_eq!(finished.late, 0);
    let counts = |name| [events(&reports[0], name), events(&reports[1], name)];
    assert_eq!(counts("PollStartEvent"), [1, 1]);
    assert_eq!(counts("PollEndEvent"), [1, 1]);
}

#[test]
fn a_record_after_the_grace_is_a_loss_and_a_gap_and_in_no_segment() {
    let boundary = START + 10 * SECOND;
    let mut recorder = Recorder::new();
    recorder.start(boundary - 10, 1);
    recorder.advance(boundary + GRACE_NS);
    recorder.end(boundary - 5);
    let wake = TaskRecord {
        header: header(RecordKind::WAKE, boundary - 4),
        task_id: 1,
    };
    recorder.push(&Record::Wake(wake));
    recorder.start(boundary + 5, 2);
    recorder.end(boundary + 9);
    let (finished, reports, _dir) = recorder.finish(boundary + SECOND);
    assert_eq!(finished.late, 2);
    assert_eq!(finished.stats.events.wake, 0);
    let counts = |name| [events(&reports[0], name), events(&reports[1], name)];
    assert_eq!(counts("PollStartEvent"), [1, 1]);
    // The first poll is closed at the gap, the second by its own end.
    assert_eq!(counts("PollEndEvent"), [0, 2]);
    assert_eq!(counts("GapEvent"), [0, 1]);
    assert_eq!(counts("LossEvent"), [0, 2]);
    assert_eq!(reports[1].metadata["dial9-bpf.lost"], "2");
}

#[test]
fn boundaries_pass_without_a_record() {
    let mut recorder = Recorder::new();
    recorder.advance(START + 35 * SECOND);
    assert_eq!(recorder.closed.len(), 3);
    let (_, reports, _dir) = recorder.finish(START + 36 * SECOND);
    assert_eq!(reports.len(), 4);
}

#[test]
fn a_full_disk_is_counted_and_told_when_there_is_space() {
    let mut recorder = Recorder::new();
    let mut file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    recorder.start(START + 10, 1);
    recorder.end(START + 20);
    recorder.advance(START + SECOND);
    recorder.start(START + SECOND + 10, 2);
    recorder.swap_file(&mut file);
    recorder.advance(START + 2 * SECOND);
    let (since_ns, error) = recorder.line.outage().unwrap();
    assert_eq!(since_ns, START + SECOND + 10);
    assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
    // The announcement and the start.
    assert_eq!(recorder.line.unwritten(), 2);
    recorder.swap_file(&mut file);
    recorder.advance(START + 3 * SECOND);
    assert_eq!(recorder.line.outage().map(|o| o.0), None);
    // What was open during the outage has no end; the next poll has both.
    recorder.end(START + 4 * SECOND);
    recorder.start(START + 4 * SECOND + 1, 3);
    recorder.end(START + 4 * SECOND + 2);
    let (finished, reports, _dir) = recorder.finish(START + 5 * SECOND);
    assert_eq!(
        (finished.unwritten, finished.stats.polls_interrupted),
        (2, 1)
    );
    let counts = |name| [events(&reports[0], name), events(&reports[1], name)];
    assert_eq!(reports.len(), 2);
    assert_eq!(counts("PollStartEvent"), [1, 1]);
    assert_eq!(counts("PollEndEvent"), [1, 1]);
    assert_eq!(counts("UnwrittenEvent"), [0, 1]);
    assert_eq!(reports[0].metadata["segment.complete"], "false");
    assert_eq!(reports[1].metadata["segment.complete"], "true");
    assert_eq!(reports[1].metadata["dial9-bpf.unwritten"], "2");
}

#[test]
fn a_disk_that_stays_full_leaves_a_file_for_the_recovery() {
    let mut recorder = Recorder::new();
    let mut file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    recorder.start(START + 10, 1);
    recorder.advance(START + SECOND);
    recorder.swap_file(&mut file);
    let (finished, reports, dir) = recorder.finish(START + 5 * SECOND);
    // Every event is written; the closing batch is not.
    assert_eq!(finished.unwritten, 0);
    assert!(reports.is_empty());
    assert_eq!(
        finished.unsealed,
        Some(dir.path().join("trace.0.bin.active"))
    );
    drop(file);
    let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
    let report = check_file(&recovered.sealed[0].path).unwrap();
    assert!(report.is_sound(), "{}", report.render());
    assert_eq!(events(&report, "PollStartEvent"), 1);
}

#[test]
fn a_removed_directory_costs_its_segment_and_recording_goes_on_in_a_new_one() {
    let mut recorder = Recorder::new();
    recorder.start(START + 10, 1);
    recorder.end(START + 20);
    recorder.advance(START + SECOND);
    std::fs::remove_dir_all(recorder.dir.path()).unwrap();
    recorder.advance(START + 2 * SECOND);
    let (since_ns, error) = recorder.line.outage().unwrap();
    assert_eq!(since_ns, START);
    assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    assert_eq!(recorder.line.unwritten(), 3);
    // A boundary passes in the outage.
    recorder.start(START + 11 * SECOND, 2);
    recorder.end(START + 12 * SECOND);
    recorder.advance(START + 13 * SECOND);
    assert!(recorder.line.outage().is_some() && recorder.closed.is_empty());
    std::fs::create_dir(recorder.dir.path()).unwrap();
    recorder.advance(START + 14 * SECOND);
    assert!(recorder.line.outage().is_none());
    assert_eq!(recorder.line.started(), anchor(START + 14 * SECOND));
    assert_eq!(recorder.line.boundary_ns(), START + 20 * SECOND);
    recorder.start(START + 15 * SECOND, 2);
    recorder.end(START + 16 * SECOND);
    let (finished, reports, _dir) = recorder.finish(START + 17 * SECOND);
    assert_eq!(finished.unwritten, 6);
    assert_eq!(reports.len(), 1);
    assert_eq!(events(&reports[0], "TaskSpawnEvent"), 1);
    assert_eq!(events(&reports[0], "PollEndEvent"), 1);
    assert_eq!(events(&reports[0], "UnwrittenEvent"), 1);
}

#[test]
fn a_segment_in_memory_that_is_wanted_ends_at_once_and_tells_why() {
    let mut recorder = Recorder::in_memory();
    let evicted = Evicted {
        index: 9,
        bytes: 77,
    };
    recorder.line.evicted(evicted);
    recorder.start(START + 10, 1);
    recorder.advance(START + 11 * SECOND);
    let until_ns = START + 12 * SECOND;
    recorder.line.want(until_ns, "a test".to_owned());
    recorder.end(until_ns - 1);
    recorder.start(until_ns, 2);
    recorder.advance(until_ns + GRACE_NS);
    assert_eq!(recorder.line.started().mono_ns, until_ns);
    assert_eq!(recorder.line.file_bytes(), 0);
    assert!(names(recorder.dir.path()).is_empty());
    let (finished, reports, _dir) = recorder.finish(START + 13 * SECOND);
    assert!(!finished.is_wanted);
    let why = |report: &Report| report.metadata.get("dial9-bpf.dump").cloned();
    let reasons: Vec<_> = reports.iter().map(why).collect();
    assert_eq!(reasons, [None, Some("a test".to_owned()), None]);
    let told = reports.iter().map(|report| events(report, "EvictionEvent"));
    assert_eq!(told.collect::<Vec<_>>(), [0, 1, 0]);
    let polls = reports.iter().map(|report| events(report, "PollEndEvent"));
    assert_eq!(polls.collect::<Vec<_>>(), [0, 1, 0]);
}

#[test]
fn a_poll_that_is_too_long_is_told_once() {
    let mut recorder = Recorder::in_memory();
    recorder.line.watch_polls(100);
    for (since_ns, duration_ns, id) in [(10, 99, 1), (200, 300, 2), (600, 100, 3)] {
        recorder.start(START + since_ns, id);
        recorder.end(START + since_ns + duration_ns);
    }
    recorder.advance(START + SECOND);
    let found = recorder.line.take_long_poll().unwrap();
    assert_eq!((found.duration_ns, found.task_id, found.tid), (300, 2, 7));
    assert_eq!(found.to_string(), "a poll of 300.0ns, task 2, thread 7");
    assert_eq!(recorder.line.take_long_poll(), None);
}

#[test]
fn an_eviction_is_told_by_the_segment_that_ends_next() {
    let mut recorder = Recorder::new();
    recorder.line.evicted(Evicted {
        index: 9,
        bytes: 77,
    });
    recorder.advance(START + 21 * SECOND);
    let told: Vec<_> = recorder
        .closed
        .iter()
        .map(|c| &c.sealed().told[..])
        .collect();
    assert_eq!(told, [&[9][..], &[]]);
    let (_, reports, dir) = recorder.finish(START + 22 * SECOND);
    assert_eq!(events(&reports[0], "EvictionEvent"), 1);
    assert_eq!(events(&reports[1], "EvictionEvent"), 0);
    assert_eq!(names(dir.path()).len(), 3);
}

#[test]
fn a_recording_that_did_not_begin_leaves_nothing() {
    let Recorder { dir, line, .. } = Recorder::new();
    line.discard().unwrap();
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_recording_that_ends_at_a_boundary_has_no_empty_segment() {
    let (_, reports, _dir) = Recorder::new().finish(START + 10 * SECOND);
    assert_eq!(reports.len(), 1);
}

#[test]
fn a_recording_without_a_directory_does_not_begin() {
    let config = Config {
        place: Place::Spool("/nowhere/at/all".into()),
        owner: Owner::default(),
        policy: Policy::new(Duration::from_secs(1), 1).unwrap(),
        metadata: Metadata::default(),
    };
    let error = Line::begin(config, Locations::new(&[], 0), anchor(1)).unwrap_err();
    assert_eq!(error.to_string(), "cannot list /nowhere/at/all");
}

#[test]
fn counters_of_runtimes_are_in_the_segment_of_their_time() {
    let mut recorder = Recorder::new();
    let boundary = START + 10 * SECOND;
    for (ts_ns, alive_tasks) in [(START + 1, 5), (boundary - 1, 6), (boundary, 7)] {
        recorder.line.sample(Sample::Runtime(RuntimeMetrics {
            ts_ns,
            number: 3,
            global_queue: 0,
            alive_tasks,
        }));
    }
    recorder.start(START + 2, 1);
    recorder.end(boundary + 2);
    recorder.advance(boundary + GRACE_NS);
    let (finished, reports, _dir) = recorder.finish(boundary + SECOND);
    let samples = |report: &Report| report.events["RuntimeMetricsEvent"];
    assert_eq!(reports.iter().map(samples).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(finished.stats.events.runtime_metrics, 3);
}
