//! Where a segment is while it is being written.
//!
//! In: a spool's directory, or nothing. Out: a file of it, or one that only this
//! process's memory has (`memfd_create`). Never: a name on any disk for the
//! latter; it is gone with the last descriptor.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

use super::budget::Budget;
use super::name::{self, Stage};
use super::{Owner, SegmentError, create_locked};

/// Where segments are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the directory of a spool.
    Spool(PathBuf),
    /// In memory, for whoever may want to have them in a spool later.
    Memory,
    /// In memory, of a size that it never exceeds.
    Bounded(Budget),
}

/// Where one segment is.
#[derive(Debug)]
pub(super) enum Home {
    Spool { dir: PathBuf, index: u64 },
    Memory,
}

impl Place {
    pub(super) fn create(&self, owner: Owner) -> Result<(Home, File), SegmentError> {
        match self {
            Self::Spool(dir) => {
                let (index, file) = create_locked(dir, owner)?;
                let dir = dir.clone();
                Ok((Home::Spool { dir, index }, file))
            }
            Self::Memory | Self::Bounded(_) => {
                let made = memfd_create("dial9-bpf segment", MemfdFlags::CLOEXEC);
                let file = made.map_err(|errno| SegmentError {
                    action: "create",
                    path: Home::Memory.path(),
                    source: errno.into(),
                })?;
                Ok((Home::Memory, file.into()))
            }
        }
    }
}

impl Home {
    /// The active file; for one without a name, what an error calls it.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Spool { dir, index } => name::path(dir, *index, Stage::Active),
            Self::Memory => Path::new("a segment in memory").to_owned(),
        }
    }
}

impl From<&Path> for Place {
    fn from(dir: &Path) -> Self {
        Self::Spool(dir.to_owned())
    }
}
