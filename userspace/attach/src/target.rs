//! The traced process.
//!
//! In: a pid. Out: its identity, its executable as the kernel knows it, and
//! whether it still is the same process. Never: a path from inside a container,
//! an attach by ptrace, a stop.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::PathBuf,
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::{
    AttachError, FileParts,
    mapped::{DELETED, Mapped},
    privilege,
};

/// `PF_KTHREAD` (include/linux/sched.h), in the flags of /proc/PID/stat.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`,
/// `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// The library that unwinds stacks, on glibc systems.
const UNWINDER: &str = "libgcc_s.so.1";

/// A process, known by pid and start time; pids are reused, this pair is not.
#[derive(Debug)]
pub struct Target {
    pid: u32,
    start_ticks: u64,
    start_stack: u64,
    executable: File,
    executable_id: (u64, u64),
    path: PathBuf,
    pidfd: OwnedFd,
}

impl Target {
    /// Opens the process `pid` and its executable.
    ///
    /// # Errors
    /// [`AttachError::NoProcess`], [`AttachError::NotAProcess`] for a thread's
    /// id, [`AttachError::KernelThread`], [`AttachError::Forbidden`],
    /// [`AttachError::PidNamespace`].
    pub fn open(pid: u32) -> Result<Self, AttachError> {
        check_namespace()?;
        let gone = || AttachError::NoProcess { pid };
        let raw = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(gone)?;
        let stat = Stat::read(pid)?;
        if stat.flags & KERNEL_THREAD != 0 {
            return Err(AttachError::KernelThread { pid });
        }
        let leader = thread_group(pid)?;
        if leader != pid {
            return Err(AttachError::NotAProcess { pid, leader });
        }
        let pidfd = pidfd_open(raw, PidfdFlags::empty())
            .map_err(|error| unreadable(pid, &format!("/proc/{pid}"), error.into()))?;
        let link = format!("/proc/{pid}/exe");
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => AttachError::Forbidden {
                path: link.clone(),
                missing: privilege::missing().unwrap_or_else(|| error.to_string()),
            },
            _ => unreadable(pid, &link, error),
        };
        let path = fs::read_link(&link).map_err(refused)?;
        let executable = File::open(&link).map_err(refused)?;
        let metadata = executable.metadata().map_err(refused)?;
        let executable_id = (metadata.dev(), metadata.ino());
        let now = Stat::read(pid)?;
        if now.start_ticks != stat.start_ticks {
            return Err(gone());
        }
        Ok(Self {
            pid,
            start_ticks: stat.start_ticks,
            start_stack: now.start_stack,
            executable,
            executable_id,
            path: path_of(path, executable_id),
            pidfd,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When the process started, in clock ticks since boot.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Device and inode of the executable.
    pub(crate) fn executable_id(&self) -> (u64, u64) {
        self.executable_id
    }

    /// The path that the executable has or had, as the process sees it; for
    /// messages only.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Readable once the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The executable, open: the very file, also when it was replaced or lies in
    /// another mount namespace.
    pub fn executable(&self) -> &File {
        &self.executable
    }

    /// Whether a file that it has mapped is its executable.
    pub fn is_executable(&self, mapped: &Mapped) -> bool {
        let is_same_file = |file: File| {
            file.metadata()
                .is_ok_and(|file| (file.dev(), file.ino()) == self.executable_id)
        };
        mapped.is_inode(self.executable_id.1) && mapped.open().is_ok_and(is_same_file)
    }

    /// The library that unwinds its stacks, where one is mapped.
    pub(crate) fn unwinder(&self) -> Option<File> {
        let files = Mapped::all(self.pid).ok()?;
        let ends = |file: &&Mapped| file.path().file_name() == Some(OsStr::new(UNWINDER));
        files.iter().find(ends)?.open().ok()
    }

    /// What a scan reads of the executable.
    ///
    /// # Errors
    /// [`AttachError::Proc`] when it cannot be read or is over 16 GiB.
    pub fn read_executable(&self) -> Result<FileParts, AttachError> {
        FileParts::read(&self.executable).map_err(|source| AttachError::Proc {
            path: self.path.display().to_string(),
            source,
        })
    }

    /// What a scan reads of the library that unwinds the target's stacks; `None` where
    /// none is mapped or it cannot be read.
    pub fn read_unwinder(&self) -> Option<FileParts> {
        FileParts::read(&self.unwinder()?).ok()
    }

    /// Its root directory, as far as we may look.
    pub(crate) fn root(&self) -> io::Result<OwnedFd> {
        root_at(&format!("/proc/{}/root", self.pid))
    }

    /// Run-time address of the instruction at `file_offset` of the executable.
    ///
    /// # Errors
    /// [`AttachError::NoProcess`] when the process is gone,
    /// [`AttachError::Proc`] when no executable mapping covers the offset.
    pub fn code_address(&self, file_offset: u64) -> Result<u64, AttachError> {
        let path = format!("/proc/{}/maps", self.pid);
        let failed = |source| AttachError::Proc { path, source };
        let files = Mapped::all(self.pid)?;
        let executable = files
            .iter()
            .find(|file| file.is_inode(self.executable_id.1));
        let address = match executable.map(|file| file.address_of(file_offset)) {
            Some(Ok(address)) => address,
            Some(Err(twice)) => return Err(failed(io::Error::other(twice))),
            None => None,
        };
        address.ok_or_else(|| {
            failed(io::Error::other(format!(
                "no code of the executable at {file_offset:#x}"
            )))
        })
    }

    /// Whether the process is still this one, running this executable. Where we
    /// cannot look, it is. The same executable, executed again, has its stack
    /// elsewhere, unless the target's addresses are not randomized.
    pub fn is_same(&self) -> bool {
        let id = fs::metadata(format!("/proc/{}/exe", self.pid))
            .map(|metadata| (metadata.dev(), metadata.ino()));
        let is_started = match Stat::read(self.pid) {
            Ok(stat) => {
                (stat.start_ticks, stat.start_stack) == (self.start_ticks, self.start_stack)
            }
            Err(error) => !matches!(error, AttachError::NoProcess { .. }),
        };
        id.ok() == Some(self.executable_id) && is_started
    }

    /// CPUs that the process may run on, by its affinity.
    pub fn allowed_cpus(&self) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
        Some(
            mask.chars()
                .filter_map(|digit| digit.to_digit(16))
                .map(u32::count_ones)
                .sum(),
        )
    }
}

/// A directory to look for files under.
pub(crate) fn root_at(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// The path of /proc/PID/exe without the kernel's suffix, unless the file is
/// really called so.
fn path_of(link: PathBuf, executable_id: (u64, u64)) -> PathBuf {
    let Some(path) = link.as_os_str().as_bytes().strip_suffix(DELETED.as_bytes()) else {
        return link;
    };
    let named = fs::metadata(&link).map(|metadata| (metadata.dev(), metadata.ino()));
    if named.ok() == Some(executable_id) {
        return link;
    }
    OsStr::from_bytes(path).into()
}

/// Whether pids mean the same to us and to the kernel's programs.
fn check_namespace() -> Result<(), AttachError> {
    let path = "/proc/self/ns/pid";
    let namespace = fs::metadata(path).map_err(|source| AttachError::Proc {
        path: path.to_owned(),
        source,
    })?;
    if namespace.ino() == INITIAL_PID_NAMESPACE {
        Ok(())
    } else {
        Err(AttachError::PidNamespace)
    }
}

/// When a process started, in clock ticks since boot; `None` for one that is not
/// there.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    Stat::read(pid).ok().map(|stat| stat.start_ticks)
}

/// What /proc/PID/stat says (man 5 `proc_pid_stat`).
struct Stat {
    flags: u64,
    start_ticks: u64,
    /// Where the stack began when the program did; 0 where we may not look.
    start_stack: u64,
}

impl Stat {
    fn read(pid: u32) -> Result<Self, AttachError> {
        Self::parse(&read_proc(pid, "stat")?).ok_or(AttachError::NoProcess { pid })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        // After the name: state is field 3, flags field 9, starttime field 22,
        // startstack field 28.
        let flags = fields.nth(6)?.parse().ok()?;
        let start_ticks = fields.nth(12)?.parse().ok()?;
        let start_stack = fields.nth(5)?.parse().ok()?;
        Some(Self {
            flags,
            start_ticks,
            start_stack,
        })
    }
}

fn thread_group(pid: u32) -> Result<u32, AttachError> {
    let status = read_proc(pid, "status")?;
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    group
        .and_then(|group| group.trim().parse().ok())
        .ok_or(AttachError::NoProcess { pid })
}

fn read_proc(pid: u32, file: &str) -> Result<String, AttachError> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).map_err(|error| unreadable(pid, &path, error))
}

