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

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};

use crate::clock::Anchor;
use crate::encode::Encoder;
use crate::loss::Loss;
use crate::metadata::{Metadata, Outcome};

mod compress;

pub use compress::{CompressError, CompressedSegment};

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

/// Who owns the files of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner(Option<(Uid, Gid)>);

impl Owner {
    /// The user behind sudo (`SUDO_UID`, `SUDO_GID`) when this process is
    /// root; otherwise whoever runs it.
    pub fn behind_sudo() -> Self {
        let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        let (Some(uid), Some(gid)) = (id("SUDO_UID"), id("SUDO_GID")) else {
            return Self(None);
        };
        let is_root = rustix::process::geteuid().is_root();
        Self(is_root.then(|| (Uid::from_raw(uid), Gid::from_raw(gid))))
    }

    /// Makes a directory that belongs to the owner.
    ///
    /// # Errors
    ///
    /// The system's; there is no directory then.
    pub fn create_dir(self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)?;
        let given = self.take_dir(path);
        if given.is_err() {
            // The first failure is the one to tell.
            let _ = std::fs::remove_dir(path);
        }
        given
    }

    fn take_dir(self, path: &Path) -> io::Result<()> {
        let Some((uid, gid)) = self.0 else {
            return Ok(());
        };
        // Not by its path: whoever owns the one above may have put a link there.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        rustix::fs::fchown(&dir, Some(uid), Some(gid))?;
        Ok(())
    }

    fn create(self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        if let Some((uid, gid)) = self.0 {
            rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        Ok(file)
    }
}

/// A segment that is being written.
#[derive(Debug)]
pub struct ActiveSegment {
    file: File,
    dir: PathBuf,
    index: u64,
    owner: Owner,
    /// End of the last whole batch, bytes.
    bytes: u64,
    started: Anchor,
    synced_ns: u64,
}

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
    owner: Owner,
}

impl ActiveSegment {
    /// Begins `DIR/trace.N.bin.active`, N being the directory's next free
    /// index.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] with the file that could not be created or written.
    pub fn create(
        dir: &Path,
        owner: Owner,
        metadata: &Metadata,
        started: Anchor,
    ) -> Result<Self, SegmentError> {
        let index = next_index(dir).map_err(|source| SegmentError {
            action: "list",
            path: dir.to_owned(),
            source,
        })?;
        let path = active_path(dir, index);
        let file = owner.create(&path).map_err(|source| SegmentError {
            action: "create",
            path,
            source,
        })?;
        let mut segment = Self {
            file,
            dir: dir.to_owned(),
            index,
            owner,
            bytes: 0,
            started,
            synced_ns: started.mono_ns,
        };
        let mut encoder = Encoder::new();
        encoder.clock_sync(started);
        segment.write_batch(encoder.cut())?;
        encoder.metadata(started.mono_ns, metadata.opening());
        encoder.clock_sync(started);
        segment.write_batch(encoder.cut())?;
        Ok(segment)
    }

    /// Appends a batch. When that fails, what was whole before stays whole.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] with the cause, such as a full disk.
    pub fn write_batch(&mut self, batch: &[u8]) -> Result<(), SegmentError> {
        if let Err(source) = self.file.write_all(batch) {
            // A second failure changes nothing: readers cut a torn tail.
            let _ = self.file.set_len(self.bytes);
            let _ = self.file.seek(SeekFrom::Start(self.bytes));
            return Err(SegmentError {
                action: "write",
                path: self.path(),
                source,
            });
        }
        self.bytes += batch.len() as u64;
        Ok(())
    }

    /// Adds the wall clock to the batch when the last one is
    /// [`CLOCK_SYNC_INTERVAL_NS`] ago.
    pub fn sync_clock(&mut self, now_ns: u64, encoder: &mut Encoder) {
        if now_ns.saturating_sub(self.synced_ns) >= CLOCK_SYNC_INTERVAL_NS {
            encoder.clock_sync(Anchor::read());
            self.synced_ns = now_ns;
        }
    }

    /// Ends the segment: writes the last batch and renames the file.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] with the cause; the `.active` file stays, with every
    /// whole batch.
    pub fn seal(
        mut self,
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
        let lost = losses.iter().map(|loss| loss.lost).sum();
        let mut encoder = Encoder::new();
        for loss in losses {
            encoder.loss(anchor.mono_ns, loss);
            if encoder.is_full() {
                self.write_batch(encoder.cut())?;
            }
        }
        let outcome = Outcome {
            is_complete,
            lost,
            undecoded,
        };
        encoder.metadata(anchor.mono_ns, metadata.closing(workers, outcome));
        encoder.clock_sync(anchor);
        self.write_batch(encoder.cut())?;

        let path = self.dir.join(format!("trace.{}.bin", self.index));
        std::fs::rename(self.path(), &path).map_err(|source| SegmentError {
            action: "rename",
            path: self.path(),
            source,
        })?;
        Ok(SealedSegment {
            path,
            index: self.index,
            bytes: self.bytes,
            started: self.started,
            ended: anchor,
            owner: self.owner,
        })
    }

    /// Size of the file so far, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Start of the segment.
    pub fn started(&self) -> Anchor {
        self.started
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        active_path(&self.dir, self.index)
    }
}

fn active_path(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("trace.{index}.bin.active"))
}

/// One above the highest index of any segment in the directory, whatever its
/// state.
fn next_index(dir: &Path) -> io::Result<u64> {
    let mut next = 0;
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let index = name
            .to_str()
            .and_then(|name| name.strip_prefix("trace."))
            .and_then(|name| name.split_once(".bin"))
            .and_then(|(index, _)| index.parse::<u64>().ok());
        if let Some(index) = index {
            next = next.max(index.saturating_add(1));
        }
    }
    Ok(next)
}

#[cfg(test)]
mod tests;
