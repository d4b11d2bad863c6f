//! The end of a segment.
//!
//! In: an active segment, and what its last batch says. Out: a
//! [`ClosedSegment`], which is whole but not yet sealed, and from it the sealed
//! one. Never: a wait for the disk before the segment is closed:
//! [`ClosedSegment::commit`] waits, on whatever thread has the time.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::name::{self, Stage};
use super::{ActiveSegment, Owner, SegmentError};
use crate::clock::Anchor;
use crate::encode::Encoder;
use crate::loss::Loss;
use crate::metadata::{Metadata, Outcome};

/// What the last batch of a segment says.
#[derive(Debug)]
pub struct Seal<'a, W> {
    /// The target, as at the segment's start.
    pub metadata: &'a Metadata,
    /// Every worker id given so far.
    pub workers: W,
    /// Counters of losses that ever moved.
    pub losses: &'a [Loss],
    /// Records of the segment that did not decode.
    pub undecoded: u64,
    /// See [`Outcome::is_complete`].
    pub is_complete: bool,
    /// The end.
    pub anchor: Anchor,
}

/// A segment that left the spool to keep its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Its `N`.
    pub index: u64,
    /// Size that its file had.
    pub bytes: u64,
}

/// [`Seal`], with what only a spool knows.
#[derive(Debug)]
pub(crate) struct Closing<'a> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) workers: &'a [u32],
    /// Workers with the thread that each of them is.
    pub(crate) threads: &'a [(u32, u32)],
    pub(crate) losses: &'a [Loss],
    pub(crate) evicted: &'a [Evicted],
    pub(crate) undecoded: u64,
    pub(crate) unwritten: u64,
    pub(crate) is_complete: bool,
    pub(crate) anchor: Anchor,
    /// Events in it, without those of the closing batch.
    pub(crate) events: u64,
}

/// A whole segment under its active name: every batch is written, the commit is
/// still to be made.
#[derive(Debug)]
pub struct ClosedSegment {
    file: File,
    dir: PathBuf,
    events: u64,
    /// What it will be.
    sealed: SealedSegment,
}

/// A whole `trace.N.bin`.
#[derive(Debug, PartialEq, Eq)]
pub struct SealedSegment {
    /// The file.
    pub path: PathBuf,
    /// `N`.
    pub index: u64,
    /// Its size.
    pub bytes: u64,
    /// Start of the segment.
    pub started: Anchor,
    /// End of the segment.
    pub ended: Anchor,
    /// Indexes of the evictions that it tells.
    pub told: Vec<u64>,
    pub(super) owner: Owner,
}

/// A commit that failed; the segment is as it was.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", segment.path().display())]
pub struct CommitError {
    /// The segment, to try again.
    pub segment: Box<ClosedSegment>,
    /// What was tried.
    pub action: &'static str,
    /// The cause.
    pub source: io::Error,
}

/// An active segment that could not be closed, and why.
pub(crate) type NotClosed = Box<(ActiveSegment, SegmentError)>;

impl ActiveSegment {
    /// Writes the last batch.
    ///
    /// # Errors
    ///
    /// Gives the segment back, with every whole batch that it had.
    pub(crate) fn close(mut self, closing: &Closing<'_>) -> Result<ClosedSegment, NotClosed> {
        let bytes = self.bytes;
        if let Err(error) = self.write_closing(closing) {
            // Another attempt writes all of it again.
            let _ = self.cut(bytes);
            return Err(Box::new((self, error)));
        }
        let Self {
            file,
            dir,
            index,
            owner,
            bytes,
            started,
            ..
        } = self;
        let sealed = SealedSegment {
            path: name::path(&dir, index, Stage::Sealed),
            index,
            bytes,
            started,
            ended: closing.anchor,
            told: closing.evicted.iter().map(|gone| gone.index).collect(),
            owner,
        };
        Ok(ClosedSegment {
            file,
            dir,
            events: closing.events,
            sealed,
        })
    }

