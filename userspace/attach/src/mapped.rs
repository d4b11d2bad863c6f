//! The files that a process has mapped as code.
//!
//! In: a pid. Out: each such file, with its addresses, and the very file. Never: a
//! file at the same path in its stead; a device, of which opening has effects.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::{AttachError, target::unreadable};

/// What the kernel appends to the path of a file that is not there any more
/// (`fs/d_path.c`), as after an upgrade.
pub(crate) const DELETED: &str = " (deleted)";

/// Which file it is, as /proc/PID/maps tells: device and inode. The device is that of
/// `stat` on some file systems only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    device: String,
    inode: u64,
}

impl FileKey {
    /// Its device, major and minor number in hexadecimal.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Its inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// A file that a process has mapped as code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pid: u32,
    key: FileKey,
    path: PathBuf,
    /// Those of its mappings that are code, by address.
    code: Vec<Mapping>,
}

/// The same code is at two addresses, as `dlmopen` has it: two copies of its data, and
/// a hit is of either.
#[derive(Debug, thiserror::Error)]
#[error("it is loaded more than once")]
pub struct LoadedTwice;

impl Mapped {
    /// All of a process, in the order of their addresses.
    ///
    /// # Errors
    /// [`AttachError::NoProcess`]; [`AttachError::Proc`] where we may not look.
    pub fn all(pid: u32) -> Result<Vec<Self>, AttachError> {
        let path = format!("/proc/{pid}/maps");
        // A path may be of any bytes.
        let maps = fs::read(&path).map_err(|error| unreadable(pid, &path, error))?;
        Ok(Self::parse(pid, &String::from_utf8_lossy(&maps)))
    }

    fn parse(pid: u32, maps: &str) -> Vec<Self> {
        let mut files: Vec<Self> = Vec::new();
        let mut places = HashMap::new();
        for line in maps.lines() {
            let Some((mapping, key)) = Mapping::parse(line) else {
                continue;
            };
            if !mapping.is_code || key.inode == 0 {
                continue;
            }
            let place = *places.entry(key.clone()).or_insert(files.len());
            if place == files.len() {
                let path = line.find('/').map_or("", |start| &line[start..]);
                files.push(Self {
                    pid,
                    key,
                    path: path.strip_suffix(DELETED).unwrap_or(path).into(),
                    code: Vec::new(),
                });
            }
            files[place].code.push(mapping);
        }
        files
    }

    /// Which file it is, for as long as the process has it mapped.
    pub fn key(&self) -> &FileKey {
        &self.key
    }

    /// Whether a file of this inode is it.
    pub(crate) fn is_inode(&self, inode: u64) -> bool {
        self.key.inode == inode
    }

    /// The path that it has or had, as the process sees it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Those of its mappings that are code: addresses, and the offset in the file.
    pub fn code(&self) -> impl Iterator<Item = (Range<u64>, u64)> {
        let mappings = self.code.iter();
        mappings.map(|mapping| (mapping.start..mapping.end, mapping.offset))
    }

    /// Where its first code is.
    pub fn start(&self) -> u64 {
        self.code.first().map_or(0, |mapping| mapping.start)
    }

    /// Opens the very file, also where it was replaced or removed. Where we may not
    /// (`CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`, `fs/proc/base.c`), the one at its
    /// path as the process sees it, if that is still the same.
    ///
    /// # Errors
    /// The kernel's answer; [`io::ErrorKind::NotFound`] where it is another by now.
    pub fn open(&self) -> io::Result<File> {
        let mut links = self.code.iter().map(|Mapping { start, end, .. }| {
            PathBuf::from(format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid))
        });
        let opened = links.find_map(|link| open_file(&link).ok());
        let by_path = || {
            let path = self.path.strip_prefix("/").unwrap_or(&self.path);
            open_file(&Path::new(&format!("/proc/{}/root", self.pid)).join(path))
        };
        let file = opened.map_or_else(by_path, Ok)?;
        if file.metadata()?.ino() != self.key.inode {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(file)
    }

