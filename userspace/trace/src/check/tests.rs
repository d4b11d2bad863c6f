use super::*;
use crate::clock::Anchor;
use crate::encode::Encoder;
use crate::event::{Event, ParkEvent};
use crate::location::{LocationId, Locations};
use crate::metadata::{Metadata, Outcome};

/// A sound sealed segment around these events.
fn segment(events: &[Event]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.clock_sync(Anchor {
        mono_ns: 1,
        unix_ns: 1,
    });
    for event in events {
        encoder.event(event, &Locations::new(&[], 0));
    }
    let outcome = Outcome {
        is_complete: true,
        ..Outcome::default()
    };
    encoder.metadata(99, Metadata::default().closing(&[], &[], outcome));
    encoder.cut().to_vec()
}

fn spawn(ts_ns: u64, task_id: u64) -> Event {
    let location = LocationId::UNKNOWN_TYPE;
    Event::Spawn {
        ts_ns,
        task_id,
        location,
        worker: None,
        first_sighting: true,
    }
}

fn start(ts_ns: u64, task_id: u64) -> Event {
    Event::PollStart {
        ts_ns,
        worker: 0,
        task_id,
        location: LocationId::UNKNOWN_TYPE,
        queued: None,
    }
}

fn end(ts_ns: u64) -> Event {
    Event::PollEnd { ts_ns, worker: 0 }
}

fn park(ts_ns: u64, cpu_ns: u64) -> Event {
    Event::Park(ParkEvent {
        ts_ns,
        worker: 0,
        cpu_ns,
        tid: 7,
        wait_ns: None,
        queued: None,
    })
}

fn unpark(ts_ns: u64, cpu_ns: u64) -> Event {
    Event::Unpark(ParkEvent {
        ts_ns,
        worker: 0,
        cpu_ns,
        tid: 7,
        wait_ns: None,
        queued: None,
    })
}

#[track_caller]
fn problems(events: &[Event], expected: &[&str]) {
    assert_eq!(
        check_bytes(&segment(events), Stage::Sealed).problems,
        expected
    );
}

#[test]
fn a_sound_segment_has_no_problem() {
    let terminate = Event::Terminate {
        ts_ns: 5,
        task_id: 7,
    };
    problems(
        &[
            spawn(2, 7),
            start(2, 7),
            end(3),
            park(4, 1),
            terminate,
            unpark(6, 1),
        ],
        &[],
    );
}

#[test]
fn each_broken_rule_is_a_problem() {
    problems(
        &[spawn(2, 7), start(2, 7), start(3, 7), start(4, 7)],
        &["two PollStartEvent in a row on worker 0 (2 cases)"],
    );
    problems(
        &[park(2, 5), park(3, 5)],
        &["two WorkerParkEvent in a row on worker 0"],
    );
    problems(
        &[park(2, 5), unpark(3, 4)],
        &["cpu_time_ns of thread 7 falls below 5"],
    );
    problems(&[park(2, 0), unpark(3, 0)], &["every cpu_time_ns is 0"]);
    problems(
        &[spawn(2, 7), start(5, 7), end(4)],
        &["time of worker 0 goes back at 4"],
    );
    problems(
        &[start(2, 7), end(3)],
        &["task 7 is polled without a TaskSpawnEvent"],
    );
    let wake = Event::Wake {
        ts_ns: 2,
        waker: 0,
        woken: 9,
        target_worker: 255,
    };
    problems(&[wake], &["task 9 is woken without a TaskSpawnEvent"]);
    problems(&[spawn(2, 0)], &["a TaskSpawnEvent with task_id 0"]);
    let terminate = Event::Terminate {
        ts_ns: 5,
        task_id: 7,
    };
    problems(
        &[terminate, spawn(2_000_000, 7)],
        &["task 7 ends more than 1 ms before its spawn"],
    );
    problems(&[spawn(2, 7), terminate, terminate], &["task 7 ends twice"]);
}

#[test]
fn a_segment_without_its_frame_is_a_problem() {
    let mut encoder = Encoder::new();
    encoder.event(&end(3), &Locations::new(&[], 0));
    let report = check_bytes(encoder.cut(), Stage::Sealed);
    assert_eq!(
        report.problems,
        [
            "no ClockSyncEvent",
            "the first event is a PollEndEvent",
            "no SegmentMetadataEvent",
            "the metadata lacks segment.complete",
        ]
    );
}

