//! Where kernel objects outlive their recorder: a directory for each target in
//! the BPF file system, `dial9-bpf/PID-STARTTICKS`.
//!
//! In: a target. Out: its directory, locked while the value lives; objects by
//! name. Never: a directory of a living recorder touched: whoever removes or
//! takes one over has its lock, which the kernel releases with its owner.

use std::{
    ffi::CString,
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use aya::maps::Map;
use rustix::fs::{FlockOperation, flock, statfs};

use crate::{AttachError, Target, program::refused, rings::os_error, sys, target};

/// The BPF file system.
const BPFFS: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` (include/uapi/linux/magic.h).
const BPFFS_MAGIC: i64 = 0xcafe_4a11;
/// Ours in it.
const ROOT: &str = "/sys/fs/bpf/dial9-bpf";

/// A target's directory, locked.
#[derive(Debug)]
pub(crate) struct Pins {
    pid: u32,
    path: PathBuf,
    _lock: File,
}

impl Pins {
    /// The target's directory; made if absent.
    ///
    /// # Errors
    /// [`AttachError::AlreadyKept`] when another recorder has the directory,
    /// otherwise what the kernel answered.
    pub(crate) fn take(target: &Target) -> Result<Self, AttachError> {
        let pid = target.pid();
        let path = path_of(pid, target.start_ticks());
        let failed = |error| refused(&format!("make {}", path.display()), error);
        loop {
            make(Path::new(ROOT)).map_err(failed)?;
            match make(&path) {
                // Whoever removed the last target's has taken it along.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                made => made.map_err(failed)?,
            }
            match Self::lock(pid, path.clone()) {
                Ok(Some(pins)) => return Ok(pins),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(AttachError::AlreadyKept { pid });
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// The target's directory if it is there and nobody has it.
    pub(crate) fn left_of(target: &Target) -> Option<Self> {
        let path = path_of(target.pid(), target.start_ticks());
        Self::lock(target.pid(), path).ok()?
    }

    /// Directories that nobody has, of processes that are gone.
    pub(crate) fn stale() -> Vec<Self> {
        let entries = fs::read_dir(ROOT).into_iter().flatten().flatten();
        let stale = entries.filter_map(|entry| {
            let (pid, start_ticks) = parse(entry.file_name().to_str()?)?;
            let is_alive = target::start_ticks(pid) == Some(start_ticks);
            if is_alive {
                return None;
            }
            Self::lock(pid, entry.path()).ok()?
        });
        stale.collect()
    }

    /// `None` when the directory is gone.
    fn lock(pid: u32, path: PathBuf) -> io::Result<Option<Self>> {
        let absent = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        };
        let lock = match File::open(&path) {
            Ok(lock) => lock,
            Err(error) => return absent(error),
        };
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        match fs::metadata(&path) {
            Ok(named) if named.ino() == lock.metadata()?.ino() => Ok(Some(Self {
                pid,
                path,
                _lock: lock,
            })),
            Ok(_) => Ok(None),
            Err(error) => absent(error),
        }
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Pins an object.
    ///
    /// # Errors
    /// What the kernel answered.
    pub(crate) fn pin(&self, name: &str, object: BorrowedFd<'_>) -> Result<(), AttachError> {
        let path = self.path.join(name);
        sys::pin(object, &c_path(&path)).map_err(|error| failed("pin", &path, error))
    }

    /// Pins a map.
    ///
    /// # Errors
    /// What the kernel answered.
    pub(crate) fn pin_map(&self, name: &str, map: &Map) -> Result<(), AttachError> {
        let path = self.path.join(name);
        let pinned = map.pin(&path);
        pinned.map_err(|error| failed("pin", &path, os_error(&error)))
    }

    /// The object of a name.
    ///
    /// # Errors
    /// What the kernel answered.
    pub(crate) fn get(&self, name: &str) -> Result<OwnedFd, AttachError> {
        let path = self.path.join(name);
        sys::pinned(&c_path(&path)).map_err(|error| failed("open", &path, error))
    }

    /// The names that begin with `prefix`, in order, and what follows it.
    pub(crate) fn names(&self, prefix: &str) -> Vec<(String, String)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let rest = name.strip_prefix(prefix)?.to_owned();
                Some((name, rest))
            })
            .collect();
        names.sort();
        names
    }

    /// Removes every name that begins with `prefix`.
    pub(crate) fn clear(&self, prefix: &str) {
        for (name, _) in self.names(prefix) {
            // What stays keeps the directory, which the next recorder removes.
            let _ = fs::remove_file(self.path.join(name));
        }
    }
}

impl Drop for Pins {
    /// Removes everything, what lets hits through first.
    fn drop(&mut self) {
        self.clear(LINK);
        self.clear("");
        let _ = fs::remove_dir(&self.path);
        // The last one takes the directory of all.
        let _ = fs::remove_dir(ROOT);
    }
}

/// What the names of links begin with.
pub(crate) const LINK: &str = "link-";

fn failed(doing: &str, path: &Path, error: io::Error) -> AttachError {
    refused(&format!("{doing} {}", path.display()), error)
}

/// Whether there is a BPF file system.
///
/// # Errors
/// [`AttachError::NotKept`] where there is none.
pub(crate) fn check_mounted() -> Result<(), AttachError> {
    match statfs(BPFFS) {
        Ok(found) if found.f_type == BPFFS_MAGIC => Ok(()),
        _ => Err(AttachError::NotKept {
            reason: format!("no BPF file system at {BPFFS} (mount -t bpf bpf {BPFFS} makes one)"),
        }),
    }
}

/// Makes a directory that is root's alone, if it is absent.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn path_of(pid: u32, start_ticks: u64) -> PathBuf {
    Path::new(ROOT).join(format!("{pid}-{start_ticks}"))
}

fn parse(name: &str) -> Option<(u32, u64)> {
    let (pid, start_ticks) = name.split_once('-')?;
    Some((pid.parse().ok()?, start_ticks.parse().ok()?))
}

/// No name here has a zero byte: they are ours, or the kernel's.
fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default()
}
