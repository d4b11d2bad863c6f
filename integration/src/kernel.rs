//! What is loaded in the kernel.
//!
//! In: `bpftool`, and /proc/PID/fdinfo. Out: ids of links, programs and maps.
//! Never: an assumption about what others have loaded. Ids are never used
//! again, so what a tracer held is known after its end.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;

/// Ids of one kind each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Links.
    pub links: BTreeSet<u64>,
    /// Programs.
    pub programs: BTreeSet<u64>,
    /// Maps.
    pub maps: BTreeSet<u64>,
}

impl Loaded {
    /// Everything that is loaded now.
    ///
    /// # Panics
    ///
    /// Without a working bpftool.
    pub fn now() -> Self {
        Self {
            links: ids("link"),
            programs: ids("prog"),
            maps: ids("map"),
        }
    }

    /// What a process holds by its file descriptors.
    ///
    /// # Panics
    ///
    /// When the process is gone.
    pub fn of(pid: u32) -> Self {
        let path = format!("/proc/{pid}/fdinfo");
        let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut held = Self::default();
        for entry in entries {
            let path = entry.expect("the folder can be read on").path();
            // One that was closed meanwhile is not held.
            held.add(&fs::read_to_string(path).unwrap_or_default());
        }
        held
    }

    fn add(&mut self, fdinfo: &str) {
        let id = |key| {
            let line = fdinfo.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().parse().ok()
        };
        // A link's has its program's id as well.
        match (id("link_id:"), id("prog_id:"), id("map_id:")) {
            (Some(link), _, _) => self.links.insert(link),
            (None, Some(program), _) => self.programs.insert(program),
            (None, None, Some(map)) => self.maps.insert(map),
            (None, None, None) => false,
        };
    }

    /// What is in both.
    #[must_use]
    pub fn also_in(&self, other: &Self) -> Self {
        let Self {
            links,
            programs,
            maps,
        } = self;
        Self {
            links: links & &other.links,
            programs: programs & &other.programs,
            maps: maps & &other.maps,
        }
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn ids(kind: &str) -> BTreeSet<u64> {
    let output = Command::new("bpftool")
        .args(["-j", kind, "show"])
        .output()
        .unwrap_or_else(|error| panic!("bpftool (cargo xtask setup installs it): {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let listed: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{kind}: {error}: {output:?}"));
    let listed = listed
        .as_array()
        .unwrap_or_else(|| panic!("{kind}: {text}"));
    listed.iter().filter_map(|one| one["id"].as_u64()).collect()
}
