//! One recording of a target in a directory at a time, and one spool.
//!
//! In: a directory, and a pid for a recording. Out: a lock that lives as long
//! as its value, or as the process. Never: a lock left behind by a crash: the
//! kernel releases it with the descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::segment::open_regular;

/// Why a directory cannot be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another recorder writes this target's trace here.
    #[error("process {pid} is already being recorded into {}", dir.display())]
    AlreadyRecording {
        /// The target.
        pid: u32,
        /// The directory.
        dir: PathBuf,
    },
    /// Another process has the spool.
    #[error("{} is the spool of {}", dir.display(), named(*holder))]
    SpoolInUse {
        /// The directory.
        dir: PathBuf,
        /// Who has it, where the lock file says it.
        holder: Option<u32>,
    },
    /// The lock file is not usable.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn named(holder: Option<u32>) -> String {
    holder.map_or_else(|| "another process".into(), |pid| format!("process {pid}"))
}

/// The process that has a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its pid, in its own pid namespace.
    pub pid: u32,
    /// What it has written down last, or nothing.
    pub note: String,
}

/// Held while a target is recorded into a directory.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    file: File,
}

impl DirectoryLock {
    /// Takes the lock `DIR/.dial9-bpf-PID.lock`.
    ///
    /// # Errors
    ///
    /// [`LockError::AlreadyRecording`] when another holds it.
    pub fn take(dir: &Path, pid: u32) -> Result<Self, LockError> {
        let path = dir.join(format!(".dial9-bpf-{pid}.lock"));
        let held = || LockError::AlreadyRecording {
            pid,
            dir: dir.to_owned(),
        };
        Self::lock(path, held)
    }

    /// Takes a directory as a spool: the lock `DIR/.dial9-bpf.lock`, in which
    /// this process's pid is written.
    ///
    /// # Errors
    ///
    /// [`LockError::SpoolInUse`] when another process has it.
    pub fn take_spool(dir: &Path) -> Result<Self, LockError> {
        let path = spool_path(dir);
        let held = || LockError::SpoolInUse {
            dir: dir.to_owned(),
            holder: read(&path).map(|holder| holder.pid),
        };
        let lock = Self::lock(path.clone(), held)?;
        match lock.note("") {
            Ok(()) => Ok(lock),
            Err(source) => Err(LockError::Io { path, source }),
        }
    }

    /// Writes a line into the lock file of a spool, below the pid, for
    /// [`DirectoryLock::spool_holder`].
    ///
    /// # Errors
    ///
    /// The system's; the pid stays.
    pub fn note(&self, line: &str) -> io::Result<()> {
        let text = format!("{}\n{line}\n", std::process::id());
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }

    /// Who has a directory as its spool; `None` when nobody has.
    ///
    /// # Errors
    ///
    /// [`LockError::Io`] when that cannot be known.
    pub fn spool_holder(dir: &Path) -> Result<Option<Holder>, LockError> {
        let path = spool_path(dir);
        let io = |source| LockError::Io {
            path: path.clone(),
            source,
        };
        let file = match open_regular(&path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io(source)),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared).map_err(io::Error::from) {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(read(&path)),
            Err(source) => Err(io(source)),
        }
    }

    fn lock(path: PathBuf, held: impl Fn() -> LockError) -> Result<Self, LockError> {
        loop {
            match try_lock(&path) {
                Ok(Some(file)) => return Ok(Self { path, file }),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(held()),
                Err(source) => return Err(LockError::Io { path, source }),
            }
        }
    }
}

fn spool_path(dir: &Path) -> PathBuf {
    dir.join(".dial9-bpf.lock")
}

fn read(path: &Path) -> Option<Holder> {
    let file = open_regular(path, OFlags::RDONLY).ok()?;
    let text = io::read_to_string(file).ok()?;
    let mut lines = text.lines();
    Some(Holder {
        pid: lines.next()?.trim().parse().ok()?,
        note: lines.next().unwrap_or_default().to_owned(),
    })
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // While the lock is held, so that the name removed is the locked file's.
        if let Err(error) = std::fs::remove_file(&self.path) {
            // The file is of no consequence: the lock ends with the descriptor.
            debug_assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        }
    }
}

/// `None` when the file was removed between its opening and its lock.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let opened = file.metadata()?;
    match path.metadata() {
        Ok(named) if (named.dev(), named.ino()) == (opened.dev(), opened.ino()) => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_recorder_is_refused_until_the_first_ends() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(dir.path(), 42).unwrap();
        let error = DirectoryLock::take(dir.path(), 42).unwrap_err();
        assert!(
            matches!(error, LockError::AlreadyRecording { pid: 42, .. }),
            "{error}"
        );
        DirectoryLock::take(dir.path(), 43).unwrap();
        drop(lock);
        DirectoryLock::take(dir.path(), 42).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_spool_has_one_writer_and_says_who() {
        let dir = tempfile::tempdir().unwrap();
        let us = std::process::id();
        let holder = || DirectoryLock::spool_holder(dir.path()).unwrap();
        let noted = |note: &str| {
            let note = note.to_owned();
            Some(Holder { pid: us, note })
        };
        assert_eq!(holder(), None);
        let lock = DirectoryLock::take_spool(dir.path()).unwrap();
        assert_eq!(holder(), noted(""));
        for note in ["a long one", "short"] {
            lock.note(note).unwrap();
            assert_eq!(holder(), noted(note));
        }
        let error = DirectoryLock::take_spool(dir.path()).unwrap_err();
        let expected = format!("{} is the spool of process {us}", dir.path().display());
        assert_eq!(error.to_string(), expected);
        drop(lock);
        assert_eq!(holder(), None);
        // A crash leaves the file, but not the lock.
        std::fs::write(dir.path().join(".dial9-bpf.lock"), "1").unwrap();
        assert_eq!(holder(), None);
        DirectoryLock::take_spool(dir.path()).unwrap();
    }

    #[test]
    fn what_is_no_file_in_the_locks_place_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        crate::fixtures::fifo(&spool_path(dir.path()));
        let error = DirectoryLock::spool_holder(dir.path()).unwrap_err();
        let LockError::Io { source, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(source.to_string(), "not a regular file");
    }

    #[test]
    fn a_directory_that_does_not_exist_is_an_error() {
        let error = DirectoryLock::take(Path::new("/nowhere/at/all"), 1).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }), "{error}");
    }
}
