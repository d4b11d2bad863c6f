//! The file with a program's symbols and debug information, where they were taken out of it.
//!
//! In: a target, what has been read of its executable, a path that was asked for. Out: the
//! file, read as far as its symbols. Never: a file of another build; a name that leads out
//! of the root that it is looked for under; a wait for a pipe.
//!
//! The places are those of gdb ("Debugging Information in Separate Files"): by build id
//! under `/usr/lib/debug/.build-id`, by the name in `.gnu_debuglink` beside the executable,
//! in `.debug` there, and under `/usr/lib/debug`.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use dial9_bpf_probes::{
    self as probes, DEBUG_FILE_STEPS, DebugLink, Names, ScanError, build_id_of, debug_link,
    plan::Plan,
};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use crate::{AttachError, FileParts, Target, target::root_at};

/// Where distributions put debug files.
const GLOBAL: &str = "/usr/lib/debug";
/// The largest file of which a checksum is computed, bytes: about half a second.
const MAX_SUMMED_BYTES: u64 = 1 << 30;
/// How much of it is read at a time, bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The debug file of a program.
#[derive(Debug)]
pub struct DebugFile {
    path: PathBuf,
    parts: FileParts,
}

impl DebugFile {
    /// The debug file at `path`.
    ///
    /// # Errors
    /// [`AttachError::DebugFile`] where it cannot be read, or neither its build id nor its
    /// checksum is what the program says.
    pub fn at(path: &Path, program: &FileParts) -> Result<Self, AttachError> {
        let refused = |reason| AttachError::DebugFile {
            path: path.display().to_string(),
            reason,
        };
        let file = rustix::fs::open(path, flags(), Mode::empty());
        let file = file.map_err(|error| refused(io::Error::from(error).to_string()))?;
        Self::checked(file, path, program).map_err(refused)
    }

    /// The debug file of a target, if its program lacks symbols or debug information and
    /// the file is where such files are: first as the target sees them, then as we do.
    pub fn find(target: &Target, program: &FileParts) -> Option<Self> {
        let names = Names::of(program);
        if names.symbols && names.debug_info {
            return None;
        }
        let roots = [target.root(), root_at("/")];
        let places = places(program, target.path());
        roots.iter().flatten().find_map(|root| {
            let at = |path: &PathBuf| Self::checked(open_under(root, path)?, path, program).ok();
            places.iter().find_map(at)
        })
    }

    /// The file, open.
    ///
    /// # Errors
    /// The system's, when it has no descriptor left.
    pub fn file(&self) -> io::Result<File> {
        self.parts.file()
    }

    /// Where it is, or was asked for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What has been read of it.
    pub fn parts(&self) -> &FileParts {
        &self.parts
    }

    fn checked(file: OwnedFd, path: &Path, program: &FileParts) -> Result<Self, String> {
        let file = File::from(file);
        let text = |error: io::Error| error.to_string();
        if !file.metadata().map_err(text)?.is_file() {
            return Err("it is no regular file".to_owned());
        }
        let parts = FileParts::read_by(&file, &DEBUG_FILE_STEPS).map_err(text)?;
        if Names::of(&parts) == Names::default() {
            return Err("it has neither symbols nor debug information".to_owned());
        }
        belongs(&file, &parts, program)?;
        let path = path.to_owned();
        Ok(Self { path, parts })
    }
}

/// The file that distributions have for a build id, as the target sees it, else as we
/// do. Whether it is what its name says is not looked at.
pub fn by_build_id(target: &Target, build_id: &str) -> Option<File> {
    let place = place_of(build_id)?;
    let roots = [target.root(), root_at("/")];
    let found = roots
        .iter()
        .flatten()
        .find_map(|root| open_under(root, &place));
    found.map(File::from)
}

/// The plan of a program, with what its debug file adds.
///
/// # Errors
/// As [`dial9_bpf_probes::scan()`].
pub fn scan(program: &FileParts, debug_file: Option<&DebugFile>) -> Result<Plan, ScanError> {
    let read = |part| program.part(part);
    let program = probes::File {
        parts: program,
        read: &read,
    };
    let Some(DebugFile { parts, .. }) = debug_file else {
        return probes::scan_files(&program, None);
    };
    let read = |part| parts.part(part);
    let debug_file = probes::File { parts, read: &read };
    probes::scan_files(&program, Some(&debug_file))
}

