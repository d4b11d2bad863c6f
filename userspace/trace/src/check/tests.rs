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
    encoder.metadata(99, Metadata::default().closing(0..1, &[], outcome));
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
    })
}

fn unpark(ts_ns: u64, cpu_ns: u64) -> Event {
    Event::Unpark(ParkEvent {
        ts_ns,
        worker: 0,
        cpu_ns,
        tid: 7,
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
    use std::io::Write as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.0.bin.gz");
    let member = |bytes: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    };
    let one = member(&segment(&[park(2, 5)]));
    let two = [one.clone(), member(b"")].concat();
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
