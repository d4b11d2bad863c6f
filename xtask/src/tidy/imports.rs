//! Who may name which package.
//!
//! In: `cargo metadata`. Out: each dependency that is not in the tables. They
//! keep heavy and dangerous dependencies behind one wall each. What only tests
//! use is free.

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::shell;

/// The packages of the workspace, and what each may import of the others.
const WORKSPACE: [(&str, &[&str]); 12] = [
    ("dial9-bpf-abi", &[]),
    ("dial9-bpf-programs", &["dial9-bpf-abi"]),
    ("dial9-bpf-probes", &["dial9-bpf-abi"]),
    ("dial9-bpf-attach", &["dial9-bpf-abi", "dial9-bpf-probes"]),
    ("dial9-bpf-trace", &["dial9-bpf-abi", "dial9-bpf-probes"]),
    ("dial9-bpf-ship", &["dial9-bpf-trace"]),
    ("dial9-bpf-symbolize", &["dial9-bpf-trace"]),
    ("dial9-bpf-spec", &["dial9-bpf-abi"]),
    ("dial9-bpf-unwind", &[]),
    (
        "dial9-bpf",
        &[
            "dial9-bpf-abi",
            "dial9-bpf-attach",
            "dial9-bpf-probes",
            "dial9-bpf-ship",
            "dial9-bpf-spec",
            "dial9-bpf-symbolize",
            "dial9-bpf-trace",
            "dial9-bpf-unwind",
        ],
    ),
    (
        "dial9-bpf-integration",
        &[
            "dial9-bpf-abi",
            "dial9-bpf-attach",
            "dial9-bpf-probes",
            "dial9-bpf-ship",
            "dial9-bpf-symbolize",
            "dial9-bpf-trace",
        ],
    ),
    ("xtask", &[]),
];

/// Packages from outside that have owners.
const OWNED: [(&str, &[&str]); 20] = [
    ("aya", &["dial9-bpf-attach", "dial9-bpf-integration"]),
    ("aya-ebpf", &["dial9-bpf-programs"]),
    ("aya-obj", &["dial9-bpf-attach"]),
    ("blazesym", &["dial9-bpf-symbolize"]),
    ("cargo_metadata", &["xtask"]),
    ("clap", &["dial9-bpf", "xtask"]),
    (
        "dial9-trace-format",
        &["dial9-bpf-trace", "dial9-bpf-integration", "xtask"],
    ),
    ("framehop", &["dial9-bpf-unwind"]),
    ("gimli", &["dial9-bpf-probes", "dial9-bpf-unwind"]),
    ("iced-x86", &["dial9-bpf-probes"]),
    ("nix", &["dial9-bpf"]),
    (
        "object",
        &[
            "dial9-bpf-probes",
            "dial9-bpf-symbolize",
            "dial9-bpf-unwind",
        ],
    ),
    ("object_store", &["dial9-bpf-ship"]),
    ("pest", &["dial9-bpf-spec"]),
    ("pest_derive", &["dial9-bpf-spec"]),
    ("reqwest", &["dial9-bpf-ship"]),
    ("rustc-demangle", &["dial9-bpf-probes"]),
    ("rustls", &["dial9-bpf-ship"]),
    ("tokio", &["dial9-bpf-ship", "dial9-bpf-integration"]),
    ("zstd", &["dial9-bpf-ship"]),
];

/// Every dependency that is out of the tables.
pub(super) fn check() -> Result<Vec<String>> {
    let metadata = MetadataCommand::new()
        .current_dir(shell::root())
        .no_deps()
        .exec()
        .context("cargo metadata")?;
    Ok(metadata.packages.iter().flat_map(of_package).collect())
}

fn of_package(package: &Package) -> Vec<String> {
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .filter(|dependency| !may_import(package.name.as_str(), &dependency.name))
        .map(|dependency| format!("{} must not depend on {}", package.name, dependency.name))
        .collect()
}

/// A package that is not in the table may import nothing: it has to get a place
/// there first. Neither may the record layouts, which the kernel side compiles.
fn may_import(package: &str, dependency: &str) -> bool {
    let Some((_, allowed)) = WORKSPACE.iter().find(|(name, _)| *name == package) else {
        return false;
    };
    if WORKSPACE.iter().any(|(name, _)| *name == dependency) {
        return allowed.contains(&dependency);
    }
    OWNED
        .iter()
        .find(|(name, _)| *name == dependency)
        .map_or(package != "dial9-bpf-abi", |(_, owners)| {
            owners.contains(&package)
        })
}

#[cfg(test)]
mod tests {
    use super::may_import;

    #[test]
    fn walls_hold() {
        assert!(may_import("dial9-bpf-attach", "aya"));
        assert!(!may_import("dial9-bpf-trace", "aya"));
        assert!(may_import("dial9-bpf-probes", "dial9-bpf-abi"));
        assert!(!may_import("dial9-bpf-probes", "dial9-bpf-attach"));
        assert!(may_import("dial9-bpf", "dial9-bpf-ship"));
        assert!(!may_import("dial9-bpf-trace", "dial9-bpf-ship"));
        assert!(!may_import("dial9-bpf", "tokio"));
        assert!(may_import("dial9-bpf-trace", "thiserror"));
        assert!(!may_import("dial9-bpf-abi", "thiserror"));
        assert!(!may_import("xtask", "dial9-bpf-probes"));
        assert!(!may_import("dial9-bpf-new", "thiserror"));
    }
}
