//! dial9's own JavaScript readers.
//!
//! In: segments. Out: what `viewer/check.js` says of them. Never: a copy of
//! the readers; cargo fetches the published sources, and does not build them.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/viewer");

/// Has the viewer's readers accept `segment`; returns their report.
///
/// # Errors
///
/// What they found wrong, or what of the tools is missing.
pub fn check(segment: &Path) -> Result<Value> {
    let output = Command::new("node")
        .arg(Path::new(FOLDER).join("check.js"))
        .arg(scripts()?)
        .arg(segment)
        .stdin(Stdio::null())
        .output()
        .context("node (cargo xtask setup installs it)")?;
    let report = String::from_utf8_lossy(&output.stdout);
    let problems = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{problems}{report}");
    serde_json::from_str(&report).with_context(|| report.into_owned())
}

/// The folder of the viewer's scripts.
fn scripts() -> Result<PathBuf> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(FOLDER)
        .stdin(Stdio::null())
        .output()
        .context("cargo metadata")?;
    let problems = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {problems}");
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata["packages"]
        .as_array()
        .context("no packages in the metadata")?;
    let viewer = packages
        .iter()
        .find(|package| package["name"] == "dial9-viewer");
    let manifest = viewer.and_then(|viewer| viewer["manifest_path"].as_str());
    let manifest = Path::new(manifest.context("no dial9-viewer in the metadata")?);
    Ok(manifest.with_file_name("skills/dial9-toolkit/scripts"))
}
