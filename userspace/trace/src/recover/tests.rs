use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::check::check_file;
use crate::fixtures::{BASE_NS, anchor, batch, close, create, fifo, names, spool_dir};

/// An active file, and where its batches end.
fn active() -> (Vec<u8>, Vec<usize>) {
    let dir = spool_dir();
    let mut segment = create(dir.path(), anchor(BASE_NS));
    let path = segment.path();
    let mut ends = Vec::new();
    for task_id in 1..4 {
        let whole = batch(BASE_NS + task_id * 1_000_000, task_id);
        segment.write_batch(&whole).unwrap();
    }
    let bytes = std::fs::read(path).unwrap();
    let found = walk(&bytes[..]).unwrap();
    assert_eq!((found.bytes, found.batches), (bytes.len() as u64, 5));
    let mut at = 0;
    while at < bytes.len() {
        let next = bytes[at + 1..].windows(5).position(|w| w == b"TRC\0\x01");
        at = next.map_or(bytes.len(), |next| at + 1 + next);
        ends.push(at);
    }
    assert_eq!(ends.len(), 5);
    (bytes, ends)
}

#[test]
fn at_every_byte_recovery_yields_all_whole_batches_and_nothing_else() {
    let (bytes, ends) = active();
    let dir = spool_dir();
    let path = dir.path().join("trace.4.bin.active");
    for cut in 0..=bytes.len() {
        let whole = ends.iter().rev().find(|&&end| end <= cut);
        let batches = ends.iter().filter(|&&end| end <= cut).count();
        let length = whole.copied().unwrap_or(0);
        let found = walk(&bytes[..cut]).unwrap();
        assert_eq!(
            (found.bytes, found.batches),
            (length as u64, batches as u64),
            "cut at {cut}"
        );
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
        assert!(recovered.failed.is_empty(), "{recovered:?}");
        if batches < 2 {
            assert_eq!((recovered.discarded, recovered.cut_bytes), (1, cut as u64));
            assert!(names(dir.path()).is_empty(), "cut at {cut}");
            continue;
        }
        assert_eq!(recovered.cut_bytes, (cut - length) as u64);
        let [sealed] = &recovered.sealed[..] else {
            panic!("{recovered:?}")
        };
        let kept = std::fs::read(&sealed.path).unwrap();
        assert_eq!(kept[..length], bytes[..length]);
        assert_eq!(sealed.bytes, kept.len() as u64);
        let report = check_file(&sealed.path).unwrap();
        assert!(report.is_sound(), "cut at {cut}: {}", report.render());
        let polls = report.events.get("PollStartEvent").copied().unwrap_or(0);
        assert_eq!(polls, batches as u64 - 2);
        assert_eq!(report.events["ClockSyncEvent"], 3);
        assert_eq!(report.metadata["segment.complete"], "false");
        assert_eq!(report.metadata["dial9-bpf.recovered"], "true");
        assert_eq!(report.metadata["boot_id"], "abcd-7");
        let newest_ns = match polls {
            0 => BASE_NS,
            task_id => BASE_NS + task_id * 1_000_000 + 20,
        };
        assert_eq!(
            (sealed.started, sealed.ended),
            (anchor(BASE_NS), anchor(newest_ns))
        );
        let [recorded] = &recovered.recorded[..] else {
            panic!("{recovered:?}")
        };
        let until_ns = newest_ns + u64::from(polls > 0);
        assert_eq!(recorded.until_ns, until_ns, "cut at {cut}");
        std::fs::remove_file(&sealed.path).unwrap();
    }
}

#[test]
fn a_closed_segment_is_sealed_as_it_is() {
    let dir = spool_dir();
    let closed = close(create(dir.path(), anchor(BASE_NS)), &[]);
    let bytes = std::fs::read(closed.path()).unwrap();
    drop(closed);
    let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
    let [sealed] = &recovered.sealed[..] else {
        panic!("{recovered:?}")
    };
    assert_eq!(std::fs::read(&sealed.path).unwrap(), bytes);
    assert_eq!(sealed.ended, anchor(3 * BASE_NS));
    // A recovery that was killed before its rename leaves such a file.
    std::fs::rename(&sealed.path, dir.path().join("trace.0.bin.active")).unwrap();
    let again = recover(dir.path(), Owner::default(), no_archives).unwrap();
    assert_eq!(again.sealed, recovered.sealed);
}

#[test]
fn a_living_recorders_file_stays() {
    let dir = spool_dir();
    let segment = create(dir.path(), anchor(BASE_NS));
    let closed = close(create(dir.path(), anchor(BASE_NS)), &[]);
    let before = names(dir.path());
    let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
    assert!(recovered.sealed.is_empty() && recovered.failed.is_empty());
    assert_eq!(recovered.discarded, 0);
    assert_eq!(names(dir.path()), before);
    drop((segment, closed));
    let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
    assert_eq!(recovered.sealed.len(), 2);
}

#[test]
fn what_a_compression_left_is_finished_or_undone() {
    let dir = spool_dir();
    let seal = || {
        close(create(dir.path(), anchor(BASE_NS)), &[])
            .commit()
            .unwrap()
    };
    // Stopped before its commit, after it, and at its end.
    seal().write_partial(&[]).unwrap();
    let published = seal();
    published.write_partial(&[]).unwrap();
    published.publish().unwrap();
    let compressed = seal().compress(&[]).unwrap();
    let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
    assert!(recovered.failed.is_empty(), "{recovered:?}");
    assert_eq!(
        names(dir.path()),
        ["trace.0.bin", "trace.1.bin.gz", "trace.2.bin.gz"]
    );
    assert_eq!(recovered.uncompressed.len(), 1);
    assert_eq!(recovered.compressed.len(), 2);
    assert_eq!(recovered.compressed[1], compressed);
    assert!(recovered.sealed.is_empty());
    for path in [&compressed.path, &recovered.uncompressed[0].path] {
        let head = head(path, no_archives).unwrap();
        assert_eq!(head.started, anchor(BASE_NS));
        assert_eq!(head.raw_bytes, compressed.raw_bytes);
        assert!(head.metadata.contains(&("boot_id".into(), "abcd-7".into())));
    }
    let again = recovered.uncompressed.into_iter().next().unwrap();
    assert_eq!(again.started, anchor(BASE_NS));
    again.compress(&[]).unwrap();
}

