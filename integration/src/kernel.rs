//! What is loaded in the kernel.
//!
//! In: `bpftool`. Out: ids of links, programs and maps. Never: an assumption
//! about what others have loaded; ids are never used again, so what came while
//! a tracer ran is told from what was there before.

use std::{collections::BTreeSet, process::Command};

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

    /// What is here and was not in `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let Self {
            links,
            programs,
            maps,
        } = self;
        Self {
            links: links - &before.links,
            programs: programs - &before.programs,
            maps: maps - &before.maps,
        }
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
