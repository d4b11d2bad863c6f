//! The directory of sealed segments.
//!
//! In: sealed segments, a budget, and what became of each one that was taken.
//! Out: the oldest segment that waits, and what had to go. Never: the active
//! segment; a segment that is both delivered and evicted, or neither.
//!
//! - There is one writer, who holds the directory's
//!   [lock](crate::lock::DirectoryLock::take_spool). The spool belongs to the thread that commits, compresses and puts; it waits for the
//!   disk.
//! - Over budget the oldest segment goes first, but for one that is claimed or
//!   in doubt. Its file becomes an empty one whose name keeps index and size,
//!   until a sealed segment has told the eviction: no crash loses the count.
//! - A segment that was being put when the process died is in doubt: the store
//!   has it perhaps. It is put again, and not evicted before it is delivered.
//!   [`Spool::begin_put`] marks it by a file. A put of unknown outcome that the
//!   caller [puts back](Spool::put_back) counts as failed.
//! - The names of evicted and of doubtful segments are on the disk before the
//!   call returns. The removal of a delivered one is not: after a power cut it
//!   is put again, under the same key with the same bytes.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use crate::recover::{Recorded, Unarchive, recover};
use crate::segment::name::{self, Stage};
use crate::segment::{CompressedSegment, Evicted, Owner, SealedSegment, SegmentError, sync_dir};

/// Size that a spool may have unless it is told otherwise, bytes.
pub const DEFAULT_BUDGET_BYTES: u64 = 1 << 30;

/// The segments of a directory.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    owner: Owner,
    budget_bytes: u64,
    entries: BTreeMap<u64, Entry>,
    /// Evictions that no sealed segment has told: size by index.
    untold: BTreeMap<u64, u64>,
    totals: Totals,
}

/// What happened since the spool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Segments delivered.
    pub delivered: u64,
    /// Segments evicted.
    pub evicted: u64,
    /// Their size, bytes.
    pub evicted_bytes: u64,
    /// Segments whose file somebody else has removed.
    pub missing: u64,
}

/// What a directory had when its spool was opened.
#[derive(Debug, Default)]
pub struct Found {
    /// Active files of a dead recorder, which are sealed now.
    pub recovered: u64,
    /// Segments that were there, sealed or compressed.
    pub waiting: u64,
    /// Active files without a clock or metadata, which are deleted.
    pub discarded: u64,
    /// Bytes after the last whole batches.
    pub cut_bytes: u64,
    /// How far those came that have left raw segments.
    pub recorded: Vec<Recorded>,
    /// Evictions still to be told.
    pub evicted: Vec<Evicted>,
    /// Files that stay as they were, and why.
    pub failed: Vec<SegmentError>,
}

/// A segment on its way.
#[derive(Debug, PartialEq, Eq)]
pub enum Segment {
    /// Still to be compressed.
    Sealed(SealedSegment),
    /// Ready to be put.
    Compressed(CompressedSegment),
}

impl Segment {
    /// Its `N`.
    pub fn index(&self) -> u64 {
        match self {
            Self::Sealed(segment) => segment.index,
            Self::Compressed(segment) => segment.index,
        }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Sealed(segment) => &segment.path,
            Self::Compressed(segment) => &segment.path,
        }
    }

    /// The file's size.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Sealed(segment) => segment.bytes,
            Self::Compressed(segment) => segment.bytes,
        }
    }
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    /// A crash has hidden how a put of it ended.
    is_in_doubt: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// To be claimed.
    Waiting(Segment),
    /// With whoever claimed it.
    Claimed,
    /// The store refuses it; stays until something changes.
    Refused(Segment),
    /// The spool is where it is to be.
    Kept(Segment),
}

impl State {
    fn segment(&self) -> Option<&Segment> {
        match self {
            Self::Waiting(segment) | Self::Refused(segment) | Self::Kept(segment) => Some(segment),
            Self::Claimed => None,
        }
    }
}

impl Spool {
    /// Opens a directory that the caller has locked, and
    /// [recovers](crate::recover) it.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when it cannot be listed.
    pub fn open(
        dir: &Path,
        owner: Owner,
        budget_bytes: u64,
        unarchive: Unarchive,
    ) -> Result<(Self, Found), SegmentError> {
        let recovered = recover(dir, owner, unarchive)?;
        let mut spool = Self {
            dir: dir.to_owned(),
            owner,
            budget_bytes,
            entries: BTreeMap::new(),
            untold: BTreeMap::new(),
            totals: Totals::default(),
        };
        let found = Found {
            recovered: recovered.sealed.len() as u64,
            waiting: (recovered.uncompressed.len() + recovered.compressed.len()) as u64,
            discarded: recovered.discarded,
            cut_bytes: recovered.cut_bytes,
            recorded: recovered.recorded,
            evicted: recovered.evicted,
            failed: recovered.failed,
        };
        for gone in &found.evicted {
            spool.untold.insert(gone.index, gone.bytes);
        }
        let raw = recovered.sealed.into_iter().chain(recovered.uncompressed);
        let compressed = recovered.compressed.into_iter();
        let segments = raw.map(Segment::Sealed);
        for segment in segments.chain(compressed.map(Segment::Compressed)) {
            let index = segment.index();
            spool.insert(segment, State::Waiting);
            if let Some(entry) = spool.entries.get_mut(&index) {
                entry.is_in_doubt = recovered.in_doubt.contains(&index);
            }
        }
        Ok((spool, found))
    }

