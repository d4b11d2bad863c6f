//! How many threads of the target can run at once.
//!
//! In: its affinity, and the CPU limits of its control groups. Out: what
//! `std::thread::available_parallelism` says in it. Never: a limit that cannot be read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use dial9_bpf_attach::Target;
use procfs::{
    ProcResult,
    process::{MountInfo, Process},
};

/// The version of control groups that limits CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// `cpu.cfs_quota_us` and `cpu.cfs_period_us`.
    One,
    /// `cpu.max`.
    Two,
}

/// The CPUs that the target may use; `None` where its affinity cannot be read.
pub(crate) fn available(target: &Target) -> Option<usize> {
    let allowed = target.allowed_cpus()? as usize;
    let limit = limit(target.pid()).ok().flatten();
    Some(limit.map_or(allowed, |limit| allowed.min(limit)))
}

/// The lowest limit of the groups that the process is in, in whole CPUs.
fn limit(pid: u32) -> ProcResult<Option<usize>> {
    let pid = i32::try_from(pid).map_err(|_| procfs::ProcError::NotFound(None))?;
    let mounts: Vec<MountInfo> = Process::myself()?.mountinfo()?.into_iter().collect();
    let mut limits = Vec::new();
    for group in Process::new(pid)?.cgroups()? {
        let version = match group.hierarchy {
            0 => Version::Two,
            _ if group.controllers.iter().any(|name| name == "cpu") => Version::One,
            _ => continue,
        };
        let place = mounts.iter().find_map(|mount| place(mount, version));
        if let Some((top, root)) = place {
            let path = Path::new(&group.pathname);
            let below = path.strip_prefix(root).unwrap_or(path);
            limits.extend(lowest(&top, below, version));
        }
    }
    Ok(limits.into_iter().min())
}

/// Where a mount shows the groups, and which group is its top.
fn place(mount: &MountInfo, version: Version) -> Option<(PathBuf, &str)> {
    let is_it = match version {
        Version::Two => mount.fs_type == "cgroup2",
        Version::One => mount.fs_type == "cgroup" && mount.super_options.contains_key("cpu"),
    };
    is_it.then(|| (mount.mount_point.clone(), mount.root.as_str()))
}

/// The lowest limit of a group and those above it.
fn lowest(top: &Path, below: &Path, version: Version) -> Option<usize> {
    let below = below.strip_prefix("/").unwrap_or(below);
    let groups = below.ancestors().map(|group| top.join(group));
    groups.filter_map(|group| of_group(&group, version)).min()
}

/// A group's own limit in whole CPUs, at least one: as std counts
/// (`library/std/src/sys/thread/unix.rs`, `cgroups::quota`).
fn of_group(group: &Path, version: Version) -> Option<usize> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let text = match version {
        Version::Two => read("cpu.max")?,
        Version::One => read("cpu.cfs_quota_us")? + " " + &read("cpu.cfs_period_us")?,
    };
    let mut numbers = text.split_whitespace().map(str::parse::<usize>);
    // `max`, or -1, is no number here: no limit.
    let (quota, period) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(quota.checked_div(period)?.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(group: &Path, name: &str, text: &str) {
        fs::create_dir_all(group).expect("there is room");
        fs::write(group.join(name), text).expect("there is room");
    }

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let dir = tempfile::tempdir().expect("there is room");
        let top = dir.path();
        put(&top.join("a"), "cpu.max", "350000 100000\n");
        put(&top.join("a/b"), "cpu.max", "max 100000\n");
        put(&top.join("a/b/c"), "cpu.max", "20000 100000\n");
        let of = |below: &str| lowest(top, Path::new(below), Version::Two);
        assert_eq!(of("/a"), Some(3));
        assert_eq!(of("/a/b"), Some(3));
        assert_eq!(of("/a/b/c"), Some(1));
        assert_eq!(of("/"), None);
        assert_eq!(of("/gone"), None);
    }

    #[test]
    fn the_first_version_has_two_files() {
        let dir = tempfile::tempdir().expect("there is room");
        let top = dir.path();
        put(top, "cpu.cfs_quota_us", "-1\n");
        put(top, "cpu.cfs_period_us", "100000\n");
        put(&top.join("a"), "cpu.cfs_quota_us", "400000\n");
        put(&top.join("a"), "cpu.cfs_period_us", "100000\n");
        let of = |below: &str| lowest(top, Path::new(below), Version::One);
        assert_eq!(of("/a"), Some(4));
        assert_eq!(of("/"), None);
        put(&top.join("a"), "cpu.cfs_period_us", "0\n");
        assert_eq!(of("/a"), None);
    }

    #[test]
    fn our_own_is_what_std_says() {
        let target = Target::open(std::process::id()).expect("we run");
        let std = std::thread::available_parallelism().expect("there is one");
        assert_eq!(available(&target), Some(std.get()));
    }
}
