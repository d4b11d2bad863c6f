//! The end of a segment.
//!
//! In: an active segment, and what its last batch says. Out: a
//! [`ClosedSegment`], which is whole but not yet sealed, and from it the sealed
//! one. Never: a wait for the disk before the segment is closed:
//! [`ClosedSegment::commit`] waits, on whatever thread has the time.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::budget::{Bounded, Cut};
use super::name::{self, Stage};
use super::place::Home;
use super::{ActiveSegment, Owner, SegmentError, create_locked};
use crate::clock::Anchor;
use crate::encode::Encoder;
use crate::loss::Loss;
use crate::metadata::{Metadata, Outcome, Runtime};
use crate::stats::{QueueCounts, StackCounts};

/// What the last batch of a segment says.
#[derive(Clone, Copy, Debug)]
pub struct Seal<'a> {
    /// The target, as at the segment's start.
    pub metadata: &'a Metadata,
    /// Every worker id given so far.
    pub runtimes: &'a [Runtime],
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
    pub(crate) runtimes: &'a [Runtime],
    /// Workers with the thread that each of them is.
    pub(crate) threads: &'a [(u32, u32)],
    pub(crate) losses: &'a [Loss],
    pub(crate) evicted: &'a [Evicted],
    pub(crate) undecoded: u64,
    pub(crate) stacks: StackCounts,
    pub(crate) queues: QueueCounts,
    pub(crate) unwritten: u64,
    pub(crate) dump: Option<&'a str>,
    pub(crate) is_complete: bool,
    pub(crate) anchor: Anchor,
    /// Events in it, without those of the closing batch.
    pub(crate) events: u64,
}

/// A whole segment under its active name: every batch is written, the commit is
/// still to be made. Or one in memory, which has no name.
#[derive(Debug)]
pub struct ClosedSegment {
    state: State,
    events: u64,
    /// Of a segment of bounded size: what it lacks, and where in memory that was.
    cut: Cut,
    hole: Option<(u64, u64)>,
    /// What it will be; without a path as long as it is in memory.
    sealed: SealedSegment,
}