    /// Takes a segment that has just been committed. What it tells of
    /// evictions is told.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when the mark of an eviction stays; the segment is in
    /// the spool all the same.
    pub fn admit(&mut self, sealed: SealedSegment) -> Result<(), SegmentError> {
        let told = sealed.told.clone();
        self.insert(Segment::Sealed(sealed), State::Waiting);
        for index in told {
            if let Some(bytes) = self.untold.remove(&index) {
                self.remove(index, Stage::Evicted { bytes })?;
            }
        }
        Ok(())
    }

    /// Gives the oldest segment that waits and is wanted. It is not evicted
    /// before it is given back.
    pub fn claim(&mut self, is_wanted: impl Fn(&Segment) -> bool) -> Option<Segment> {
        let waits = |entry: &&mut Entry| match &entry.state {
            State::Waiting(segment) => is_wanted(segment),
            State::Claimed | State::Refused(_) | State::Kept(_) => false,
        };
        let entry = self.entries.values_mut().find(waits)?;
        match std::mem::replace(&mut entry.state, State::Claimed) {
            State::Waiting(segment) => Some(segment),
            State::Claimed | State::Refused(_) | State::Kept(_) => None,
        }
    }

    /// The claimed segment is compressed, and waits again.
    pub fn compressed(&mut self, segment: CompressedSegment) {
        self.insert(Segment::Compressed(segment), State::Waiting);
    }

    /// Marks a claimed segment, before its bytes go out, as one that a crash from
    /// here on puts in doubt.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when the mark cannot be made.
    pub fn begin_put(&self, index: u64) -> Result<(), SegmentError> {
        let path = name::path(&self.dir, index, Stage::Put);
        let made = match self.owner.create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map(drop),
        };
        made.and_then(|()| sync_dir(&self.dir))
            .map_err(|source| SegmentError {
                action: "create",
                path,
                source,
            })
    }

    /// The claimed segment is where it should be: it leaves the spool.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when its file stays; the segment is out of the spool,
    /// and comes back when the directory is opened again.
    pub fn deliver(&mut self, segment: &Segment) -> Result<(), SegmentError> {
        self.totals.delivered += 1;
        self.remove_segment(segment)?;
        self.remove(segment.index(), Stage::Put)
    }

    /// The claimed segment waits again: the put failed, but may not the next
    /// time.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when its mark stays; the segment waits all the same.
    pub fn put_back(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.settle(segment, State::Waiting)
    }

    /// The store refuses the claimed segment: it stays until
    /// [`Spool::release_refused`].
    ///
    /// # Errors
    ///
    /// As [`Spool::put_back`].
    pub fn refuse(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.settle(segment, State::Refused)
    }

    /// The spool is where the claimed segment is to be.
    ///
    /// # Errors
    ///
    /// As [`Spool::put_back`].
    pub fn keep(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.settle(segment, State::Kept)
    }

    /// What was refused waits again. Returns how many segments.
    pub fn release_refused(&mut self) -> u64 {
        let mut released = 0;
        for entry in self.entries.values_mut() {
            entry.state = match std::mem::replace(&mut entry.state, State::Claimed) {
                State::Refused(segment) => {
                    released += 1;
                    State::Waiting(segment)
                }
                other => other,
            };
        }
        released
    }

    /// Evicts until the spool, with `active_bytes` of a segment that is being
    /// written, is within its budget, as far as there is something to evict.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when a file cannot go; those already gone are in
    /// `evicted`.
    pub fn enforce(
        &mut self,
        active_bytes: u64,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), SegmentError> {
        let before = evicted.len();
        let mut done = Ok(());
        while done.is_ok() && self.bytes().saturating_add(active_bytes) > self.budget_bytes {
            let Some(index) = self.oldest_evictable() else {
                break;
            };
            done = match self.bury(index) {
                Ok(Some(gone)) => {
                    evicted.push(gone);
                    self.empty(gone)
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
        }
        if evicted.len() > before {
            done = done.and(sync_dir(&self.dir).map_err(|source| SegmentError {
                action: "flush",
                path: self.dir.clone(),
                source,
            }));
        }
        done
    }

    /// Changes the budget, from the next [`Spool::enforce`] on.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget_bytes = bytes;
    }

    /// Size of all segments, bytes; without the active one.
    pub fn bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.bytes).sum()
    }

    /// Segments in the spool.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no segment.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Segments that the store refuses.
    pub fn refused(&self) -> usize {
        let is_refused = |entry: &&Entry| matches!(entry.state, State::Refused(_));
        self.entries.values().filter(is_refused).count()
    }

    /// What happened since the spool was opened.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}

mod files;

#[cfg(test)]
mod tests;
