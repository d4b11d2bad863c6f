use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::fixtures::{BASE_NS, anchor, batch, close, create, names, spool_dir};
use crate::recover::no_archives;
use crate::recover::walk::walk;
use crate::segment::{ActiveSegment, ClosedSegment};

#[derive(Clone, Debug)]
enum Step {
    Write(u64),
    Close,
    /// Commits and admits; a crash after so many steps.
    Commit(u8),
    /// Compresses; a crash after so many steps.
    Compress(u8),
    /// The upload and its result; a crash after so many steps.
    Put(Answer, u8),
    /// Claims, and does nothing yet.
    Claim,
    Budget(u64),
    Enforce,
    /// A crash between the two steps of an eviction.
    EnforceHalf,
    ReleaseRefused,
    /// The bytes of a torn batch that the active file has then.
    Crash(usize),
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Yes,
    NotNow,
    Never,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let answer = prop_oneof![
        4 => Just(Answer::Yes),
        2 => Just(Answer::NotNow),
        1 => Just(Answer::Never),
    ];
    let step = prop_oneof![
        3 => (0_u64..4).prop_map(Step::Write),
        6 => Just(Step::Close),
        6 => (0_u8..12).prop_map(Step::Commit),
        6 => (0_u8..12).prop_map(Step::Compress),
        6 => (answer, 0_u8..12).prop_map(|(answer, crash)| Step::Put(answer, crash)),
        2 => Just(Step::Claim),
        2 => (0_u64..6000).prop_map(Step::Budget),
        4 => Just(Step::Enforce),
        1 => Just(Step::EnforceHalf),
        1 => Just(Step::ReleaseRefused),
        1 => (0_usize..400).prop_map(Step::Crash),
    ];
    proptest::collection::vec(step, 1..120)
}

/// The real spool, and what must be true of it. A segment is known by its
/// serial number, which is also its start, since an index is given again once
/// the directory is empty.
struct World {
    dir: TempDir,
    spool: Spool,
    active: Option<(u64, ActiveSegment)>,
    closed: Vec<(u64, ClosedSegment)>,
    claimed: Option<Segment>,
    budget: u64,
    /// Evictions that the recorder has still to tell.
    untold: Vec<Evicted>,
    next: u64,
    /// Serial of each index with a file.
    serials: BTreeMap<u64, u64>,
    sealed: BTreeSet<u64>,
    store: BTreeMap<u64, Vec<u8>>,
    evicted: BTreeSet<u64>,
    /// Evicted, by index, until a sealed segment has told it.
    buried: BTreeMap<u64, u64>,
}

impl World {
    fn new() -> Self {
        let dir = spool_dir();
        let (spool, _) = Spool::open(dir.path(), Owner::default(), u64::MAX, no_archives).unwrap();
        Self {
            dir,
            spool,
            active: None,
            closed: Vec::new(),
            claimed: None,
            budget: u64::MAX,
            untold: Vec::new(),
            next: 1,
            serials: BTreeMap::new(),
            sealed: BTreeSet::new(),
            store: BTreeMap::new(),
            evicted: BTreeSet::new(),
            buried: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Write(batches) => self.write(batches),
            Step::Close => self.close(),
            Step::Commit(crash) => self.commit(crash),
            Step::Compress(crash) => self.compress(crash),
            Step::Put(answer, crash) => self.put(answer, crash),
            Step::Claim => self.claim(|_| true),
            Step::Budget(bytes) => {
                self.budget = bytes;
                self.spool.set_budget(bytes);
            }
            Step::Enforce => self.enforce(),
            Step::EnforceHalf => {
                if let Some(index) = self.spool.oldest_evictable() {
                    let gone = self.spool.bury(index).unwrap().unwrap();
                    self.is_gone(gone);
                    self.crash(0);
                }
            }
            Step::ReleaseRefused => {
                self.spool.release_refused();
                assert_eq!(self.spool.refused(), 0);
            }
            Step::Crash(torn) => self.crash(torn),
        }
    }

    fn write(&mut self, batches: u64) {
        if self.active.is_none() {
            let serial = self.next;
            self.next += 1;
            let segment = create(self.dir.path(), anchor(serial * BASE_NS));
            let name = segment.path();
            let name = name.file_name().unwrap().to_str().unwrap();
            let (index, _) = name::parse(name).unwrap();
            assert!(!self.buried.contains_key(&index), "index {index} is taken");
            assert_eq!(self.serials.insert(index, serial), None);
            self.active = Some((serial, segment));
        }
        let (serial, segment) = self.active.as_mut().unwrap();
        for i in 0..batches {
            segment
                .write_batch(&batch(*serial * BASE_NS + i, 1))
                .unwrap();
        }
    }

