//! The parts of an ELF file that a scan reads, in memory.
//!
//! In: an open file, trusted in nothing. Out: its bytes where they are wanted, zeros
//! elsewhere, at the places that they have in the file. Never: a mapping of the file,
//! which would be a signal where somebody truncates it; more memory than the parts.

use std::{
    fs::File,
    io,
    ops::{Deref, Range},
    os::unix::fs::FileExt as _,
    ptr::{self, NonNull},
    slice,
};

use dial9_bpf_probes::{STEPS, Step};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Largest file that is looked at, bytes; most of one as large are debug sections,
/// which are not read.
const MAX_FILE_BYTES: u64 = 16 << 30;

/// What of a file has been read.
#[derive(Debug)]
pub struct FileParts {
    start: NonNull<u8>,
    bytes: usize,
    file: File,
}

// SAFETY: the memory belongs to the value.
unsafe impl Send for FileParts {}

impl FileParts {
    /// Reads what a scan of the file reads. What a step cannot tell is left out: the
    /// scan comes to the same place, and says why.
    ///
    /// # Errors
    /// The kernel's answer; that the file is too large, or became shorter meanwhile.
    pub(crate) fn read(file: &File) -> io::Result<Self> {
        Self::read_by(file, &STEPS)
    }

    /// The same for what these steps name.
    ///
    /// # Errors
    /// As [`FileParts::read`].
    pub(crate) fn read_by(file: &File, steps: &[Step]) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        if bytes > MAX_FILE_BYTES {
            return Err(io::Error::other(format!("{bytes} bytes is too large")));
        }
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let mut parts = Self::zeroed(bytes, file.try_clone()?)?;
        for step in steps {
            let Ok(wanted) = step(&parts) else { break };
            for part in wanted {
                parts.fill(part)?;
            }
        }
        Ok(parts)
    }

    /// The file itself.
    ///
    /// # Errors
    /// The system's, when it has no descriptor left.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Another part of the file; `None` where it cannot be read, as where the file has
    /// become shorter.
    pub fn part(&self, part: Range<u64>) -> Option<Vec<u8>> {
        let bytes = part.end.checked_sub(part.start)?;
        if part.end > self.bytes as u64 {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(bytes).ok()?];
        self.file.read_exact_at(&mut bytes, part.start).ok()?;
        Some(bytes)
    }

    /// Zeros that take no memory until they are written.
    fn zeroed(bytes: usize, file: File) -> io::Result<Self> {
        if bytes == 0 {
            let start = NonNull::dangling();
            return Ok(Self { start, bytes, file });
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { start, bytes, file })
    }

    fn fill(&mut self, part: Range<u64>) -> io::Result<()> {
        let bounds = usize::try_from(part.start)
            .ok()
            .zip(usize::try_from(part.end).ok());
        // SAFETY: a mapping of so many bytes, and `self` is borrowed exclusively.
        let bytes = unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) };
        let bytes = bounds
            .and_then(|(start, end)| bytes.get_mut(start..end))
            .ok_or(io::ErrorKind::InvalidInput)?;
        self.file.read_exact_at(bytes, part.start)
    }
}

impl Deref for FileParts {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a mapping of so many bytes, which only `fill` writes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for FileParts {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: our mapping, which nothing refers to any more.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_is_read_no_further_than_its_beginning() {
        let file = tempfile::tempfile().expect("there is room");
        for bytes in [0, 63, 8 << 30] {
            file.set_len(bytes).expect("a hole");
            let parts = FileParts::read(&file).expect("readable");
            assert_eq!(parts.len() as u64, bytes);
        }
        file.set_len(MAX_FILE_BYTES + 1).expect("a hole");
        let error = FileParts::read(&file).expect_err("it is too large");
        assert_eq!(error.to_string(), "17179869185 bytes is too large");
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error() {
        let file = tempfile::tempfile().expect("there is room");
        let mut parts = FileParts::zeroed(100, file).expect("there is memory");
        let error = parts.fill(0..64).expect_err("it is empty");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_scan_finds_in_the_parts_what_it_finds_in_the_file() {
        let own = std::env::current_exe().expect("we run");
        let whole = std::fs::read(&own).expect("readable");
        let parts = FileParts::read(&File::open(&own).expect("there")).expect("readable");
        let reason = |bytes: &[u8]| dial9_bpf_probes::scan(bytes).expect_err("no Tokio");
        assert_eq!(reason(&parts), reason(&whole));
    }
}
