//! The directory that a recording goes to.
//!
//! In: a path and a target's pid. Out: an existing, writable, locked directory
//! of which we are the only writer.
//! Never: a directory left behind for a recording that did not begin.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use dial9_bpf_trace::{lock::DirectoryLock, segment::Owner};

use crate::stderr;

/// A directory that is ours for one target. Its locks go first: their files are in
/// it.
#[derive(Debug)]
pub(crate) struct Output {
    _target: DirectoryLock,
    spool: Arc<DirectoryLock>,
    made: Made,
}

/// Directories that were made, outermost first.
#[derive(Debug, Default)]
struct Made(Vec<PathBuf>);

impl Output {
    /// Makes the directory for `owner` if it is absent, and locks it for the
    /// target and as a spool.
    ///
    /// # Errors
    /// With the cause, such as a read-only file system or another recording of
    /// the same target.
    pub(crate) fn prepare(dir: &Path, pid: u32, owner: Owner) -> anyhow::Result<Self> {
        let mut made = Made::default();
        make(dir, owner, &mut made.0)
            .with_context(|| format!("cannot make the output directory {}", dir.display()))?;
        // In this order, so that a second recording of the target says that.
        Ok(Self {
            _target: DirectoryLock::take(dir, pid)?,
            spool: Arc::new(DirectoryLock::take_spool(dir)?),
            made,
        })
    }

    /// The spool's lock, for who gives it up before this.
    pub(crate) fn spool_lock(&self) -> Arc<DirectoryLock> {
        Arc::clone(&self.spool)
    }

    /// Keeps the directory: it has a segment now.
    pub(crate) fn keep(&mut self) {
        self.made.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for dir in self.0.iter().rev() {
            if let Err(error) = fs::remove_dir(dir) {
                stderr::say(format_args!("{} stays: {error}", dir.display()));
                break;
            }
        }
    }
}

/// Makes a directory and those above it that are absent, and notes which.
fn make(dir: &Path, owner: Owner, made: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut created = owner.create_dir(dir);
    if let (Err(error), Some(parent)) = (&created, dir.parent())
        && error.kind() == io::ErrorKind::NotFound
        && !parent.as_os_str().is_empty()
    {
        make(parent, owner, made)?;
        created = owner.create_dir(dir);
    }
    match created {
        Ok(()) => made.push(dir.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> tempfile::TempDir {
        tempfile::tempdir().expect("there is room")
    }

    fn prepare(dir: &Path) -> anyhow::Result<Output> {
        Output::prepare(dir, 42, Owner::default())
    }

    #[test]
    fn what_was_made_goes_unless_it_is_kept() {
        let scratch = scratch();
        let outer = scratch.path().join("a");
        let dir = outer.join("b/c");
        drop(prepare(&dir).expect("it can be made"));
        assert!(!outer.exists());
        prepare(&dir).expect("it can be made").keep();
        assert!(dir.exists());
        drop(prepare(&dir).expect("it is there"));
        assert!(dir.exists());
    }

    #[test]
    fn a_failure_leaves_nothing_behind() {
        let scratch = scratch();
        let file = scratch.path().join("file");
        fs::write(&file, "").expect("there is room");
        for dir in [file.join("a/b"), file.clone()] {
            assert!(prepare(&dir).is_err(), "{}", dir.display());
        }
        assert_eq!(fs::read_dir(scratch.path()).expect("ours").count(), 1);
    }

    #[test]
    fn one_recording_of_a_target_at_a_time() {
        let scratch = scratch();
        let first = prepare(scratch.path()).expect("it is there");
        let error = prepare(scratch.path()).expect_err("it is taken");
        assert!(
            error.to_string().contains("already being recorded"),
            "{error}"
        );
        let error = Output::prepare(scratch.path(), 43, Owner::default()).expect_err("it is taken");
        assert!(error.to_string().contains("is the spool of"), "{error}");
        drop(first);
        prepare(scratch.path()).expect("it is free");
    }
}
