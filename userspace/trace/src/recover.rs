//! What a dead recorder has left.
//!
//! In: a directory, locked by whoever calls. Out: its segments, all of them
//! sealed or compressed, and what could not be saved, counted. Never: a file
//! that a living recorder writes; an event that was not in a whole batch.
//!
//! - An active file is cut at its last whole batch, closed by a batch that says
//!   `segment.complete=false` and `dial9-bpf.recovered=true`, and sealed. The
//!   recorder may have closed it already: then it is sealed as it is.
//! - An active file without clock and metadata is discarded.
//! - The end's wall-clock time is computed from the segment's last clock: the
//!   machine may have been started again since.
//! - Every step leaves a directory that the next recovery can take.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::encode::Encoder;
use crate::metadata::Target;
use crate::segment::name::{self, Stage};
use crate::segment::{
    ClosedSegment, CompressedSegment, Evicted, Owner, SealedSegment, SegmentError, open_regular,
};
use walk::{Walk, walk};

mod head;

pub(crate) mod walk;

pub use head::{HEAD_BYTES, Head, Unarchive, head, no_archives};

/// What a directory had.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Active files that are sealed now, oldest first.
    pub sealed: Vec<SealedSegment>,
    /// Sealed files that had not been compressed, oldest first.
    pub uncompressed: Vec<SealedSegment>,
    /// Compressed files, oldest first.
    pub compressed: Vec<CompressedSegment>,
    /// How far the recorders of those two came.
    pub recorded: Vec<Recorded>,
    /// Segments that a store has perhaps, since a put of them was not settled.
    pub in_doubt: BTreeSet<u64>,
    /// Evictions that no segment tells.
    pub evicted: Vec<Evicted>,
    /// Active files without a clock or metadata, which are deleted.
    pub discarded: u64,
    /// Bytes after the last whole batches, which are cut off or deleted.
    pub cut_bytes: u64,
    /// Files that stay as they were, and why.
    pub failed: Vec<SegmentError>,
}

/// How far a recorder came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The metadata of its segment.
    pub metadata: Vec<(String, String)>,
    /// Every record of before that is in it or in an earlier one,
    /// `CLOCK_MONOTONIC` ns.
    pub until_ns: u64,
}

impl Recorded {
    /// Whether the segment is one of this target.
    pub fn is_of(&self, target: &Target) -> bool {
        let has = |name: &str, value: String| {
            let mut entries = self.metadata.iter();
            entries.any(|(key, found)| key == name && *found == value)
        };
        has("target.pid", target.pid.to_string())
            && has("target.start_ticks", target.start_ticks.to_string())
    }
}

impl From<&Walk> for Recorded {
    fn from(walk: &Walk) -> Self {
        Self {
            metadata: walk.metadata.clone(),
            until_ns: walk.recorded_until_ns(),
        }
    }
}

/// Recovers a directory. The caller has its lock; active files that are locked
/// by themselves are another recorder's and stay. `unarchive` reads `.zst` files.
///
/// # Errors
///
/// When the directory cannot be listed; what is wrong with a file is in the
/// answer.
pub fn recover(dir: &Path, owner: Owner, unarchive: Unarchive) -> Result<Recovered, SegmentError> {
    let files = name::list(dir).map_err(|source| SegmentError {
        action: "list",
        path: dir.to_owned(),
        source,
    })?;
    let mut recovered = Recovered::default();
    let mut told = BTreeSet::<u64>::new();
    let mut compressed = BTreeSet::new();
    for &(index, stage) in &files {
        if matches!(stage, Stage::Compressed | Stage::Archived) {
            compressed.insert(index);
        }
    }
    // Evictions last: the segments say which of them are told.
    let is_eviction = |stage| matches!(stage, Stage::Evicted { .. });
    let (evictions, segments): (Vec<_>, Vec<_>) = files
        .into_iter()
        .partition(|&(_, stage)| is_eviction(stage));
    for (index, stage) in segments.into_iter().chain(evictions) {
        let path = name::path(dir, index, stage);
        let done = match stage {
            Stage::Active => recovered.active((dir, owner), index, &path),
            // The compression was committed.
            Stage::Sealed if compressed.contains(&index) => std::fs::remove_file(&path),
            Stage::Sealed => recovered.raw((dir, owner), index, &path),
            Stage::Compressed | Stage::Archived => recovered.compressed(index, &path, unarchive),
            Stage::Put if recovered.has(index) => {
                recovered.in_doubt.insert(index);
                Ok(())
            }
            // A compression without its commit; a delivery without its end.
            Stage::Partial | Stage::PartialArchive | Stage::Put => std::fs::remove_file(&path),
            Stage::Evicted { .. } if told.contains(&index) => std::fs::remove_file(&path),
            Stage::Evicted { bytes } => {
                recovered.evicted.push(Evicted { index, bytes });
                OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .open(&path)
                    .map(drop)
            }
        };
        if let Err(source) = done {
            recovered.failed.push(SegmentError {
                action: "recover",
                path,
                source,
            });
        }
        if !is_eviction(stage) {
            let found = [recovered.sealed.last(), recovered.uncompressed.last()];
            told.extend(found.into_iter().flatten().flat_map(|found| &found.told));
        }
    }
    Ok(recovered)
}

