//! `xtask setup`: installs what the builds and tests need.
//!
//! In: what is installed. Out: the rest installed, with one line a step. On
//! Debian as root it uses the distribution's packages, `cargo install` and `pip
//! install`; anywhere else it changes nothing and names what is missing.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
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
    /// The first, and what `cargo xtask viewer` runs.
    Viewer,
    /// The first, and the programs of others that `cargo xtask real` records.
    Real,
    /// The first, and what `cargo xtask kernels` runs.
    Kernels,
}

/// Something that is not there.
struct Missing {
    name: &'static str,
    /// Packages of Debian to install.
    packages: &'static [&'static str],
    /// To do once the packages are there.
    recipe: Recipe,
    /// What to do where we install nothing.
    advice: &'static str,
}

/// How a program is installed that is not in a package of Debian.
#[derive(Clone, Copy)]
enum Recipe {
    /// It is.
    Packaged,
    /// `cargo install` builds it.
    Crate {
        arguments: &'static [&'static str],
        environment: &'static [(&'static str, &'static str)],
    },
    /// The same into a folder of its own, in `target/`.
    CrateApart {
        folder: &'static str,
        version: &'static str,
    },
    /// `pip install` into a virtual environment of its own, in `target/`.
    Venv {
        folder: &'static str,
        requirement: &'static str,
    },
}

const COMPILER: Missing = Missing {
    name: "a Rust compiler for bpfel-unknown-none",
    packages: &["rustc-web", "libstd-rust-web-dev-bpf"],
    recipe: Recipe::Packaged,
    advice: "rustup toolchain install nightly --component rust-src",
};

/// Its bindings must be those of the LLVM that it links.
const LINKER: Missing = Missing {
    name: toolchain::LINKER,
    packages: &["llvm-22-dev"],
    recipe: Recipe::Crate {
        arguments: &[
            "bpf-linker",
            "--version",
            "0.13.0",
            "--no-default-features",
            "--features",
            "llvm-22",
        ],
        environment: &[("LLVM_PREFIX", "/usr/lib/llvm-22")],
    },
    advice: "LLVM_PREFIX=<LLVM 22> cargo install bpf-linker --version 0.13.0 --locked \
             --no-default-features --features llvm-22",
};

const NEXTEST: Missing = Missing {
    name: "cargo-nextest",
    packages: &[],
    recipe: Recipe::Crate {
        arguments: &["cargo-nextest", "--version", "0.9.143"],
        environment: &[],
    },
    advice: "cargo install cargo-nextest --version 0.9.143 --locked",
};

/// Another server of S3.
const MOTO: Missing = Missing {
    name: "moto_server",
    packages: &["python3-venv"],
    recipe: Recipe::Venv {
        folder: "target/moto",
        requirement: "moto[server]==5.2.5",
    },
    advice: "python3 -m venv target/moto && target/moto/bin/pip install 'moto[server]==5.2.5'",
};

/// What opens our segments; 15 minutes of CPU time.
const VIEWER: Missing = Missing {
    name: "dial9-viewer",
    packages: &[],
    recipe: Recipe::CrateApart {
        folder: "target/viewer",
        version: "0.5.7",
    },
    advice: "cargo install dial9-viewer --version 0.5.7 --locked --root target/viewer",
};

/// What shows its pages.
const BROWSER: Missing = tool(
    "chromium-headless-shell",
    &["chromium-headless-shell"],
    "install Chromium's headless shell",
);

/// What `cargo xtask real` records, as its authors' release profiles build it; minutes
/// each.
const REAL: [Missing; 3] = [
    real(
        "miniserve",
        "0.35.0",
        "cargo install miniserve --version 0.35.0 --locked --root target/real",
    ),
    real(
        "static-web-server",
        "2.43.0",
        "cargo install static-web-server --version 2.43.0 --locked --root target/real",
    ),
    real(
        "oha",
        "1.16.0",
        "cargo install oha --version 1.16.0 --locked --root target/real",
    ),
];

