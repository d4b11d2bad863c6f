//! `xtask setup`: installs what the builds and tests need.
//!
//! In: what is installed. Out: the rest installed, with one line a step. On
//! Debian as root it uses the distribution's packages and `cargo install`;
//! anywhere else it changes nothing and names what is missing.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;
use crate::toolchain::{self, Toolchain};

/// How much of the machine a verb needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What builds the kernel object.
    Kernel,
    /// That, and what the tests run.
    All,
}

/// Something that is not there.
struct Missing {
    name: &'static str,
    /// Packages of Debian to install.
    packages: &'static [&'static str],
    /// To build once the packages are there.
    crate_install: Option<CrateInstall>,
    /// What to do where we install nothing.
    advice: &'static str,
}

/// A program that `cargo install` builds.
#[derive(Clone, Copy)]
struct CrateInstall {
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const COMPILER: Missing = Missing {
    name: "a Rust compiler for bpfel-unknown-none",
    packages: &["rustc-web", "libstd-rust-web-dev-bpf"],
    crate_install: None,
    advice: "rustup toolchain install nightly --component rust-src",
};

/// Its bindings must be those of the LLVM that it links.
const LINKER: Missing = Missing {
    name: toolchain::LINKER,
    packages: &["llvm-22-dev"],
    crate_install: Some(CrateInstall {
        arguments: &[
            "bpf-linker",
            "--version",
            "0.13.0",
            "--no-default-features",
            "--features",
            "llvm-22",
        ],
        environment: &[("LLVM_PREFIX", "/usr/lib/llvm-22")],
    }),
    advice: "LLVM_PREFIX=<LLVM 22> cargo install bpf-linker --version 0.13.0 --locked \
             --no-default-features --features llvm-22",
};

const NEXTEST: Missing = Missing {
    name: "cargo-nextest",
    packages: &[],
    crate_install: Some(CrateInstall {
        arguments: &["cargo-nextest", "--version", "0.9.143"],
        environment: &[],
    }),
    advice: "cargo install cargo-nextest --version 0.9.143 --locked",
};

/// Programs that the tests start.
const TOOLS: [Missing; 4] = [
    tool("bpftool", &["bpftool"], "install bpftool"),
    tool("capsh", &["libcap2-bin"], "install libcap's programs"),
    tool("setpriv", &["util-linux"], "install util-linux"),
    tool("node", &["nodejs"], "install Node.js 16 or later"),
];

const fn tool(
    name: &'static str,
    packages: &'static [&'static str],
    advice: &'static str,
) -> Missing {
    Missing {
        name,
        packages,
        crate_install: None,
        advice,
    }
}

/// The verb.
pub(crate) fn run() -> Result<()> {
    if missing(Scope::All).is_empty() {
        println!("setup: nothing to do");
        return Ok(());
    }
    ensure(Scope::All)
}

/// Installs what `scope` needs and is missing; silent when nothing is.
pub(crate) fn ensure(scope: Scope) -> Result<()> {
    let absent = missing(scope);
    if absent.is_empty() {
        return Ok(());
    }
    if !(is_debian() && shell::is_root()) {
        for item in &absent {
            eprintln!("missing: {}: {}", item.name, item.advice);
        }
        bail!("setup installs on Debian as root only");
    }
    install(&absent)?;
    let left: Vec<_> = missing(scope).iter().map(|item| item.name).collect();
    if !left.is_empty() {
        bail!("still missing after setup: {}", left.join(", "));
    }
    println!("setup: done");
    Ok(())
}

fn missing(scope: Scope) -> Vec<Missing> {
    let mut absent = Vec::new();
    if Toolchain::find().is_none() {
        absent.push(COMPILER);
    }
    let programs = match scope {
        Scope::Kernel => vec![LINKER],
        Scope::All => [LINKER, NEXTEST].into_iter().chain(TOOLS).collect(),
    };
    absent.extend(
        programs
            .into_iter()
            .filter(|item| shell::find(item.name).is_none()),
    );
    absent
}

fn install(absent: &[Missing]) -> Result<()> {
    let packages: BTreeSet<_> = absent.iter().flat_map(|item| item.packages).collect();
    if !packages.is_empty() {
        println!("setup: apt-get update");
        shell::run(apt_get().args(["-q", "update"]))?;
        let names: Vec<_> = packages.into_iter().copied().collect();
        println!("setup: apt-get install {}", names.join(" "));
        shell::run(
            apt_get()
                .args(["-q", "install", "--yes", "--no-install-recommends"])
                .args(names),
        )?;
    }
    for item in absent.iter().filter_map(|item| item.crate_install) {
        println!("setup: cargo install {}", item.arguments.join(" "));
        shell::run(
            shell::cargo()
                .current_dir("/")
                .env_remove("CARGO_TARGET_DIR")
                .envs(item.environment.iter().copied())
                .args(["install", "--locked"])
                .args(item.arguments),
        )?;
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_debian() -> bool {
    fs::read_to_string("/etc/os-release")
        .is_ok_and(|text| text.lines().any(|line| line == "ID=debian"))
}
