use std::fs::OpenOptions;
use std::os::unix::fs::PermissionsExt as _;

use dial9_bpf_abi::loss::LossCause;
use dial9_bpf_abi::record::RecordKind;
use tempfile::TempDir;

use super::*;
use crate::check::check_file;
use crate::loss::Loss;
use crate::metadata::Runtime;

fn create(dir: &TempDir) -> ActiveSegment {
    let metadata = Metadata::default();
    ActiveSegment::create(&dir.path().into(), Owner::default(), &metadata, anchor(1)).unwrap()
}

fn anchor(seconds: u64) -> Anchor {
    Anchor {
        mono_ns: seconds * 1_000_000_000,
        unix_ns: (1_800_000_000 + seconds) * 1_000_000_000,
    }
}

fn seal(segment: ActiveSegment, losses: &[Loss]) -> SealedSegment {
    let metadata = Metadata::default();
    let runtime = Runtime {
        number: None,
        workers: vec![0, 1],
    };
    let seal = Seal {
        metadata: &metadata,
        runtimes: &[runtime],
        losses,
        undecoded: 0,
        is_complete: true,
        anchor: anchor(2),
    };
    segment.seal(seal).unwrap()
}

fn names(dir: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(dir.path()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_segment_goes_from_active_to_sealed_to_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let segment = create(&dir);
    assert_eq!(names(&dir), ["trace.0.bin.active"]);
    let mode = segment.path().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let sealed = seal(segment, &[]);
    assert_eq!(names(&dir), ["trace.0.bin"]);
    let report = check_file(&sealed.path).unwrap();
    assert!(report.is_sound(), "{}", report.render());
    assert_eq!(report.events["ClockSyncEvent"], 3);
    let compressed = sealed.compress(&[]).unwrap();
    assert_eq!(names(&dir), ["trace.0.bin.gz"]);
    assert_eq!(
        compressed.path.metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
    let report = check_file(&compressed.path).unwrap();
    assert!(report.is_sound(), "{}", report.render());
    assert_eq!(
        (report.file_bytes, report.raw_bytes),
        (compressed.bytes, compressed.raw_bytes)
    );
}

#[test]
fn the_next_index_is_above_every_file_of_whatever_state() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "trace.3.bin.gz",
        "trace.7.bin.gz.tmp",
        "trace.x.bin",
        "other.9.bin",
        "trace.bin",
    ] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    assert!(create(&dir).path().ends_with("trace.8.bin.active"));
    assert!(create(&dir).path().ends_with("trace.9.bin.active"));
}

#[test]
fn losses_are_in_the_seal_with_their_sum() {
    let dir = tempfile::tempdir().unwrap();
    let loss = |cpu, lost| Loss {
        cpu,
        kind: RecordKind::WAKE,
        cause: LossCause::RingFull.into(),
        lost,
        total: lost + 1,
    };
    let sealed = seal(create(&dir), &[loss(0, 4), loss(1, 5)]);
    let report = check_file(&sealed.path).unwrap();
    assert_eq!(report.events["LossEvent"], 2);
    assert_eq!(report.metadata["dial9-bpf.lost"], "9");
    assert_eq!(report.metadata["runtime.tokio"], "0,1");
}

fn closed_in_memory() -> ClosedSegment {
    let metadata = Metadata::default();
    let segment = ActiveSegment::create(&Place::Memory, Owner::default(), &metadata, anchor(1));
    let segment = segment.unwrap();
    segment.check_linked().unwrap();
    let closed = segment.close(&Closing {
        metadata: &metadata,
        runtimes: &[],
        threads: &[],
        losses: &[],
        evicted: &[],
        undecoded: 0,
        unwritten: 0,
        stacks: crate::stats::StackCounts::default(),
        queues: crate::stats::QueueCounts::default(),
        dump: Some("a test"),
        is_complete: true,
        anchor: anchor(2),
        events: 0,
    });
    closed.unwrap()
}

