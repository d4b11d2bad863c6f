//! The directory that a recording goes to.
//!
//! In: a path and a target's pid. Out: an existing, writable, locked directory.
//! Never: a directory left behind for a recording that did not begin.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use dial9_bpf_trace::lock::DirectoryLock;

/// A directory that is ours for one target.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
    is_ours: bool,
    lock: Option<DirectoryLock>,
}

impl Output {
    /// Makes the directory if it is absent, and locks it for the target.
    ///
    /// # Errors
    /// With the cause, such as a read-only file system or another recording of
    /// the same target.
    pub fn prepare(dir: &Path, pid: u32) -> anyhow::Result<Self> {
        let is_ours = match fs::create_dir(dir) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(dir).with_context(|| cannot_make(dir))?;
                true
            }
            Err(error) => return Err(error).with_context(|| cannot_make(dir)),
        };
        let lock = DirectoryLock::take(dir, pid)?;
        Ok(Self { dir: dir.to_owned(), is_ours, lock: Some(lock) })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps the directory: it has a segment now.
    pub fn keep(&mut self) {
        self.is_ours = false;
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // The lock's file goes with it, and leaves the directory empty.
        drop(self.lock.take());
        if self.is_ours && let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("{} stays: {error}", self.dir.display());
        }
    }
}

fn cannot_make(dir: &Path) -> String {
    format!("cannot make the output directory {}", dir.display())
}
