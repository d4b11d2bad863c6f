//! Names of the files of a spool.
//!
//! In: a directory, an index, a stage. Out: `trace.N.bin` and what follows it.
//! Never: a name that says less than the stage.

use std::io;
use std::path::{Path, PathBuf};

/// What has happened to the segment in a file, or what is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Still being written, or left by a crash.
    Active,
    /// Whole.
    Sealed,
    /// A compression in progress, or left by a crash.
    Partial,
    /// As [`Stage::Partial`], of an archive.
    PartialArchive,
    /// Compressed.
    Compressed,
    /// Compressed as an archive, by who has the code for it.
    Archived,
    /// Beside a segment that is being put into a store: whether it is there
    /// already is known once the put is settled.
    Put,
    /// Deleted to keep the budget, and not yet told in a segment: only the
    /// name is left, with the size that the file had.
    Evicted { bytes: u64 },
}

/// The file of a segment.
pub(crate) fn path(dir: &Path, index: u64, stage: Stage) -> PathBuf {
    dir.join(match stage {
        Stage::Active => format!("trace.{index}.bin.active"),
        Stage::Sealed => format!("trace.{index}.bin"),
        Stage::Partial => format!("trace.{index}.bin.gz.tmp"),
        Stage::PartialArchive => format!("trace.{index}.bin.zst.tmp"),
        Stage::Archived => format!("trace.{index}.bin.zst"),
        Stage::Compressed => format!("trace.{index}.bin.gz"),
        Stage::Put => format!("trace.{index}.bin.put"),
        Stage::Evicted { bytes } => format!("trace.{index}.bin.evicted-{bytes}"),
    })
}

/// Index and stage of a file, by its name.
pub(crate) fn parse(name: &str) -> Option<(u64, Stage)> {
    let (index, rest) = split(name)?;
    let stage = match rest {
        ".active" => Stage::Active,
        "" => Stage::Sealed,
        ".gz.tmp" => Stage::Partial,
        ".gz" => Stage::Compressed,
        ".zst.tmp" => Stage::PartialArchive,
        ".zst" => Stage::Archived,
        ".put" => Stage::Put,
        _ => Stage::Evicted {
            bytes: rest.strip_prefix(".evicted-")?.parse().ok()?,
        },
    };
    Some((index, stage))
}

/// Every file of a spool, by index and stage.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<(u64, Stage)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        files.extend(entry?.file_name().to_str().and_then(parse));
    }
    files.sort_unstable();
    Ok(files)
}

/// One above the highest index of any segment in the directory, whatever its
/// state.
pub(crate) fn next_index(dir: &Path) -> io::Result<u64> {
    let mut next = 0;
    for entry in std::fs::read_dir(dir)? {
        if let Some((index, _)) = entry?.file_name().to_str().and_then(split) {
            next = next.max(index.saturating_add(1));
        }
    }
    Ok(next)
}

fn split(name: &str) -> Option<(u64, &str)> {
    let (index, rest) = name.strip_prefix("trace.")?.split_once(".bin")?;
    Some((index.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_a_name_of_its_own() {
        let stages = [
            Stage::Active,
            Stage::Sealed,
            Stage::Partial,
            Stage::PartialArchive,
            Stage::Compressed,
            Stage::Archived,
            Stage::Put,
            Stage::Evicted { bytes: 77 },
        ];
        for stage in stages {
            let path = path(Path::new("/"), 12, stage);
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(parse(name), Some((12, stage)));
        }
        for other in ["trace.bin", "trace.x.bin", "trace.1.bin.xz", "x.1.bin"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