    /// Run-time address of the instruction at `file_offset`; `None` where no code
    /// covers it.
    ///
    /// # Errors
    /// [`LoadedTwice`].
    pub fn address_of(&self, file_offset: u64) -> Result<Option<u64>, LoadedTwice> {
        let mut covering = self
            .code
            .iter()
            .filter(|mapping| mapping.file_range().contains(&file_offset));
        let first = covering.next();
        if covering.next().is_some() {
            return Err(LoadedTwice);
        }
        Ok(first.map(|mapping| mapping.start + (file_offset - mapping.offset)))
    }
}

/// The code that the kernel maps into each process (`[vdso]`): where it is, and the ELF
/// image; `None` where there is none, or it cannot be read.
pub fn vdso(pid: u32) -> Option<(u64, Vec<u8>)> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (Mapping { start, end, .. }, _) = Mapping::parse(line)?;
    let mut image = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut image, start).ok()?;
    Some((start, image))
}

fn open_file(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::open(path)
}

/// Bytes of code that a process has mapped besides its executable's, KiB: it changes
/// when something is loaded or unloaded, and takes no lock of the process's memory to
/// tell (`VmLib`, `task_mem` in `fs/proc/task_mmu.c`).
pub fn library_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix("VmLib:"))?;
    value.trim().strip_suffix(" kB")?.parse().ok()
}

/// A line of /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Offset in the file, bytes.
    pub(crate) offset: u64,
    is_code: bool,
}

impl Mapping {
    pub(crate) fn parse(line: &str) -> Option<(Self, FileKey)> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let is_code = fields.next()?.contains('x');
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let offset = hex(fields.next()?)?;
        let device = fields.next()?.to_owned();
        let inode = fields.next()?.parse().ok()?;
        let mapping = Self {
            start: hex(start)?,
            end: hex(end)?,
            offset,
            is_code,
        };
        Some((mapping, FileKey { device, inode }))
    }

    fn file_range(&self) -> Range<u64> {
        self.offset
            ..self
                .offset
                .saturating_add(self.end.saturating_sub(self.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c8a00000-55d0c8a2f000 r--p 00000000 fe:00 1311 /usr/bin/app
55d0c8a2f000-55d0c8a3f000 r-xp 0002f000 fe:00 1311 /usr/bin/app
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7f0000010000-7f0000012000 r-xp 00001000 fe:00 77 /opt/a plugin.so (deleted)
7f0000020000-7f0000022000 r-xp 00001000 fe:00 77 /opt/a plugin.so (deleted)
7f0000030000-7f0000032000 r-xp 00001000 fe:01 77 /opt/another.so
garbage
";

    #[test]
    fn files_of_code_by_address() {
        let files = Mapped::parse(1, MAPS);
        let paths: Vec<_> = files.iter().map(|file| file.path().display()).collect();
        let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
        assert_eq!(
            paths,
            ["/usr/bin/app", "/opt/a plugin.so", "/opt/another.so"]
        );
        assert_eq!(files[0].start(), 0x55d0_c8a2_f000);
        let address = |file: &Mapped, offset| file.address_of(offset).map_err(|_| ());
        assert_eq!(address(&files[0], 0x2f010), Ok(Some(0x55d0_c8a2_f010)));
        assert_eq!(address(&files[0], 0x10), Ok(None));
        assert_eq!(address(&files[1], 0x1010), Err(()), "it is there twice");
        assert_eq!(address(&files[2], 0x1010), Ok(Some(0x7f00_0003_0010)));
    }

    #[test]
    fn the_very_file_and_what_is_mapped_of_it() {
        let pid = std::process::id();
        let files = Mapped::all(pid).expect("ours");
        let own = std::env::current_exe().expect("we run");
        let own = files.iter().find(|file| file.path() == own);
        let file = own.expect("we are mapped").open().expect("ours");
        let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let exe = fs::metadata("/proc/self/exe").expect("ours");
        assert_eq!(id(file.metadata().expect("it is open")), id(exe));
        assert!(library_kib(pid) > Some(0));
        let (start, image) = vdso(pid).expect("the kernel has one");
        assert!(start > 0 && image.starts_with(b"\x7fELF"));
    }
}
