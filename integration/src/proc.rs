//! What the kernel says of a process.
//!
//! In: a pid. Out: numbers and lines of /proc. Never: anything of a process
//! that is gone; that is a panic with its path.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// Open file descriptors.
///
/// # Panics
///
/// When the process is gone.
pub fn fds(pid: u32) -> usize {
    let path = format!("/proc/{pid}/fd");
    fs::read_dir(&path)
        .unwrap_or_else(|error| panic!("{path}: {error}"))
        .count()
}

/// What its file descriptors are open on; empty for one that is gone.
pub fn open_files(pid: u32) -> Vec<PathBuf> {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
        .collect()
}

/// The process that it has started.
///
/// # Panics
///
/// When it has none or several.
pub fn only_child(pid: u32) -> u32 {
    let children = read(pid, &format!("task/{pid}/children"));
    let only = children.trim().parse();
    only.unwrap_or_else(|error| panic!("children of {pid}: {children:?}: {error}"))
}

/// Lines of its memory map.
///
/// # Panics
///
/// When the process is gone.
pub fn mappings(pid: u32) -> Vec<String> {
    read(pid, "maps").lines().map(str::to_owned).collect()
}

/// Resident memory, KiB.
///
/// # Panics
///
/// When the process is gone.
pub fn resident_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmRSS:")
}

/// The most resident memory that it has had, KiB.
///
/// # Panics
///
/// When the process is gone.
pub fn peak_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmHWM:")
}

fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = read(pid, "status");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {field} of {pid}: {status}"))
}

/// CPU time of all its threads so far, ms.
///
/// # Panics
///
/// When the process is gone.
pub fn cpu_ms(pid: u32) -> u64 {
    /// `USER_HZ`: a tick of /proc/PID/stat, in ms.
    const TICK_MS: u64 = 10;
    let stat = read(pid, "stat");
    let fields = stat.rsplit(')').next().unwrap_or_default();
    // After the name, state is field 3; utime and stime are 14 and 15.
    let times = fields.split_whitespace().skip(11).take(2);
    times
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum::<u64>()
        * TICK_MS
}

/// Bytes of a program's code that are not as in its file: where the kernel has
/// put a breakpoint.
///
/// # Panics
///
/// When the process is gone or does not map `executable`.
pub fn changed_code(pid: u32, executable: &Path) -> usize {
    let file = fs::read(executable).expect("it can be read");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("root may read it");
    let name = executable.to_str().expect("it is text");
    let mappings = mappings(pid);
    let code: Vec<_> = mappings
        .iter()
        .filter_map(|line| executable_range(line, name))
        .collect();
    assert!(!code.is_empty(), "{pid} does not run {name}: {mappings:#?}");
    code.into_iter()
        .map(|(start, offset, bytes)| {
            let mut loaded = vec![0; bytes];
            memory
                .read_exact_at(&mut loaded, start)
                .expect("it is mapped");
            let as_built = &file[offset..(offset + bytes).min(file.len())];
            as_built
                .iter()
                .zip(&loaded)
                .filter(|(built, loaded)| built != loaded)
                .count()
        })
        .sum()
}

/// Start address, file offset and length of a line of the memory map, where it
/// is code of `file`.
fn executable_range(line: &str, file: &str) -> Option<(u64, usize, usize)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let is_code = fields.next()?.contains('x');
    let offset = usize::from_str_radix(fields.next()?, 16).ok()?;
    let is_ours = fields.next_back()? == file;
    (is_code && is_ours).then_some((start, offset, usize::try_from(end - start).ok()?))
}

fn read(pid: u32, file: &str) -> String {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