/// Where the bytes of a closed segment are.
#[derive(Debug)]
enum State {
    /// In its active file.
    Written { file: File, dir: PathBuf },
    /// In memory.
    Memory(Arc<File>),
    /// In memory, to be copied into an active file that is empty.
    Placed {
        from: Arc<File>,
        file: File,
        dir: PathBuf,
    },
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
        let (cut, bytes) = (self.dropped(), self.bytes());
        let hole = self.bounded.as_ref().map(Bounded::hole);
        let Self {
            file,
            home,
            owner,
            started,
            ..
        } = self;
        let (path, index, state) = match home {
            Home::Spool { dir, index } => {
                let path = name::path(&dir, index, Stage::Sealed);
                (path, index, State::Written { file, dir })
            }
            Home::Memory => (PathBuf::new(), 0, State::Memory(Arc::new(file))),
        };
        let sealed = SealedSegment {
            path,
            index,
            bytes,
            started,
            ended: closing.anchor,
            told: closing.evicted.iter().map(|gone| gone.index).collect(),
            owner,
        };
        Ok(ClosedSegment {
            state,
            events: closing.events - cut.events,
            cut,
            hole,
            sealed,
        })
    }

    /// Ends the segment: writes the last batch, and commits.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] with the cause; the `.active` file stays, with every
    /// whole batch.
    pub fn seal(self, seal: Seal<'_>) -> Result<SealedSegment, SegmentError> {
        let Seal {
            metadata,
            runtimes,
            losses,
            undecoded,
            is_complete,
            anchor,
        } = seal;
        let closed = self.close(&Closing {
            metadata,
            runtimes,
            threads: &[],
            losses,
            evicted: &[],
            undecoded,
            unwritten: 0,
            stacks: StackCounts::default(),
            queues: QueueCounts::default(),
            dump: None,
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
        if let Some(bounded) = &mut self.bounded {
            let end = bounded.make_room_for(closing_bytes(closing), &self.file);
            let end = end.map_err(|source| self.error("make room in", source))?;
            let cut = self.cut(end);
            cut.map_err(|source| self.error("cut", source))?;
        }
        let dropped = self
            .bounded
            .as_ref()
            .map(|bounded| bounded.entries(closing.anchor));
        let Closing {
            metadata,
            runtimes,
            threads,
            losses,
            evicted,
            undecoded,
            unwritten,
            stacks,
            queues,
            dump,
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
            stacks,
            queues,
            dump,
        };
        let mut entries = metadata.closing(runtimes, threads, outcome);
        entries.extend(dropped.into_iter().flatten());
        encoder.metadata(anchor.mono_ns, entries);
        encoder.clock_sync(anchor);
        self.write_batch(encoder.cut())
    }
}

/// About the bytes of the last batch, without what only a bounded segment tells.
fn closing_bytes(closing: &Closing<'_>) -> u64 {
    let mut encoder = Encoder::new();
    let at_ns = closing.anchor.mono_ns;
    for loss in closing.losses {
        encoder.loss(at_ns, loss);
    }
    let outcome = Outcome::default();
    let entries = closing
        .metadata
        .closing(closing.runtimes, closing.threads, outcome);
    encoder.metadata(at_ns, entries);
    encoder.clock_sync(closing.anchor);
    encoder.cut().len() as u64
}

impl ClosedSegment {
    /// A file whose last batch closes it, found by a recovery.
    pub(crate) fn found(file: File, dir: &Path, sealed: SealedSegment) -> Self {
        let dir = dir.to_owned();
        Self {
            state: State::Written { file, dir },
            events: 0,
            cut: Cut::default(),
            hole: None,
            sealed,
        }
    }

    /// Gives a segment in memory an active file, which is empty until the commit:
    /// only that waits for the disk. One that has a file is left as it is.
    ///
    /// # Errors
    ///
    /// [`SegmentError`]; the segment is as it was.
    pub fn place(&mut self, dir: &Path) -> Result<(), SegmentError> {
        let State::Memory(from) = &self.state else {
            return Ok(());
        };
        let (index, file) = create_locked(dir, self.sealed.owner)?;
        self.sealed.index = index;
        self.sealed.path = name::path(dir, index, Stage::Sealed);
        self.state = State::Placed {
            from: Arc::clone(from),
            file,
            dir: dir.to_owned(),
        };
        Ok(())
    }

    /// The memory that a segment has; `None` for one that was never in memory. It
    /// is in use until the segment is committed or dropped.
    pub fn memory(&self) -> Option<Weak<File>> {
        match &self.state {
            State::Written { .. } => None,
            State::Memory(from) | State::Placed { from, .. } => Some(Arc::downgrade(from)),
        }
    }

    /// Makes the segment last: its bytes reach the disk, then its name changes,
    /// then the name reaches the disk.
    ///
    /// # Errors
    ///
    /// [`CommitError`] gives the segment back; also one that has no
    /// [place](ClosedSegment::place).
    pub fn commit(self) -> Result<SealedSegment, CommitError> {
        let done = self
            .copy()
            .map_err(|source| ("write", source))
            .and_then(|()| self.flush().map_err(|source| ("flush", source)))
            .and_then(|()| self.rename().map_err(|source| ("rename", source)))
            .and_then(|()| {
                let synced = self.dir().map_or(Ok(()), sync_dir);
                synced.map_err(|source| ("flush the name of", source))
            });
        match done {
            Ok(()) => Ok(self.sealed),
            Err((action, source)) => Err(CommitError {
                segment: Box::new(self),
                action,
                source,
            }),
        }
    }

    /// From memory into the file, from the start: an earlier attempt may have come
    /// to any point.
    fn copy(&self) -> io::Result<()> {
        match &self.state {
            State::Written { .. } => Ok(()),
            State::Memory(_) => Err(io::Error::other("it has no place")),
            State::Placed { from, file, .. } => {
                let (mut from, mut file) = (&**from, file);
                from.rewind()?;
                file.rewind()?;
                io::copy(&mut from, &mut file)?;
                file.set_len(self.sealed.bytes)
            }
        }
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        match &self.state {
            State::Written { file, .. } | State::Placed { file, .. } => file.sync_data(),
            State::Memory(_) => Ok(()),
        }
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

    /// The file, under its active name; of a segment in memory, what an error calls
    /// it.
    pub fn path(&self) -> PathBuf {
        self.dir().map_or_else(
            || Home::Memory.path(),
            |dir| name::path(dir, self.sealed.index, Stage::Active),
        )
    }

    /// Writes a segment that is in memory somewhere else.
    ///
    /// # Errors
    ///
    /// The system's; some of it may be written.
    pub fn write_to(&self, mut out: impl Write) -> io::Result<()> {
        let State::Memory(from) = &self.state else {
            return Err(io::Error::other("it is not in memory"));
        };
        let mut from = &**from;
        from.rewind()?;
        if let Some((begin, end)) = self.hole {
            io::copy(&mut from.take(begin), &mut out)?;
            from.seek(SeekFrom::Start(end))?;
        }
        io::copy(&mut from, &mut out)?;
        out.flush()
    }

    /// What it lacks, since its size is bounded.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Events that are lost if it cannot be committed.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// What it will be once it is committed.
    pub fn sealed(&self) -> &SealedSegment {
        &self.sealed
    }

    fn dir(&self) -> Option<&Path> {
        match &self.state {
            State::Written { dir, .. } | State::Placed { dir, .. } => Some(dir),
            State::Memory(_) => None,
        }
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
