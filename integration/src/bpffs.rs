//! What is pinned of a target.
//!
//! In: a pid. Out: the names of its directory in the BPF file system. Never: a
//! name that is not the command's.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
};

const BPFFS: &str = "/sys/fs/bpf";
const ROOT: &str = "/sys/fs/bpf/dial9-bpf";

/// Mounts the BPF file system where nobody has; it stays, as an init makes it.
///
/// # Panics
///
/// When it cannot be mounted.
pub fn mount() {
    static MOUNTED: Once = Once::new();
    MOUNTED.call_once(|| {
        let mounts = fs::read_to_string("/proc/mounts").expect("Linux has it");
        let is_it = |line: &str| line.split(' ').nth(1) == Some(BPFFS);
        if !mounts.lines().any(is_it) {
            let mount = ["-t", "bpf", "-o", "mode=700", "bpf", BPFFS];
            let status = Command::new("mount").args(mount).status();
            assert!(status.expect("there is mount").success(), "mount {BPFFS}");
        }
    });
}

/// The target's directory.
pub fn directory(pid: u32) -> Option<PathBuf> {
    let is_its = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{pid}-"))
    };
    entries(Path::new(ROOT)).into_iter().find(is_its)
}

/// The names in the target's directory.
pub fn pinned(pid: u32) -> Vec<String> {
    let name = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    let directory = directory(pid).unwrap_or_default();
    entries(&directory).into_iter().filter_map(name).collect()
}

/// Sets a word of a pinned array to a small number.
///
/// # Panics
///
/// When there is none.
pub fn set_word(pid: u32, name: &str, index: u8, value: u8) {
    let path = directory(pid).expect("something is pinned").join(name);
    let (index, value) = (index.to_string(), value.to_string());
    let mut bpftool = Command::new("bpftool");
    bpftool.args(["map", "update", "pinned"]).arg(path);
    bpftool.args(["key", &index, "0", "0", "0", "value", &value]);
    bpftool.args(["0"; 7]);
    let status = bpftool.status().expect("there is bpftool");
    assert!(status.success(), "{bpftool:?}");
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
