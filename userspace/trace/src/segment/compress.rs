//! A sealed segment to one gzip member.
//!
//! In: `trace.N.bin`, and what goes behind it. Out: `trace.N.bin.gz`, written under another name and
//! renamed; then the `.bin` goes. Never: two gzip members in a file, which
//! dial9's Rust reader would cut after the first; the loss of the `.bin` when
//! anything fails.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::OFlags;

use super::{Owner, SealedSegment, open_regular, sync_dir};

/// Level of zlib-rs at which an event takes less than 5 bytes, for about 0.1 µs.
const LEVEL: u32 = 3;

/// A whole `trace.N.bin.gz`.
#[derive(Debug, PartialEq, Eq)]
pub struct CompressedSegment {
    /// The file.
    pub path: PathBuf,
    /// `N`.
    pub index: u64,
    /// Its size.
    pub bytes: u64,
    /// Size before compression.
    pub raw_bytes: u64,
    /// Start of the segment, ns since 1970.
    pub started_unix_ns: u64,
}

/// A compression that failed; the segment is as it was.
#[derive(Debug, thiserror::Error)]
#[error("cannot compress {}", segment.path.display())]
pub struct CompressError {
    /// The segment, to try again.
    pub segment: SealedSegment,
    /// The cause.
    pub source: io::Error,
}

impl SealedSegment {
    /// Replaces `trace.N.bin` by `trace.N.bin.gz`, which has `tail` behind it: whole
    /// batches, or nothing.
    ///
    /// # Errors
    ///
    /// [`CompressError`] gives the segment back.
    pub fn compress(self, tail: &[u8]) -> Result<CompressedSegment, CompressError> {
        let written = self
            .write_partial(tail)
            .and_then(|bytes| self.publish().map(|()| bytes))
            .and_then(|bytes| self.remove_raw().map(|()| bytes));
        match written {
            Ok(bytes) => Ok(CompressedSegment {
                path: with_suffix(&self.path, ".gz"),
                index: self.index,
                bytes,
                raw_bytes: self.bytes + tail.len() as u64,
                started_unix_ns: self.started.unix_ns,
            }),
            Err(source) => {
                // Absent when it was not yet made or is renamed already.
                let _ = std::fs::remove_file(self.partial());
                Err(CompressError {
                    segment: self,
                    source,
                })
            }
        }
    }

    /// Compresses into a file that no reader looks at; returns its size, bytes.
    pub(crate) fn write_partial(&self, tail: &[u8]) -> io::Result<u64> {
        write_member(&self.path, tail, (&self.partial(), self.owner))
    }

    /// The commit. The name is on the disk before the `.bin` can go.
    pub(crate) fn publish(&self) -> io::Result<()> {
        std::fs::rename(self.partial(), with_suffix(&self.path, ".gz"))?;
        self.path.parent().map_or(Ok(()), sync_dir)
    }

    pub(crate) fn remove_raw(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    fn partial(&self) -> PathBuf {
        with_suffix(&self.path, ".gz.tmp")
    }
}

/// Compresses a file and what is behind it into a new one; returns the new one's size,
/// bytes.
fn write_member(from: &Path, tail: &[u8], (to, owner): (&Path, Owner)) -> io::Result<u64> {
    let mut from = open_regular(from, OFlags::RDONLY)?;
    // A left-over of a run that was killed here.
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut member = GzEncoder::new(owner.create(to)?, Compression::new(LEVEL));
    io::copy(&mut from, &mut member)?;
    member.write_all(tail)?;
    let written = member.finish()?;
    written.sync_data()?;
    Ok(written.metadata()?.len())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
