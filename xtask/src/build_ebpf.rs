//! `xtask build-ebpf`: the kernel object.
//!
//! In: the package in `bpf/`. Out: `target/bpf/dial9.o`, checked, replaced in
//! one step and only if it changed. It is a cargo run of its own with a
//! compiler and flags of its own; no build script starts it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::setup::{self, Scope};
use crate::toolchain::{TARGET, Toolchain};
use crate::{object, shell};

/// What to build.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Features of the kernel package, separated by commas (`log`)
    #[arg(long, value_name = "NAMES")]
    features: Option<String>,
    /// Only check the object that is there
    #[arg(long, conflicts_with = "features")]
    check: bool,
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.check {
        build(args.features.as_deref())?;
    }
    let path = object_path();
    let bytes = fs::read(&path)
        .with_context(|| format!("{}; run cargo xtask build-ebpf", path.display()))?;
    let contents = object::check(&bytes).with_context(|| path.display().to_string())?;
    println!(
        "{}: {} bytes, {} of them BTF",
        path.display(),
        bytes.len(),
        contents.btf_bytes
    );
    for program in contents.programs {
        println!("  {program}");
    }
    Ok(())
}

/// Builds the object that is shipped.
pub(crate) fn ensure() -> Result<()> {
    build(None)
}

/// Builds the command, which holds the object.
pub(crate) fn tracer() -> Result<()> {
    ensure()?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "dial9-bpf"]))
}

fn object_path() -> PathBuf {
    shell::root().join("target/bpf/dial9.o")
}

fn build(features: Option<&str>) -> Result<()> {
    setup::ensure(Scope::Kernel)?;
    let toolchain = Toolchain::find().context("no compiler for the kernel object")?;
    let mut command = toolchain.cargo_build();
    command.args(["--profile", "bpf", "--package", "dial9-bpf-programs"]);
    command.args(features.map(|names| format!("--features={names}")));
    shell::run(&mut command)?;
    let built = shell::root()
        .join("target/ebpf")
        .join(TARGET)
        .join("bpf/dial9");
    let bytes = fs::read(&built).with_context(|| built.display().to_string())?;
    object::check(&bytes).with_context(|| built.display().to_string())?;
    publish(&bytes)
}

/// An unchanged object keeps its time stamp, so that nothing is built anew.
fn publish(bytes: &[u8]) -> Result<()> {
    let path = object_path();
    if fs::read(&path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let folder = path.parent().expect("the path is in a folder");
    fs::create_dir_all(folder)?;
    let temporary = folder.join(format!("dial9.o.{}", std::process::id()));
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, &path).with_context(|| path.display().to_string())
}
