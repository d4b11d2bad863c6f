//! Segment files.
//!
//! In: batches. Out: `trace.N.bin.active`, which a rename turns into
//! `trace.N.bin` at the seal, and which [`compress`](SealedSegment::compress)
//! turns into `trace.N.bin.gz`. Never: a torn batch in a sealed file; a file
//! that only a compression in progress has.
//!
//! - An active file begins with a batch `[ClockSync]` and a batch
//!   `[metadata, ClockSync]`. Cut anywhere, it loses its last batch at most.
//! - A sealed file ends with a batch `[losses, full metadata, ClockSync]`.
//! - Rename is the commit; a `.bin` never changes.
//! - An active file is locked (`flock`) while its writer lives, so that a
//!   recovery can tell what a dead one has left.
//! - Batches go to the page cache: they survive this process, not the machine.
//!   What is sealed or compressed is on the disk, name and bytes.
//! - A segment in memory has no file until somebody wants it in a spool.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use crate::clock::Anchor;
use crate::encode::Encoder;
use crate::metadata::Metadata;
use budget::{Bounded, Part};
use name::Stage;
use place::Home;

mod budget;
mod close;
mod compress;
pub(crate) mod name;
mod owner;
mod place;

pub use budget::{Budget, Cut, Keep};
pub use close::{ClosedSegment, CommitError, Evicted, Seal, SealedSegment};
pub(crate) use close::{Closing, sync_dir};
pub use compress::{CompressError, CompressedSegment};
pub use owner::Owner;
pub use place::Place;

/// Time between two wall-clock events in a segment, ns.
pub const CLOCK_SYNC_INTERVAL_NS: u64 = 10_000_000_000;

/// Why a segment could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct SegmentError {
    /// What was tried.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

impl SegmentError {
    /// The error and its cause on one line.
    pub fn in_full(&self) -> String {
        format!("{self}: {}", self.source)
    }
}

/// A segment that is being written.
#[derive(Debug)]
pub struct ActiveSegment {
    file: File,
    home: Home,
    owner: Owner,
    /// End of the last whole batch, bytes.
    bytes: u64,
    started: Anchor,
    synced_ns: u64,
    /// What of a segment of bounded size is kept.
    bounded: Option<Bounded>,
}

impl ActiveSegment {
    /// Begins `DIR/trace.N.bin.active`, N being the directory's next free
    /// index, or a segment in memory.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] with the file that could not be created or written, and
    /// that is not there then.
    pub fn create(
        place: &Place,
        owner: Owner,
        metadata: &Metadata,
        started: Anchor,
    ) -> Result<Self, SegmentError> {
        let (home, file) = place.create(owner)?;
        let mut segment = Self {
            file,
            home,
            owner,
            bytes: 0,
            started,
            synced_ns: started.mono_ns,
            bounded: None,
        };
        if let Err(error) = segment.write_opening(metadata) {
            // It has nothing that is worth keeping.
            segment.discard();
            return Err(error);
        }
        if let Place::Bounded(budget) = place {
            segment.bounded = Some(Bounded::new(*budget, segment.bytes));
        }
        Ok(segment)
    }

    /// Appends a batch of so many events, the first of which has this time, ns; in a
    /// segment of bounded size either it or others have to go where there is no room.
    ///
    /// # Errors
    ///
    /// As [`ActiveSegment::write_batch`].
    pub(crate) fn write_events(
        &mut self,
        batch: &[u8],
        (events, since_ns): (u64, u64),
    ) -> Result<(), SegmentError> {
        if let Some(bounded) = &mut self.bounded {
            let part = Part {
                bytes: batch.len() as u64,
                events,
                since_ns,
            };
            let is_taken = bounded.take(part, &self.file);
            if !is_taken.map_err(|source| self.error("make room in", source))? {
                return Ok(());
            }
        }
        self.write_batch(batch)
    }

    /// What a segment of bounded size lacks so far.
    pub(crate) fn dropped(&self) -> Cut {
        self.bounded.as_ref().map(Bounded::cut).unwrap_or_default()
    }

    /// Gives up a segment, as far as that is possible: a file that stays is found by
    /// the next recovery.
    pub(crate) fn discard(self) {
        if let Home::Spool { .. } = self.home {
            let _ = std::fs::remove_file(self.path());
        }
    }

