//! One encoding of a segment file to another.
//!
//! In: a file, raw, of gzip or of zstd. Out: a file with the same content in
//! another encoding, under another name until it is whole. Never: a file or a
//! frame in memory as a whole; a torn file under its final name; more than one
//! gzip member, since dial9's reader takes one.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use dial9_bpf_trace::recover::HEAD_BYTES;
use dial9_bpf_trace::segment::open_regular;
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use rustix::fs::{Gid, OFlags, Uid};

/// Level of gzip for archives: what dial9 reads, a little smaller.
const GZIP_LEVEL: u32 = 6;
/// Level of zstd for archives: four fifths of gzip's size at a similar speed.
const ZSTD_LEVEL: i32 = 6;
/// Largest window of a zstd frame that is read, as a power of two: 8 MiB, what
/// every decoder has to take and ours writes at most.
const ZSTD_WINDOW_LOG: u32 = 23;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const SEGMENT_MAGIC: [u8; 4] = *b"TRC\0";

/// How the bytes of a segment are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As they are: `.bin`.
    Raw,
    /// One gzip member: `.bin.gz`. What dial9 reads.
    Gzip,
    /// One zstd frame: `.bin.zst`. For archives.
    Zstd,
}

impl Encoding {
    /// What a name has after `.bin`.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Raw => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }

    /// The media type of an object.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Raw => "application/octet-stream",
            Self::Gzip => "application/gzip",
            Self::Zstd => "application/zstd",
        }
    }

    /// What a name promises: `None` when it is not of a segment.
    pub fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        [Self::Gzip, Self::Zstd, Self::Raw]
            .into_iter()
            .find(|encoding| {
                let suffix = encoding.suffix();
                let rest = name.strip_suffix(suffix);
                rest.and_then(|rest| rest.strip_suffix(".bin")).is_some()
            })
    }

    /// The name that a segment's file has in this encoding: `None` when its name
    /// is not of a segment.
    pub fn rename(self, path: &Path) -> Option<PathBuf> {
        let suffix = Self::of_name(path)?.suffix();
        let name = path.file_name()?.to_str()?.strip_suffix(suffix)?;
        Some(path.with_file_name(format!("{name}{}", self.suffix())))
    }

    /// What the first bytes of a file say: `None` when they are not of a
    /// segment.
    pub fn of_content(head: &[u8]) -> Option<Self> {
        if head.starts_with(&GZIP_MAGIC) {
            Some(Self::Gzip)
        } else if head.starts_with(&ZSTD_MAGIC) {
            Some(Self::Zstd)
        } else if head.starts_with(&SEGMENT_MAGIC) {
            Some(Self::Raw)
        } else {
            None
        }
    }
}

/// A conversion that failed; what there was is as it was.
#[derive(Debug, thiserror::Error)]
#[error("cannot convert {} to {}", from.display(), to.display())]
pub struct ConvertError {
    /// The file to read.
    pub from: PathBuf,
    /// The file to write.
    pub to: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// What a conversion did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Encoding of the file that was read.
    pub from: Encoding,
    /// Its content without encoding, bytes.
    pub raw_bytes: u64,
    /// Size of the file that was written.
    pub bytes: u64,
}

/// Writes the content of a file into another one, which replaces what has its
/// name. It gets the owner of the first, and is on the disk when this returns.
///
/// # Errors
///
/// [`ConvertError`]: not a segment, damaged, or a failure of the system. Nothing
/// is left of the new file.
pub fn convert(from: &Path, to: &Path, encoding: Encoding) -> Result<Converted, ConvertError> {
    convert_with(from, to, encoding, &[])
}

fn convert_with(
    from: &Path,
    to: &Path,
    encoding: Encoding,
    tail: &[u8],
) -> Result<Converted, ConvertError> {
    let mut name = to.as_os_str().to_owned();
    name.push(".tmp");
    let partial = PathBuf::from(name);
    let written = write((from, tail), &partial, encoding)
        .and_then(|converted| std::fs::rename(&partial, to).map(|()| converted));
    written.map_err(|source| {
        // Absent when it was not yet made.
        let _ = std::fs::remove_file(&partial);
        ConvertError {
            from: from.to_owned(),
            to: to.to_owned(),
            source,
        }
    })
}

