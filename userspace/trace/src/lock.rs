//! One recording of a target in a directory at a time.
//!
//! In: a directory and a pid. Out: a lock that lives as long as its value, or
//! as the process. Never: a lock left behind by a crash: the kernel releases
//! it with the descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

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
    /// The lock file is not usable.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Held while a target is recorded into a directory.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    _file: File,
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
        loop {
            match try_lock(&path) {
                Ok(Some(file)) => return Ok(Self { path, _file: file }),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(held()),
                Err(source) => return Err(LockError::Io { path, source }),
            }
        }
    }
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
    fn a_directory_that_does_not_exist_is_an_error() {
        let error = DirectoryLock::take(Path::new("/nowhere/at/all"), 1).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }), "{error}");
    }
}
