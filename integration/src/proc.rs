//! What the kernel says of a process.
//!
//! In: a pid. Out: numbers and lines of /proc. Never: anything of a process
//! that is gone; that is a panic with its path.

use std::{fs, path::PathBuf};

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
    let status = read(pid, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no VmRSS of {pid}: {status}"))
}

fn read(pid: u32, file: &str) -> String {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