/// As [`convert`], with whole batches behind the content; then removes the first file once the name of the other is on
/// the disk.
///
/// # Errors
///
/// [`ConvertError`]; both are there when the removal has failed.
pub fn replace(
    from: &Path,
    to: &Path,
    encoding: Encoding,
    tail: &[u8],
) -> Result<Converted, ConvertError> {
    let converted = convert_with(from, to, encoding, tail)?;
    let removed = sync_name(to).and_then(|()| std::fs::remove_file(from));
    removed.map_err(|source| ConvertError {
        from: from.to_owned(),
        to: to.to_owned(),
        source,
    })?;
    Ok(converted)
}

/// The first [`HEAD_BYTES`] of what an archive holds, for the recovery of a
/// spool.
///
/// # Errors
///
/// The system's, or what is wrong with the archive.
pub fn head_of_archive(path: &Path) -> io::Result<Vec<u8>> {
    let input = BufReader::new(open_regular(path, OFlags::RDONLY)?);
    let mut head = Vec::new();
    decoder(input, Encoding::Zstd)?
        .take(HEAD_BYTES)
        .read_to_end(&mut head)?;
    Ok(head)
}

fn write(
    (from, tail): (&Path, &[u8]),
    partial: &Path,
    encoding: Encoding,
) -> io::Result<Converted> {
    let file = open_regular(from, OFlags::RDONLY)?;
    let owner = file.metadata()?;
    let mut input = BufReader::new(file);
    let source = Encoding::of_content(input.fill_buf()?).ok_or_else(|| {
        let problem = "neither a segment nor gzip nor zstd";
        io::Error::new(io::ErrorKind::InvalidData, problem)
    })?;
    let mut output = create(partial, owner.uid(), owner.gid())?;
    let mut content = decoder(input, source)?.chain(tail);
    let raw_bytes = match encoding {
        Encoding::Raw => copy(&mut content, &mut output)?,
        Encoding::Gzip => {
            let mut member = GzEncoder::new(&mut output, Compression::new(GZIP_LEVEL));
            let raw_bytes = copy(&mut content, &mut member)?;
            member.finish()?;
            raw_bytes
        }
        Encoding::Zstd => {
            let mut frame = zstd::stream::write::Encoder::new(&mut output, ZSTD_LEVEL)?;
            frame.include_checksum(true)?;
            frame.window_log(ZSTD_WINDOW_LOG)?;
            let raw_bytes = copy(&mut content, &mut frame)?;
            frame.finish()?;
            raw_bytes
        }
    };
    output.sync_all()?;
    Ok(Converted {
        from: source,
        raw_bytes,
        bytes: output.metadata()?.len(),
    })
}

/// Copies the content, which has to be a segment whatever was around it.
fn copy(content: &mut dyn Read, output: &mut dyn Write) -> io::Result<u64> {
    let mut magic = [0; SEGMENT_MAGIC.len()];
    content.read_exact(&mut magic)?;
    if magic != SEGMENT_MAGIC {
        let problem = "the content is not a segment";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    output.write_all(&magic)?;
    Ok(io::copy(content, output)? + magic.len() as u64)
}

fn decoder(input: BufReader<File>, encoding: Encoding) -> io::Result<Box<dyn Read>> {
    Ok(match encoding {
        Encoding::Raw => Box::new(input),
        Encoding::Gzip => Box::new(MultiGzDecoder::new(input)),
        Encoding::Zstd => {
            let mut frames = zstd::stream::read::Decoder::with_buffer(input)?;
            frames.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(frames)
        }
    })
}

fn sync_name(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

fn create(path: &Path, uid: u32, gid: u32) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    if rustix::process::geteuid().is_root() {
        rustix::fs::fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests;