    fn write_opening(&mut self, metadata: &Metadata) -> Result<(), SegmentError> {
        let started = self.started;
        let mut encoder = Encoder::new();
        encoder.clock_sync(started);
        self.write_batch(encoder.cut())?;
        encoder.metadata(started.mono_ns, metadata.opening());
        encoder.clock_sync(started);
        self.write_batch(encoder.cut())
    }

    /// Appends a batch. When that fails, what was whole before stays whole.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] with the cause, such as a full disk.
    pub fn write_batch(&mut self, batch: &[u8]) -> Result<(), SegmentError> {
        if let Err(source) = self.file.write_all(batch) {
            // A second failure changes nothing: readers cut a torn tail.
            let _ = self.cut(self.bytes);
            return Err(self.error("write", source));
        }
        self.bytes += batch.len() as u64;
        Ok(())
    }

    /// Adds the wall clock to the batch when the last one is
    /// [`CLOCK_SYNC_INTERVAL_NS`] ago.
    pub fn sync_clock(&mut self, now_ns: u64, encoder: &mut Encoder) {
        if self.is_sync_due(now_ns) {
            encoder.clock_sync(Anchor::read());
            self.synced_ns = now_ns;
        }
    }

    /// As [`ActiveSegment::sync_clock`], with a clock that was read already.
    pub fn sync_clock_at(&mut self, now: Anchor, encoder: &mut Encoder) {
        if self.is_sync_due(now.mono_ns) {
            encoder.clock_sync(now);
            self.synced_ns = now.mono_ns;
        }
    }

    fn is_sync_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.synced_ns) >= CLOCK_SYNC_INTERVAL_NS
    }

    /// Fails when the file of a spool has no name any more: somebody removed it or
    /// its directory, and what is written is lost.
    ///
    /// # Errors
    ///
    /// [`SegmentError`], with [`io::ErrorKind::NotFound`] as its cause.
    pub fn check_linked(&self) -> Result<(), SegmentError> {
        if let Home::Memory = self.home {
            return Ok(());
        }
        let links = self.file.metadata().map(|metadata| metadata.nlink());
        match links {
            Ok(1..) => Ok(()),
            Ok(0) => Err(self.error("find", io::ErrorKind::NotFound.into())),
            Err(source) => Err(self.error("find", source)),
        }
    }

    /// Cuts the file at the end of a batch.
    pub(crate) fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.bytes = bytes;
        self.file.set_len(bytes)?;
        self.file.seek(SeekFrom::Start(bytes))?;
        Ok(())
    }

    /// Size of the file so far, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes - self.bounded.as_ref().map_or(0, Bounded::gone)
    }

    /// Start of the segment.
    pub fn started(&self) -> Anchor {
        self.started
    }

    /// The file; of a segment in memory, what an error calls it.
    pub fn path(&self) -> PathBuf {
        self.home.path()
    }

    /// Every write goes elsewhere, such as to a full disk.
    #[cfg(test)]
    pub(crate) fn swap_file(&mut self, file: &mut File) {
        std::mem::swap(&mut self.file, file);
    }

    fn error(&self, action: &'static str, source: io::Error) -> SegmentError {
        SegmentError {
            action,
            path: self.path(),
            source,
        }
    }
}

/// Opens what must be a regular file without a wait for what may be behind its
/// name instead, such as the writer of a FIFO.
///
/// # Errors
///
/// The system's, or that it is no regular file.
pub fn open_regular(path: &Path, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file)
}

/// A new active file under the directory's next free index, locked so that a
/// recovery leaves it alone.
fn create_locked(dir: &Path, owner: Owner) -> Result<(u64, File), SegmentError> {
    loop {
        let index = name::next_index(dir).map_err(|source| SegmentError {
            action: "list",
            path: dir.to_owned(),
            source,
        })?;
        let path = name::path(dir, index, Stage::Active);
        let locked = owner.create(&path).and_then(|file| {
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok((file.metadata()?.nlink(), file))
        });
        match locked {
            // A recovery took the empty file for a dead recorder's.
            Ok((0, _)) => {}
            Ok((_, file)) => return Ok((index, file)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(source) => {
                return Err(SegmentError {
                    action: "create",
                    path,
                    source,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
