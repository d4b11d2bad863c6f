//! File systems of a test's own.
//!
//! In: a folder and mount options. Out: a mounted file system. Never: one that
//! outlives its value.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Unmounted with the value.
#[derive(Debug)]
pub struct Mount(PathBuf);

/// A file system in memory, below a folder.
///
/// # Panics
///
/// When it cannot be mounted.
pub fn tmpfs(scratch: &Path, options: &str) -> Mount {
    let path = scratch.join("mounted");
    fs::create_dir(&path).expect("it can be made");
    let mount = ["-t", "tmpfs", "-o", options, "dial9-bpf-test"];
    let status = Command::new("mount")
        .args(mount)
        .arg(&path)
        .status()
        .expect("there is mount");
    assert!(status.success(), "mount of a tmpfs: {status}");
    Mount(path)
}

impl Mount {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