#[test]
fn an_archive_is_read_by_whoever_can() {
    let dir = spool_dir();
    let seal = || {
        close(create(dir.path(), anchor(BASE_NS)), &[])
            .commit()
            .unwrap()
    };
    // An archive that is as good as any other to the reader given here; its
    // `.bin` had still to go. Another one was not finished.
    let sealed = seal();
    let archive = name::path(dir.path(), 0, Stage::Archived);
    std::fs::copy(&sealed.path, &archive).unwrap();
    let partial = name::path(dir.path(), seal().index, Stage::PartialArchive);
    std::fs::write(partial, "torn").unwrap();
    let recovered = recover(dir.path(), Owner::default(), |path| std::fs::read(path)).unwrap();
    assert!(recovered.failed.is_empty(), "{recovered:?}");
    assert_eq!(names(dir.path()), ["trace.0.bin.zst", "trace.1.bin"]);
    let [found] = &recovered.compressed[..] else {
        panic!("{recovered:?}")
    };
    assert_eq!((&found.path, found.bytes), (&archive, sealed.bytes));
    assert_eq!(found.started_unix_ns, anchor(BASE_NS).unix_ns);
    let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
    assert_eq!(recovered.failed[0].path, archive);
}

#[test]
fn an_eviction_is_handed_back_until_a_segment_has_told_it() {
    let dir = spool_dir();
    let gone = |index| Evicted {
        index,
        bytes: 100 + index,
    };
    for index in [1, 2] {
        let stage = Stage::Evicted { bytes: 100 + index };
        std::fs::write(name::path(dir.path(), index, stage), "not yet empty").unwrap();
    }
    let closed = close(create(dir.path(), anchor(BASE_NS)), &[gone(1)]);
    assert_eq!(closed.sealed().told, [1]);
    drop(closed);
    let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
    assert_eq!(recovered.evicted, [gone(2)]);
    assert_eq!(recovered.sealed[0].told, [1]);
    assert_eq!(
        names(dir.path()),
        ["trace.2.bin.evicted-102", "trace.3.bin"]
    );
    let empty = dir.path().join("trace.2.bin.evicted-102");
    assert_eq!(empty.metadata().unwrap().len(), 0);
}

#[test]
fn what_cannot_be_recovered_stays_and_is_named() {
    let dir = spool_dir();
    std::fs::write(dir.path().join("trace.1.bin"), "no trace").unwrap();
    std::fs::write(dir.path().join("trace.2.bin.gz"), "no member").unwrap();
    std::fs::create_dir(dir.path().join("trace.3.bin.active")).unwrap();
    fifo(&dir.path().join("trace.4.bin.active"));
    fifo(&dir.path().join("trace.5.bin"));
    let recovered = recover(dir.path(), Owner::default(), no_archives).unwrap();
    let failed: Vec<PathBuf> = recovered
        .failed
        .iter()
        .map(|error| error.path.clone())
        .collect();
    let expected = [
        "trace.1.bin",
        "trace.2.bin.gz",
        "trace.3.bin.active",
        "trace.4.bin.active",
        "trace.5.bin",
    ];
    assert_eq!(failed, expected.map(|name| dir.path().join(name)));
    assert_eq!(names(dir.path()), expected);
    let error = recover(Path::new("/nowhere/at/all"), Owner::default(), no_archives).unwrap_err();
    assert_eq!(error.to_string(), "cannot list /nowhere/at/all");
}

/// A reader that gives few bytes at a time is as good as any; a file of many
/// batches larger than the window is walked in pieces.
#[test]
fn a_large_file_is_walked_in_a_window() {
    let (mut bytes, _) = active();
    let long = batch(BASE_NS, 9);
    let copies = 5 * crate::encode::MAX_BATCH_BYTES / long.len();
    for _ in 0..copies {
        bytes.extend_from_slice(&long);
    }
    let whole = bytes.len() as u64;
    bytes.extend_from_slice(&long[..long.len() - 1]);
    let found = walk(&bytes[..]).unwrap();
    assert_eq!((found.bytes, found.batches), (whole, copies as u64 + 5));
    // No batch of ours is that large.
    let mut endless = b"TRC\0\x01".to_vec();
    let frame = [5, 1, 0, 0, 0, 0, 0, 0, 0];
    endless.extend(
        frame
            .iter()
            .cycle()
            .take(3 * crate::encode::MAX_BATCH_BYTES),
    );
    assert_eq!(walk(&endless[..]).unwrap().batches, 0);
}

proptest! {
    /// Any bytes after whole batches change nothing about these.
    #[test]
    fn a_torn_tail_of_any_bytes_is_cut(
        tail in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (mut bytes, ends) = active();
        bytes.extend_from_slice(&tail);
        let found = walk(&bytes[..]).unwrap();
        prop_assert!(found.bytes >= *ends.last().unwrap() as u64);
        prop_assert!(found.bytes <= bytes.len() as u64);
        if !tail.starts_with(b"TRC\0\x01") {
            prop_assert_eq!(found.bytes, *ends.last().unwrap() as u64);
        }
    }
}
