//! What the begin of a segment says of it.
//!
//! In: a file of whatever encoding. Out: its start and its metadata, from which
//! a predecessor's identity is known. Never: more than the begin of the file.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use flate2::read::GzDecoder;
use rustix::fs::OFlags;

use super::walk::walk;
use crate::clock::Anchor;
use crate::segment::open_regular;

/// Enough of a segment, uncompressed, for its first batches.
pub const HEAD_BYTES: u64 = 64 << 10;

/// Reads the first [`HEAD_BYTES`] of what a `.zst` file holds.
pub type Unarchive = fn(&Path) -> io::Result<Vec<u8>>;

/// For a spool without archives.
///
/// # Errors
///
/// Always: [`io::ErrorKind::Unsupported`].
pub fn no_archives(_: &Path) -> io::Result<Vec<u8>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The begin of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Both clocks at its start.
    pub started: Anchor,
    /// The metadata written at its start.
    pub metadata: Vec<(String, String)>,
    /// Size of what the file holds, modulo 2^32; 0 where the file does not say.
    pub raw_bytes: u64,
}

/// Reads the begin of a segment file.
///
/// # Errors
///
/// The system's; [`io::ErrorKind::InvalidData`] for what is no segment.
pub fn head(path: &Path, unarchive: Unarchive) -> io::Result<Head> {
    let mut file = open_regular(path, OFlags::RDONLY)?;
    let mut bytes = Vec::new();
    let mut raw_bytes = 0;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => {
            GzDecoder::new(&file)
                .take(HEAD_BYTES)
                .read_to_end(&mut bytes)?;
            let mut size = [0; 4];
            file.seek(SeekFrom::End(-4))?;
            file.read_exact(&mut size)?;
            raw_bytes = u32::from_le_bytes(size).into();
        }
        Some("zst") => bytes = unarchive(path)?,
        _ => {
            raw_bytes = file.metadata()?.len();
            file.take(HEAD_BYTES).read_to_end(&mut bytes)?;
        }
    }
    let found = walk(&bytes[..])?;
    match found.first_sync {
        Some(started) if found.is_readable() => Ok(Head {
            started,
            metadata: found.metadata,
            raw_bytes,
        }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
