//! Where cargo puts things.
//!
//! In: the path of the running test. Out: the target directory and what is
//! built there. Never: a fixed path.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::program::Build;

/// Names the folder that holds `release/truth` and so on, already built.
pub const TESTPROGS: &str = "DIAL9_BPF_TESTPROGS";
/// Names the command to test.
pub const BINARY: &str = "DIAL9_BPF_BIN";

/// The target directory of the cargo run that built this test.
///
/// # Errors
///
/// When the test was not built by cargo.
pub fn target_dir() -> Result<PathBuf> {
    let test = env::current_exe()?;
    let dir = test.ancestors().skip(1).find(|dir| dir.ends_with("deps"));
    let target = dir.and_then(|deps| deps.ancestors().nth(2));
    Ok(target
        .with_context(|| format!("{} is not in a target directory", test.display()))?
        .into())
}

/// The command to test: from [`BINARY`], or the newer one of the release and
/// the debug build.
///
/// # Errors
///
/// When there is none.
pub fn tracer_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os(BINARY) {
        return Ok(path.into());
    }
    let target = target_dir()?;
    ["release", "debug"]
        .into_iter()
        .map(|profile| target.join(profile).join("dial9-bpf"))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .with_context(|| {
            let target = target.display();
            format!("no dial9-bpf in {target}; run cargo build --release -p dial9-bpf")
        })
}

/// The workspace of a program, a folder here.
fn workspace_of(program: &str) -> &'static str {
    match program {
        "inside" => "inside",
        _ => "testprogs",
    }
}

/// A program of `testprogs/` or `inside/`, built now if it is not up to date.
///
/// # Errors
///
/// When cargo fails.
pub fn test_program(name: &str, build: Build) -> Result<PathBuf> {
    if let Some(dir) = env::var_os(TESTPROGS) {
        let path = Path::new(&dir).join(build.folder()).join(name);
        ensure!(
            path.exists(),
            "{} (from {TESTPROGS}) does not exist",
            path.display()
        );
        return Ok(path);
    }
    let workspace = workspace_of(name);
    let target = target_dir()?.join(workspace);
    build_programs(workspace, build, &target)?;
    Ok(target.join(build.folder()).join(name))
}

/// Cargo's own lock keeps several test processes apart, and a second build of
/// the same sources is a look at their time stamps.
fn build_programs(workspace: &'static str, build: Build, target: &Path) -> Result<()> {
    static BUILT: Mutex<Vec<(&str, Build)>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if built.contains(&(workspace, build)) {
        return Ok(());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(workspace);
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--locked", "--profile", build.profile()])
        .arg("--target-dir")
        .arg(target)
        .current_dir(folder)
        .stdin(Stdio::null());
    // As a user would build them: nothing of the run that started us.
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "CARGO_BUILD_TARGET",
    ] {
        cargo.env_remove(name);
    }
    let output = cargo.output().with_context(|| format!("{cargo:?}"))?;
    if !output.status.success() {
        bail!("{cargo:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    built.push((workspace, build));
    Ok(())
}
