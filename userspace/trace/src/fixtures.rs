//! Small segments for the tests.
//!
//! In: nothing. Out: files in a directory of their own. Never: in the built
//! library.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use crate::clock::Anchor;
use crate::encode::Encoder;
use crate::event::Event;
use crate::location::Locations;
use crate::metadata::Metadata;
use crate::segment::{ActiveSegment, ClosedSegment, Closing, Evicted, Owner};

pub(crate) const BASE_NS: u64 = 1_000_000_000;

pub(crate) fn anchor(mono_ns: u64) -> Anchor {
    Anchor {
        mono_ns,
        unix_ns: 1_800_000_000_000_000_000 + mono_ns,
    }
}

/// A directory in memory, where there is one: the tests sync often.
pub(crate) fn spool_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::tempdir_in(parent).unwrap()
}

pub(crate) fn create(dir: &Path, started: Anchor) -> ActiveSegment {
    let metadata = Metadata {
        boot_id: "abcd-7".into(),
        ..Metadata::default()
    };
    ActiveSegment::create(&dir.into(), Owner::default(), &metadata, started).unwrap()
}

/// A batch of one task's life: the announcement has an earlier time.
pub(crate) fn batch(at_ns: u64, task_id: u64) -> Vec<u8> {
    let mut locations = Locations::new(&[], 0);
    let location = locations.of_address(0, 0x4000 + task_id);
    let mut encoder = Encoder::new();
    let (ts_ns, worker) = (at_ns, 0);
    let events = [
        Event::Spawn {
            ts_ns: 5,
            task_id,
            location,
            worker: None,
            first_sighting: true,
        },
        Event::PollStart {
            ts_ns,
            worker,
            task_id,
            location,
            queued: None,
        },
        Event::PollEnd {
            ts_ns: ts_ns + 10,
            worker,
        },
        Event::Terminate {
            ts_ns: ts_ns + 20,
            task_id,
        },
    ];
    for event in &events {
        encoder.event(event, &locations);
    }
    encoder.cut().to_vec()
}

pub(crate) fn close(segment: ActiveSegment, evicted: &[Evicted]) -> ClosedSegment {
    let metadata = Metadata {
        boot_id: "abcd-7".into(),
        ..Metadata::default()
    };
    let closed = segment.close(&Closing {
        metadata: &metadata,
        runtimes: &[],
        threads: &[],
        losses: &[],
        evicted,
        undecoded: 0,
        unwritten: 0,
        stacks: crate::stats::StackCounts::default(),
        queues: crate::stats::QueueCounts::default(),
        dump: None,
        is_complete: true,
        anchor: anchor(3 * BASE_NS),
        events: 0,
    });
    closed.unwrap()
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A file whose writer one would wait for.
pub(crate) fn fifo(path: &Path) {
    let all = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, all, 0).unwrap();
}