#[test]
fn a_torn_or_foreign_tail_is_a_problem() {
    let mut bytes = segment(&[park(2, 5)]);
    let whole = bytes.len();
    for tail in [&b"\x02\xff"[..], b"\x63", b"TRC\0\x01\x01\x00"] {
        bytes.extend_from_slice(tail);
        let report = check_bytes(&bytes, Stage::Sealed);
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        assert!(
            report.problems[0].contains("do not decode"),
            "{:?}",
            report.problems
        );
        assert!(report.whole_bytes >= whole as u64);
        bytes.truncate(whole);
    }
    let report = check_bytes(b"ELF", Stage::Sealed);
    assert_eq!(
        report.problems,
        ["the file does not begin with a trace header"]
    );
}

#[test]
fn a_file_is_exactly_one_gzip_member() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.0.bin.gz");
    let one = packed(&segment(&[park(2, 5)]));
    let two = [one.clone(), packed(b"")].concat();
    let torn = one[..one.len() - 9].to_vec();
    for (bytes, problem) in [
        (one, None),
        (two, Some("bytes follow the first gzip member")),
        (torn, Some("the gzip member is broken")),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let problems = check_file(&path).unwrap().problems;
        match problem {
            None => assert!(problems.is_empty(), "{problems:?}"),
            Some(problem) => assert!(problems[0].contains(problem), "{problems:?}"),
        }
    }
}

fn packed(raw: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(raw).unwrap();
    gzip.finish().unwrap()
}

/// The longest batch of the tests, bytes.
const WINDOW: usize = 64 << 10;

fn check_windowed(path: &Path) -> Report {
    let mut check = Check::new(Stage::Sealed);
    check.window_bytes = WINDOW;
    let file = open_regular(path, OFlags::RDONLY).unwrap();
    check.file(file).unwrap()
}

/// A segment of several windows is checked as one of one, and every batch is
/// looked at once.
#[test]
fn a_long_segment_is_checked_whole() {
    let dir = tempfile::tempdir().unwrap();
    let piece = segment(&[park(2, 5), unpark(3, 6)]);
    let copies = 5 * WINDOW / 2 / piece.len();
    let raw = piece.repeat(copies);
    for (name, bytes) in [("a.bin", raw.clone()), ("a.bin.gz", packed(&raw))] {
        let path = dir.path().join(name);
        std::fs::write(&path, &bytes).unwrap();
        let report = check_windowed(&path);
        assert_eq!(report.events["WorkerParkEvent"], copies as u64, "{name}");
        assert_eq!(report.raw_bytes, raw.len() as u64, "{name}");
        assert_eq!(report.whole_bytes, raw.len() as u64, "{name}");
        assert_eq!(report.file_bytes, bytes.len() as u64, "{name}");
    }
}

/// What is no trace, or no more, is read no further than a window.
#[test]
fn what_does_not_decode_is_not_read_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bomb.bin.gz");
    let nothing = vec![0; 4 * WINDOW];
    let begun = [segment(&[park(2, 5)]), nothing.clone()].concat();
    for (raw, problem) in [
        (nothing, "does not begin with a trace header"),
        (begun, "a batch of more than 65536 bytes"),
    ] {
        for bytes in [packed(&raw), raw] {
            std::fs::write(&path, bytes).unwrap();
            let report = check_windowed(&path);
            let told = report.problems.iter().any(|line| line.contains(problem));
            assert!(told, "{:?}", report.problems);
            assert!(report.raw_bytes <= 2 * WINDOW as u64);
        }
    }
}

/// The decoder follows a header after a header by recursion.
#[test]
fn headers_without_end_do_not_end_us() {
    for pattern in [
        &b"TRC\0\x01"[..],
        b"TRC\0\x02",
        b"\x05\0\0\0\0\0\0\0\0TRC\0\x01",
    ] {
        let bytes = [b"TRC\0\x01", &pattern.repeat(1 << 18)[..]].concat();
        whole_batches(&bytes);
        assert_eq!(
            check_bytes(&bytes, Stage::Active).whole_bytes,
            bytes.len() as u64
        );
    }
}

#[test]
fn only_a_regular_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("trace.0.bin");
    crate::fixtures::fifo(&fifo);
    for path in [&fifo, dir.path(), Path::new("/dev/zero")] {
        let error = check_file(path).unwrap_err();
        assert_eq!(error.source.to_string(), "not a regular file");
    }
}

#[test]
fn the_text_has_what_the_file_has() {
    let report = check_bytes(&segment(&[park(2, 5)]), Stage::Sealed);
    let text = report.render();
    for part in [
        "3 events in",
        "1 workers",
        "WorkerParkEvent (worker_id:Varint, ",
        "segment.complete = true",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