#[test]
fn a_segment_in_memory_gets_a_file_when_it_is_placed_and_bytes_when_it_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let mut closed = closed_in_memory();
    let memory = closed.memory().unwrap();
    closed.place(dir.path()).unwrap();
    assert_eq!(names(&dir), ["trace.0.bin.active"]);
    assert_eq!(closed.path().metadata().unwrap().len(), 0);
    let sealed = closed.commit().unwrap();
    assert_eq!(names(&dir), ["trace.0.bin"]);
    assert_eq!(memory.strong_count(), 0);
    let report = check_file(&sealed.path).unwrap();
    assert!(report.is_sound(), "{}", report.render());
    assert_eq!(report.raw_bytes, sealed.bytes);
    assert_eq!(report.metadata["dial9-bpf.dump"], "a test");
}

#[test]
fn a_segment_in_memory_stays_there_when_it_has_no_place() {
    let mut closed = closed_in_memory();
    let error = closed.place(Path::new("/nowhere/at/all")).unwrap_err();
    assert_eq!(error.to_string(), "cannot list /nowhere/at/all");
    let error = closed.commit().unwrap_err();
    assert_eq!(error.to_string(), "cannot write a segment in memory");
    let dir = tempfile::tempdir().unwrap();
    let mut closed = error.segment;
    closed.place(dir.path()).unwrap();
    closed.commit().unwrap();
    assert_eq!(names(&dir), ["trace.0.bin"]);
}

#[test]
fn the_wall_clock_is_written_every_ten_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = create(&dir);
    let mut encoder = Encoder::new();
    for (seconds, is_due) in [(2, false), (10, false), (11, true), (12, false), (21, true)] {
        segment.sync_clock(anchor(seconds).mono_ns, &mut encoder);
        assert_eq!(!encoder.is_empty(), is_due, "at {seconds} s");
        encoder.cut();
    }
}

#[test]
fn a_full_disk_is_named_and_takes_no_whole_batch_along() {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = create(&dir);
    let whole = std::fs::read(segment.path()).unwrap();
    let mut file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    segment.swap_file(&mut file);
    let error = segment.write_batch(b"TRC\0\x01").unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
    assert_eq!(
        error.to_string(),
        format!("cannot write {}", segment.path().display())
    );
    assert_eq!(segment.bytes(), whole.len() as u64);
    // Space again: the segment goes on where it was.
    segment.swap_file(&mut file);
    let sealed = seal(segment, &[]);
    assert!(check_file(&sealed.path).unwrap().is_sound());
}

#[test]
fn a_directory_that_does_not_exist_is_an_error() {
    let metadata = Metadata::default();
    let nowhere = Path::new("/nowhere/at/all");
    let error =
        ActiveSegment::create(&nowhere.into(), Owner::default(), &metadata, anchor(1)).unwrap_err();
    assert_eq!(error.to_string(), "cannot list /nowhere/at/all");
}

#[test]
fn a_failed_compression_gives_the_segment_back() {
    let dir = tempfile::tempdir().unwrap();
    let sealed = seal(create(&dir), &[]);
    // A directory in the way of the partial file.
    std::fs::create_dir(dir.path().join("trace.0.bin.gz.tmp")).unwrap();
    let CompressError { segment, .. } = sealed.compress(&[]).unwrap_err();
    assert!(check_file(&segment.path).unwrap().is_sound());
    std::fs::remove_dir(dir.path().join("trace.0.bin.gz.tmp")).unwrap();
    std::fs::write(dir.path().join("trace.0.bin.gz.tmp"), "left over").unwrap();
    segment.compress(&[]).unwrap();
    assert_eq!(names(&dir), ["trace.0.bin.gz"]);
}

#[test]
fn a_directory_is_made_for_its_owner_or_not_at_all() {
    let parent = tempfile::tempdir().unwrap();
    let us = (rustix::process::geteuid(), rustix::process::getegid());
    for (name, owner) in [("ours", Owner::default()), ("given", Owner(Some(us)))] {
        let dir = parent.path().join(name);
        owner.create_dir(&dir).unwrap();
        let metadata = dir.metadata().unwrap();
        assert_eq!(metadata.uid(), us.0.as_raw());
        let error = owner.create_dir(&dir).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(dir.exists());
    }
}
