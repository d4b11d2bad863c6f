//! To whom the files of a trace belong.
//!
//! In: who runs this process. Out: files of mode 0600 and directories. Never:
//! another's file opened for one of ours.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid};

/// Who owns the files of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner(pub(super) Option<(Uid, Gid)>);

impl Owner {
    /// The user behind sudo (`SUDO_UID`, `SUDO_GID`) when this process is
    /// root; otherwise whoever runs it.
    pub fn behind_sudo() -> Self {
        let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        let (Some(uid), Some(gid)) = (id("SUDO_UID"), id("SUDO_GID")) else {
            return Self(None);
        };
        let is_root = rustix::process::geteuid().is_root();
        Self(is_root.then(|| (Uid::from_raw(uid), Gid::from_raw(gid))))
    }

    /// Makes a directory that belongs to the owner.
    ///
    /// # Errors
    ///
    /// The system's; there is no directory then.
    pub fn create_dir(self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)?;
        let given = self.take_dir(path);
        if given.is_err() {
            // The first failure is the one to tell.
            let _ = std::fs::remove_dir(path);
        }
        given
    }

    fn take_dir(self, path: &Path) -> io::Result<()> {
        let Some((uid, gid)) = self.0 else {
            return Ok(());
        };
        // Not by its path: whoever owns the one above may have put a link there.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        rustix::fs::fchown(&dir, Some(uid), Some(gid))?;
        Ok(())
    }

    /// Makes a file of mode 0600 that belongs to the owner, where there is none.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn create(self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        if let Some((uid, gid)) = self.0 {
            rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        Ok(file)
    }
}