/// The process is gone, unless it is for another reason that a file of it
/// cannot be read.
pub(crate) fn unreadable(pid: u32, path: &str, source: io::Error) -> AttachError {
    let gone = [Errno::NOENT, Errno::SRCH].map(Errno::raw_os_error);
    if source
        .raw_os_error()
        .is_some_and(|code| gone.contains(&code))
    {
        return AttachError::NoProcess { pid };
    }
    AttachError::Proc {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::mapped::Mapping;

    #[test]
    fn opens_ourselves() {
        let target = Target::open(std::process::id()).expect("we exist");
        assert!(target.is_same());
        assert!(target.start_ticks() > 0);
        let bytes = target.read_executable().expect("readable");
        assert_eq!(&bytes[..4], b"\x7fELF");
        let here = opens_ourselves as *const () as u64;
        let (start, offset) = code_mapping(here);
        assert_eq!(target.code_address(here - start + offset).ok(), Some(here));
        let files = Mapped::all(std::process::id()).expect("ours");
        let own = files.iter().filter(|file| target.is_executable(file));
        assert_eq!(own.count(), 1);
        assert!(target.allowed_cpus() >= Some(1));
    }

    #[test]
    fn a_replaced_executable_has_the_path_that_it_had() {
        let dir = tempfile::tempdir().expect("there is room");
        let old = dir.path().join("service");
        let really_so = dir.path().join("service (deleted)");
        for path in [&old, &really_so] {
            fs::copy("/bin/sleep", path).expect("there is room");
            let mut child = Command::new(path).arg("60").spawn().expect("it runs");
            if path == &old {
                fs::remove_file(path).expect("it is ours");
            }
            let target = Target::open(child.id());
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
            assert_eq!(target.expect("it runs").path(), path);
        }
    }

    #[test]
    fn a_kernel_thread_is_no_target() {
        let error = Target::open(2).expect_err("kthreadd");
        assert_eq!(error.to_string(), "process 2 is a kernel thread");
    }

    #[test]
    fn a_pid_that_never_was_is_no_target() {
        let error = Target::open(u32::MAX).expect_err("beyond pid_max");
        assert_eq!(error.to_string(), "no process 4294967295");
    }

    /// Start and file offset of our own mapping at `address`.
    fn code_mapping(address: u64) -> (u64, u64) {
        let maps = fs::read_to_string("/proc/self/maps").expect("ours");
        let mut at = maps.lines().filter_map(Mapping::parse);
        let (mapping, _) = at
            .find(|(m, _)| (m.start..m.end).contains(&address))
            .expect("mapped");
        (mapping.start, mapping.offset)
    }
}