    fn close(&mut self) {
        self.write(1);
        let (serial, segment) = self.active.take().unwrap();
        let untold = std::mem::take(&mut self.untold);
        self.closed.push((serial, close(segment, &untold)));
    }

    fn commit(&mut self, crash: u8) {
        if self.closed.is_empty() {
            return;
        }
        let (serial, closed) = self.closed.remove(0);
        closed.flush().unwrap();
        if crash == 1 {
            self.closed.push((serial, closed));
            return self.crash(0);
        }
        closed.rename().unwrap();
        self.is_sealed(serial);
        if crash == 2 {
            drop(closed);
            return self.crash(0);
        }
        // Again, as a second attempt does.
        let sealed = closed.commit().unwrap();
        self.spool.admit(sealed).unwrap();
    }

    fn compress(&mut self, crash: u8) {
        let is_raw = |segment: &Segment| matches!(segment, Segment::Sealed(_));
        self.claim(is_raw);
        let Some(Segment::Sealed(segment)) = self.claimed.take_if(|claimed| is_raw(claimed)) else {
            return;
        };
        if (1..=3).contains(&crash) {
            segment.write_partial(&[]).unwrap();
            if crash > 1 {
                segment.publish().unwrap();
            }
            if crash > 2 {
                segment.remove_raw().unwrap();
            }
            return self.crash(0);
        }
        let compressed = segment.compress(&[]).unwrap();
        self.spool.compressed(compressed);
    }

    fn claim(&mut self, is_wanted: impl Fn(&Segment) -> bool) {
        if self.claimed.is_none() {
            self.claimed = self.spool.claim(is_wanted);
        }
    }

    fn put(&mut self, answer: Answer, crash: u8) {
        let is_ready = |segment: &Segment| matches!(segment, Segment::Compressed(_));
        self.claim(is_ready);
        let Some(segment) = self.claimed.take_if(|claimed| is_ready(claimed)) else {
            return;
        };
        self.spool.begin_put(segment.index()).unwrap();
        if crash == 1 {
            return self.crash(0);
        }
        match answer {
            Answer::Yes => {}
            Answer::NotNow => return self.spool.put_back(segment).unwrap(),
            Answer::Never => return self.spool.refuse(segment).unwrap(),
        }
        let serial = self.serials[&segment.index()];
        let bytes = std::fs::read(segment.path()).unwrap();
        assert!(
            !self.evicted.contains(&serial),
            "{serial} is evicted and delivered"
        );
        if let Segment::Compressed(segment) = &segment {
            assert_eq!(segment.started_unix_ns, anchor(serial * BASE_NS).unix_ns);
        }
        if let Some(before) = self.store.insert(serial, bytes.clone()) {
            assert_eq!(before, bytes, "{serial} is delivered as two");
        }
        if crash == 2 {
            return self.crash(0);
        }
        self.serials.remove(&segment.index());
        if crash == 3 {
            self.spool.remove_segment(&segment).unwrap();
            return self.crash(0);
        }
        self.spool.deliver(&segment).unwrap();
    }

    fn enforce(&mut self) {
        let mut gone = Vec::new();
        self.spool.enforce(0, &mut gone).unwrap();
        for gone in gone {
            self.is_gone(gone);
        }
        assert!(
            self.spool.bytes() <= self.budget || self.spool.oldest_evictable().is_none(),
            "over budget, and something could go"
        );
    }

    fn is_gone(&mut self, gone: Evicted) {
        let serial = self.serials.remove(&gone.index).unwrap();
        assert!(self.sealed.contains(&serial));
        assert!(
            !self.store.contains_key(&serial),
            "{serial} is delivered and evicted"
        );
        assert!(self.evicted.insert(serial), "{serial} is evicted twice");
        self.buried.insert(gone.index, serial);
        self.untold.push(gone);
    }

    /// A segment has its final name: what it tells is told.
    fn is_sealed(&mut self, serial: u64) {
        assert!(self.sealed.insert(serial), "{serial} is sealed twice");
        let (index, _) = self.serials.iter().find(|(_, s)| **s == serial).unwrap();
        let path = name::path(self.dir.path(), *index, Stage::Sealed);
        for told in walk(&std::fs::read(path).unwrap()[..]).unwrap().told {
            assert!(self.buried.remove(&told).is_some(), "{told} is told twice");
        }
    }