impl Recovered {
    fn has(&self, index: u64) -> bool {
        let raw = self.sealed.iter().chain(&self.uncompressed);
        raw.map(|segment| segment.index)
            .chain(self.compressed.iter().map(|segment| segment.index))
            .any(|present| present == index)
    }

    fn active(&mut self, spool: (&Path, Owner), index: u64, path: &Path) -> io::Result<()> {
        let mut file = open_regular(path, OFlags::RDWR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            locked => locked?,
        }
        let length = file.metadata()?.size();
        let found = walk(&file)?;
        self.cut_bytes += length - found.bytes;
        let (Some(started), Some(ended), true) =
            (found.first_sync, found.ended(), found.is_readable())
        else {
            self.discarded += 1;
            self.cut_bytes += found.bytes;
            return std::fs::remove_file(path);
        };
        file.set_len(found.bytes)?;
        let mut bytes = found.bytes;
        if !found.is_closed() {
            bytes += close(&mut file, &found)?;
        }
        let times = (started, ended);
        let recorded = Recorded::from(&found);
        let sealed = SealedSegment::found(spool, (index, bytes), times, found.told);
        let committed = ClosedSegment::found(file, spool.0, sealed).commit();
        self.sealed.push(committed.map_err(|error| error.source)?);
        self.recorded.push(recorded);
        Ok(())
    }

    fn raw(&mut self, spool: (&Path, Owner), index: u64, path: &Path) -> io::Result<()> {
        let found = walk(open_regular(path, OFlags::RDONLY)?)?;
        let (Some(started), Some(ended)) = (found.first_sync, found.ended()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let bytes = path.metadata()?.size();
        let times = (started, ended);
        self.recorded.push(Recorded::from(&found));
        let sealed = SealedSegment::found(spool, (index, bytes), times, found.told);
        self.uncompressed.push(sealed);
        Ok(())
    }

    fn compressed(&mut self, index: u64, path: &Path, unarchive: Unarchive) -> io::Result<()> {
        let head = head(path, unarchive)?;
        self.compressed.push(CompressedSegment {
            path: path.to_owned(),
            index,
            bytes: path.metadata()?.size(),
            raw_bytes: head.raw_bytes,
            started_unix_ns: head.started.unix_ns,
        });
        Ok(())
    }
}

/// Appends the batch that a crash has kept from being written; returns its
/// size, bytes.
fn close(file: &mut File, found: &Walk) -> io::Result<u64> {
    let mut entries = found.metadata.clone();
    for (key, value) in [
        ("segment.complete", "false"),
        ("dial9-bpf.recovered", "true"),
    ] {
        entries.push((key.to_owned(), value.to_owned()));
    }
    let mut encoder = Encoder::new();
    if let Some(ended) = found.ended() {
        encoder.metadata(ended.mono_ns, entries);
        encoder.clock_sync(ended);
    }
    let batch = encoder.cut();
    file.seek(SeekFrom::Start(found.bytes))?;
    file.write_all(batch)?;
    Ok(batch.len() as u64)
}

#[cfg(test)]
mod tests;