/// What boots other kernels, and what they have in memory.
const MACHINES: [Missing; 8] = [
    tool("qemu-system-x86_64", &["qemu-system-x86"], "install QEMU"),
    tool("busybox", &["busybox-static"], "install busybox"),
    tool("cpio", &["cpio"], "install cpio"),
    tool("strip", &["binutils"], "install binutils"),
    tool("bpftool", &["bpftool"], "install bpftool"),
    tool("mkfs.ext4", &["e2fsprogs"], "install e2fsprogs"),
    tool("filefrag", &["e2fsprogs"], "install e2fsprogs"),
    tool("fio", &["fio"], "install fio 3"),
];

/// Programs that the tests start.
const TOOLS: [Missing; 7] = [
    tool("bpftool", &["bpftool"], "install bpftool"),
    tool("c++", &["g++"], "install a C++ compiler"),
    tool("capsh", &["libcap2-bin"], "install libcap's programs"),
    tool("setpriv", &["util-linux"], "install util-linux"),
    tool("filefrag", &["e2fsprogs"], "install e2fsprogs"),
    tool("fio", &["fio"], "install fio 3"),
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
        recipe: Recipe::Packaged,
        advice,
    }
}

const fn real(name: &'static str, version: &'static str, advice: &'static str) -> Missing {
    Missing {
        name,
        packages: &[],
        recipe: Recipe::CrateApart {
            folder: "target/real",
            version,
        },
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
        Scope::All => [LINKER, NEXTEST, MOTO].into_iter().chain(TOOLS).collect(),
        Scope::Viewer => vec![LINKER, MOTO, BROWSER, VIEWER],
        Scope::Real => [LINKER].into_iter().chain(REAL).collect(),
        Scope::Kernels => [LINKER].into_iter().chain(MACHINES).collect(),
    };
    absent.extend(programs.into_iter().filter(|item| !item.is_there()));
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
    for item in absent {
        item.follow()?;
    }
    Ok(())
}

impl Missing {
    fn is_there(&self) -> bool {
        match self.recipe {
            Recipe::CrateApart { folder, version } => {
                // What `cargo install` notes: another version is not what is asked for.
                let folder = shell::root().join(folder);
                let entry = format!("\"{} {version} (", self.name);
                let notes = fs::read_to_string(folder.join(".crates.toml"));
                notes.is_ok_and(|notes| notes.contains(&entry))
                    && folder.join("bin").join(self.name).is_file()
            }
            Recipe::Venv { folder, .. } => {
                let programs = shell::root().join(folder).join("bin");
                programs.join(self.name).is_file()
            }
            Recipe::Packaged | Recipe::Crate { .. } => shell::find(self.name).is_some(),
        }
    }

    fn follow(&self) -> Result<()> {
        match self.recipe {
            Recipe::Packaged => Ok(()),
            Recipe::Crate {
                arguments,
                environment,
            } => cargo_install(arguments, environment),
            Recipe::CrateApart { folder, version } => {
                let folder = shell::root().join(folder);
                let root = [("CARGO_INSTALL_ROOT", folder.as_os_str())];
                cargo_install(&[self.name, "--version", version], &root)
            }
            Recipe::Venv {
                folder,
                requirement,
            } => pip_install(&shell::root().join(folder), requirement),
        }
    }
}

fn cargo_install(arguments: &[&str], environment: &[(&str, impl AsRef<OsStr>)]) -> Result<()> {
    println!("setup: cargo install {}", arguments.join(" "));
    shell::run(
        shell::cargo()
            .current_dir("/")
            .env_remove("CARGO_TARGET_DIR")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .args(["install", "--locked"])
            .args(arguments),
    )
}

fn pip_install(folder: &Path, requirement: &str) -> Result<()> {
    println!("setup: pip install {requirement}");
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    shell::run(Command::new(folder.join("bin/pip")).args(["install", "--quiet", requirement]))
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