/// # Errors
/// Why the file is of another program, or why it is not known.
fn belongs(file: &File, parts: &FileParts, program: &FileParts) -> Result<(), String> {
    match (build_id_of(program), build_id_of(parts)) {
        (Some(program), Some(own)) if program == own => return Ok(()),
        (Some(program), Some(own)) => {
            return Err(format!("its build id is {own}, the program's {program}"));
        }
        _ => {}
    }
    let Some(DebugLink { crc, .. }) = debug_link(program) else {
        return Err("nothing tells: the two have no build ids, and the program no link".to_owned());
    };
    let own = checksum(file).map_err(|error| error.to_string())?;
    if own != crc {
        return Err(format!(
            "its checksum is {own:08x}, the program says {crc:08x}"
        ));
    }
    Ok(())
}

fn checksum(mut file: &File) -> io::Result<u32> {
    let bytes = file.metadata()?.len();
    if bytes > MAX_SUMMED_BYTES {
        return Err(io::Error::other(format!("{bytes} bytes is too large")));
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&chunk[..read]);
        left = left.saturating_sub(read as u64);
    }
    Ok(hasher.finalize())
}

/// Where the debug file may be, the surest place first.
fn places(program: &FileParts, executable: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    places.extend(build_id_of(program).as_deref().and_then(place_of));
    if let (Some(link), Some(folder)) = (debug_link(program), executable.parent()) {
        places.push(folder.join(link.name));
        places.push(folder.join(".debug").join(link.name));
        let folder = folder.strip_prefix("/").unwrap_or(folder);
        places.push(Path::new(GLOBAL).join(folder).join(link.name));
    }
    places
}

fn place_of(build_id: &str) -> Option<PathBuf> {
    let (first, rest) = build_id.split_at_checked(2)?;
    let is_long = !rest.is_empty();
    is_long.then(|| format!("{GLOBAL}/.build-id/{first}/{rest}.debug").into())
}

/// A file under a root, of which no link leads out.
fn open_under(root: &OwnedFd, path: &Path) -> Option<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags(), Mode::empty(), resolve).ok()
}

/// A pipe or a device is not waited for.
fn flags() -> OFlags {
    OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn no_link_leads_out_of_the_root() {
        let dir = tempfile::tempdir().expect("there is room");
        let root_dir = dir.path().join("root");
        fs::create_dir(&root_dir).expect("there is room");
        let inside = root_dir.join("inside");
        fs::write(&inside, "inside").expect("there is room");
        let outside = dir.path().join("outside");
        fs::write(&outside, "outside").expect("there is room");
        symlink(&outside, root_dir.join("absolute")).expect("there is room");
        symlink("../outside", root_dir.join("upwards")).expect("there is room");
        symlink("/inside", root_dir.join("link")).expect("there is room");
        let root = root_at(root_dir.to_str().expect("it is text")).expect("it is there");
        let is_there = |path| open_under(&root, Path::new(path)).is_some();
        assert!(is_there("/inside") && is_there("link") && is_there("../inside"));
        assert!(!is_there("absolute") && !is_there("upwards") && !is_there("../outside"));
    }

    #[test]
    fn a_checksum_is_that_of_zlib() {
        let dir = tempfile::tempdir().expect("there is room");
        let path = dir.path().join("file");
        fs::write(&path, "123456789").expect("there is room");
        let sum = checksum(&File::open(path).expect("it is there"));
        assert_eq!(sum.expect("it is short"), 0xcbf4_3926);
    }

    #[test]
    fn what_is_no_file_is_no_debug_file() {
        let own = File::open("/proc/self/exe").expect("we run");
        let program = FileParts::read(&own).expect("readable");
        let error = DebugFile::at(Path::new("/dev/null"), &program).expect_err("it is none");
        let reason = "/dev/null is no debug file of the program: it is no regular file";
        assert_eq!(error.to_string(), reason);
        let file = DebugFile::at(Path::new("/proc/self/exe"), &program).expect("of itself");
        assert!(file.parts().len() == program.len());
    }
}
