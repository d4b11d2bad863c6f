//! Builds cells.
//!
//! In: a cell. Out: its binary, kept under a name that says all it was made of.
//! Never: a lock file or a manifest outside the target directory.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use dial9_bpf_integration::target_dir::target_dir;

use crate::{
    cells::{Cell, Compiler, Shape},
    compilers::{Unpacked, run},
};

/// The program's source, and what it includes.
const SOURCES: [&str; 3] = [
    "matrix/counted.rs",
    "testprogs/src/quiet.rs",
    "testprogs/src/script.rs",
];

/// The folder of everything that the matrix makes.
pub(crate) fn folder() -> Result<PathBuf> {
    Ok(target_dir()?.join("matrix"))
}

/// The binary of a cell, built now if it is not there and `may_build`.
pub(crate) fn build(cell: Cell, may_build: bool) -> Result<PathBuf> {
    let sources = SOURCES.map(|source| Path::new(env!("CARGO_MANIFEST_DIR")).join(source));
    let manifest = cell.manifest(&sources[0]);
    let mut hash = DefaultHasher::new();
    (&manifest, cell.flags(), cell.features()).hash(&mut hash);
    for source in &sources {
        fs::read(source)?.hash(&mut hash);
    }
    let name = format!("{}-{:016x}", cell.name(), hash.finish());
    let binary = folder()?.join("bin").join(name);
    if !binary.is_file() {
        ensure!(may_build, "not built yet");
        let built = compile(cell, &manifest)?;
        fs::create_dir_all(binary.with_file_name(""))?;
        // Whoever sees it sees all of it.
        let new = binary.with_extension("new");
        fs::copy(built, &new)?;
        fs::rename(new, &binary)?;
    }
    Ok(binary)
}

/// Removes what the builds of a group have left beside the binaries.
pub(crate) fn clean(cell: Cell) -> Result<()> {
    let target = group_target(cell)?;
    if target.exists() {
        fs::remove_dir_all(target)?;
    }
    Ok(())
}

fn group_target(cell: Cell) -> Result<PathBuf> {
    Ok(folder()?.join("build").join(cell.group()))
}

fn compile(cell: Cell, manifest: &str) -> Result<PathBuf> {
    let project = folder()?.join("cells").join(cell.name());
    fs::create_dir_all(&project)?;
    fs::write(project.join("Cargo.toml"), manifest)?;
    let mut cargo = cargo();
    let compiler = match cell.compiler {
        Compiler::Here => None,
        other => Some(Unpacked::get(other, &folder()?)?),
    };
    if let Some(old) = compiler.as_ref().and_then(Unpacked::cargo) {
        // It asks the registry in a way of its own; so it is not to ask.
        vendor(&project)?;
        cargo = old;
        cargo.arg("build").arg("--offline");
    } else {
        cargo.arg("build");
    }
    if let Some(compiler) = &compiler {
        cargo.env("RUSTC", compiler.rustc());
    }
    let target = group_target(cell)?;
    cargo
        .args(["--quiet", "--features", &cell.features()])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", cell.flags())
        .current_dir(&project)
        .stdin(Stdio::null());
    let profile = if cell.shape == Shape::Debug {
        "debug"
    } else {
        cargo.arg("--release");
        "release"
    };
    let mut built = target;
    if let Some(target) = cell.shape.target() {
        cargo.args(["--target", target]);
        built.push(target);
    }
    if cell.shape == Shape::Cet {
        // The flag is one of the nightly compiler's.
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    run(&mut cargo).with_context(|| cell.name())?;
    Ok(built.join(profile).join("counted"))
}

/// Cargo, as a user would call it: nothing of the run that started us.
fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
    ] {
        cargo.env_remove(name);
    }
    // Dependencies that the compiler of the cell can build.
    cargo.env("CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS", "fallback");
    cargo
}

/// Puts the dependencies into the project.
fn vendor(project: &Path) -> Result<()> {
    let config = project.join(".cargo/config.toml");
    if config.is_file() {
        return Ok(());
    }
    run(cargo()
        .args(["vendor", "--quiet", "vendor"])
        .current_dir(project))?;
    fs::create_dir_all(config.with_file_name(""))?;
    fs::write(
        config,
        "[source.crates-io]\nreplace-with = \"vendored\"\n\n\
         [source.vendored]\ndirectory = \"vendor\"\n",
    )?;
    Ok(())
}