    /// Ends the segment: writes the last batch, and commits.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] with the cause; the `.active` file stays, with every
    /// whole batch.
    pub fn seal(
        self,
        seal: Seal<'_, impl Iterator<Item = u32>>,
    ) -> Result<SealedSegment, SegmentError> {
        let Seal {
            metadata,
            workers,
            losses,
            undecoded,
            is_complete,
            anchor,
        } = seal;
        let closed = self.close(&Closing {
            metadata,
            workers: &workers.collect::<Vec<_>>(),
            threads: &[],
            losses,
            evicted: &[],
            undecoded,
            unwritten: 0,
            is_complete,
            anchor,
            events: 0,
        });
        let closed = closed.map_err(|refused| refused.1)?;
        closed.commit().map_err(|error| SegmentError {
            action: error.action,
            path: error.segment.path(),
            source: error.source,
        })
    }

    fn write_closing(&mut self, closing: &Closing<'_>) -> Result<(), SegmentError> {
        let Closing {
            metadata,
            workers,
            threads,
            losses,
            evicted,
            undecoded,
            unwritten,
            is_complete,
            anchor,
            events: _,
        } = *closing;
        let mut encoder = Encoder::new();
        for loss in losses {
            encoder.loss(anchor.mono_ns, loss);
            if encoder.is_full() {
                self.write_batch(encoder.cut())?;
            }
        }
        for &gone in evicted {
            encoder.eviction(anchor.mono_ns, gone);
            if encoder.is_full() {
                self.write_batch(encoder.cut())?;
            }
        }
        let outcome = Outcome {
            is_complete,
            lost: losses.iter().map(|loss| loss.lost).sum(),
            undecoded,
            unwritten,
        };
        let entries = metadata.closing(workers.iter().copied(), threads, outcome);
        encoder.metadata(anchor.mono_ns, entries);
        encoder.clock_sync(anchor);
        self.write_batch(encoder.cut())
    }
}

impl ClosedSegment {
    /// A file whose last batch closes it, found by a recovery.
    pub(crate) fn found(file: File, dir: &Path, sealed: SealedSegment) -> Self {
        Self {
            file,
            dir: dir.to_owned(),
            events: 0,
            sealed,
        }
    }

    /// Makes the segment last: its bytes reach the disk, then its name changes,
    /// then the name reaches the disk.
    ///
    /// # Errors
    ///
    /// [`CommitError`] gives the segment back.
    pub fn commit(self) -> Result<SealedSegment, CommitError> {
        let done = self
            .flush()
            .map_err(|source| ("flush", source))
            .and_then(|()| self.rename().map_err(|source| ("rename", source)))
            .and_then(|()| sync_dir(&self.dir).map_err(|source| ("flush the name of", source)));
        match done {
            Ok(()) => Ok(self.sealed),
            Err((action, source)) => Err(CommitError {
                segment: Box::new(self),
                action,
                source,
            }),
        }
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Also when an earlier attempt came this far.
    pub(crate) fn rename(&self) -> io::Result<()> {
        match std::fs::rename(self.path(), &self.sealed.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.sealed.path.exists() => {
                Ok(())
            }
            renamed => renamed,
        }
    }

    /// The file, under its active name.
    pub fn path(&self) -> PathBuf {
        name::path(&self.dir, self.sealed.index, Stage::Active)
    }

    /// Events that are lost if it cannot be committed.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// What it will be once it is committed.
    pub fn sealed(&self) -> &SealedSegment {
        &self.sealed
    }
}

impl SealedSegment {
    /// A segment found by a recovery, sealed or about to be.
    pub(crate) fn found(
        (dir, owner): (&Path, Owner),
        (index, bytes): (u64, u64),
        (started, ended): (Anchor, Anchor),
        told: Vec<u64>,
    ) -> Self {
        Self {
            path: name::path(dir, index, Stage::Sealed),
            index,
            bytes,
            started,
            ended,
            told,
            owner,
        }
    }
}

/// Waits until the names in a directory are on the disk.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
