//! Which Rust compiler builds the kernel object.
//!
//! In: what is installed. Out: the cargo command and flags for it. Debian
//! packages a `rustc` together with a prebuilt `core` for the BPF targets;
//! elsewhere `core` is built from the sources that rustup's nightly has.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::shell;

/// Debian's compiler; the one on the path is mostly rustup's.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// It links for BPF, and turns debug information into BTF.
pub(crate) const LINKER: &str = "bpf-linker";
/// The target of the kernel object.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// A compiler that can build for [`TARGET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Toolchain {
    /// Debian's rustc-web and libstd-rust-web-dev-bpf.
    Debian,
    /// A rustup nightly with rust-src.
    Nightly,
}

impl Toolchain {
    /// The one that is installed, Debian's first.
    pub(crate) fn find() -> Option<Self> {
        if debian_has_core() {
            Some(Self::Debian)
        } else if nightly_has_sources() {
            Some(Self::Nightly)
        } else {
            None
        }
    }

    /// `cargo build` for the kernel object's target. Flags that the environment
    /// sets for the host do not reach it.
    pub(crate) fn cargo_build(self) -> Command {
        let mut command = match self {
            Self::Debian => {
                let mut command = shell::cargo();
                command
                    .env("RUSTC", DEBIAN_RUSTC)
                    .env("RUSTC_BOOTSTRAP", "1")
                    .arg("build");
                command
            }
            Self::Nightly => {
                let mut command = Command::new("rustup");
                command
                    .current_dir(shell::root())
                    .env_remove("RUSTC")
                    .args(["run", "nightly", "cargo", "build", "-Z", "build-std=core"]);
                command
            }
        };
        command
            .args(["--target", TARGET])
            .env("CARGO_TARGET_DIR", shell::root().join("target/ebpf"))
            .env("CARGO_ENCODED_RUSTFLAGS", rust_flags().join("\u{1f}"))
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        command
    }
}

/// `bpf_target_arch` tells aya-ebpf whose registers to read; `v3` has the atomic
/// operations that return the old value.
fn rust_flags() -> [String; 5] {
    let linker = shell::find(LINKER).unwrap_or_else(|| LINKER.into());
    [
        format!("-Clinker={}", linker.display()),
        "-Clink-arg=--btf".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        "-Ctarget-cpu=v3".to_owned(),
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
    ]
}

fn debian_has_core() -> bool {
    let mut rustc = Command::new(DEBIAN_RUSTC);
    rustc.args(["--print", "target-libdir", "--target", TARGET]);
    let Some(folder) = first_line(&mut rustc) else {
        return false;
    };
    PathBuf::from(folder).read_dir().is_ok_and(|mut files| {
        files.any(|file| {
            file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libcore-"))
        })
    })
}

fn nightly_has_sources() -> bool {
    let mut rustc = Command::new("rustup");
    rustc.args(["run", "nightly", "rustc", "--print", "sysroot"]);
    first_line(&mut rustc).is_some_and(|sysroot| {
        PathBuf::from(sysroot)
            .join("lib/rustlib/src/rust/library/core/Cargo.toml")
            .is_file()
    })
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| text.trim().to_owned())
        .filter(|line| !line.is_empty())
}