    /// The process dies, and another takes over.
    fn crash(&mut self, torn: usize) {
        let active = self.active.take();
        let unsealed = active.iter().map(|(serial, _)| *serial);
        let unsealed: Vec<u64> = unsealed
            .chain(self.closed.iter().map(|(s, _)| *s))
            .collect();
        if let Some((_, segment)) = &active {
            let torn_batch = &batch(7, 7);
            let torn_batch = &torn_batch[..torn.min(torn_batch.len() - 1)];
            let mut bytes = std::fs::read(segment.path()).unwrap();
            bytes.extend_from_slice(torn_batch);
            std::fs::write(segment.path(), bytes).unwrap();
        }
        drop(active);
        self.closed.clear();
        self.claimed = None;
        let (spool, found) =
            Spool::open(self.dir.path(), Owner::default(), self.budget, no_archives).unwrap();
        assert!(found.failed.is_empty(), "{found:?}");
        assert_eq!(
            (found.recovered, found.discarded),
            (unsealed.len() as u64, 0)
        );
        self.spool = spool;
        for serial in unsealed {
            self.is_sealed(serial);
        }
        let marks: BTreeSet<u64> = found.evicted.iter().map(|gone| gone.index).collect();
        assert_eq!(marks, self.buried.keys().copied().collect());
        self.untold = found.evicted;
    }

    /// The store takes everything, and the budget is large.
    fn settle(&mut self) {
        self.crash(0);
        self.step(&Step::Budget(u64::MAX));
        self.close();
        self.commit(0);
        while !self.spool.is_empty() {
            self.compress(0);
            self.put(Answer::Yes, 0);
        }
        assert!(self.buried.is_empty(), "not told: {:?}", self.buried);
        for serial in &self.sealed {
            assert!(self.store.contains_key(serial) != self.evicted.contains(serial));
        }
        assert_eq!(self.sealed.len() as u64, self.next - 1);
        assert!(
            names(self.dir.path()).is_empty(),
            "{:?}",
            names(self.dir.path())
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Any sequence of writes, seals, compressions, uploads with any result,
    /// budgets and crashes at any step: each sealed segment is delivered exactly
    /// once, or evicted and told exactly once.
    #[test]
    fn each_sealed_segment_is_delivered_or_evicted_and_told(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.settle();
    }
}

fn filled(count: u64) -> (TempDir, Spool) {
    let dir = spool_dir();
    let (mut spool, _) = Spool::open(dir.path(), Owner::default(), u64::MAX, no_archives).unwrap();
    for serial in 0..count {
        let segment = create(dir.path(), anchor((serial + 1) * BASE_NS));
        let sealed = close(segment, &[]).commit().unwrap();
        spool.admit(sealed).unwrap();
    }
    (dir, spool)
}

#[test]
fn the_oldest_goes_first_and_neither_the_claimed_nor_the_active() {
    let (dir, mut spool) = filled(4);
    let active = create(dir.path(), anchor(9 * BASE_NS));
    let claimed = spool.claim(|_| true).unwrap();
    assert_eq!(claimed.index(), 0);
    let each = claimed.bytes();
    spool.set_budget(3 * each);
    let mut gone = Vec::new();
    spool.enforce(active.bytes(), &mut gone).unwrap();
    let indexes: Vec<u64> = gone.iter().map(|gone| gone.index).collect();
    assert_eq!(indexes, [1, 2]);
    assert_eq!(spool.totals().evicted_bytes, 2 * each);
    // With nothing left to evict it stays over budget.
    spool.set_budget(0);
    spool.enforce(0, &mut gone).unwrap();
    assert_eq!((gone.len(), spool.len()), (3, 1));
    spool.keep(claimed).unwrap();
    spool.enforce(0, &mut gone).unwrap();
    assert!(spool.is_empty());
    assert!(active.path().exists());
    assert_eq!(names(dir.path()).len(), 5);
}

#[test]
fn a_kept_or_refused_segment_is_not_claimed_again() {
    let (_dir, mut spool) = filled(2);
    let first = spool.claim(|_| true).unwrap();
    spool.keep(first).unwrap();
    let second = spool.claim(|_| true).unwrap();
    spool.refuse(second).unwrap();
    assert_eq!((spool.claim(|_| true), spool.refused()), (None, 1));
    assert_eq!(spool.release_refused(), 1);
    assert_eq!(spool.claim(|_| true).unwrap().index(), 1);
}

#[test]
fn a_directory_that_is_removed_is_named_and_its_segments_are_missing() {
    let (dir, mut spool) = filled(2);
    let segment = create(dir.path(), anchor(9 * BASE_NS));
    let closed = close(segment, &[]);
    std::fs::remove_dir_all(dir.path()).unwrap();
    let error = closed.commit().unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().starts_with("cannot rename /"), "{error}");
    let error = spool.begin_put(0).unwrap_err();
    assert!(error.to_string().starts_with("cannot create /"), "{error}");
    spool.set_budget(0);
    spool.enforce(0, &mut Vec::new()).unwrap();
    assert_eq!((spool.totals().missing, spool.totals().evicted), (2, 0));
}
