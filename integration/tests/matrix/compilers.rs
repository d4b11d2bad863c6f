//! Older compilers, from the distribution's packages.
//!
//! In: `apt-get`, as it is set up here. Out: a folder with the packages
//! unpacked. Never: anything installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cells::Compiler;

/// Packages with the part of their version that is wanted; `""` is any.
const PACKAGES_163: [(&str, &str); 9] = [
    ("rustc", "1.63."),
    ("libstd-rust-1.63", ""),
    ("libstd-rust-dev", "1.63."),
    ("cargo", "0.66."),
    ("libgit2-1.5", ""),
    ("libmbedtls14", ""),
    ("libmbedx509-1", ""),
    ("libmbedcrypto7", ""),
    ("libhttp-parser2.9", ""),
];
const PACKAGES_185: [(&str, &str); 4] = [
    ("rustc-web", "1.85."),
    ("libstd-rust-web-1.85", ""),
    ("libstd-rust-web-dev", "1.85."),
    ("libllvm19", ""),
];
/// Where Debian has libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A compiler that can be started.
pub(crate) struct Unpacked {
    root: PathBuf,
}

impl Unpacked {
    /// Downloads and unpacks it into `folder`, unless it is there.
    pub(crate) fn get(compiler: Compiler, folder: &Path) -> Result<Self> {
        let packages: &[_] = match compiler {
            Compiler::Debian163 => &PACKAGES_163,
            Compiler::Debian185 => &PACKAGES_185,
            Compiler::Here => bail!("it is installed"),
        };
        let root = folder.join(format!("rustc{}", compiler.name()));
        let unpacked = Self { root };
        if !unpacked.rustc().is_file() {
            unpacked.unpack(packages)?;
        }
        Ok(unpacked)
    }

    fn unpack(&self, packages: &[(&str, &str)]) -> Result<()> {
        let new = self.root.with_extension("new");
        if new.exists() {
            fs::remove_dir_all(&new)?;
        }
        fs::create_dir_all(&new)?;
        for (package, version) in packages {
            let version = offered(package, version)?;
            run(Command::new("apt-get")
                .args(["download", "-qq", "-o", "APT::Sandbox::User=root"])
                .arg(format!("{package}={version}"))
                .current_dir(&new))?;
        }
        for file in fs::read_dir(&new)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg").arg("-x").arg(&file).arg(&new))?;
                fs::remove_file(file)?;
            }
        }
        let path = new.join("rustc.sh");
        let libraries = self.root.join(LIBRARIES);
        let program = self.root.join("usr/bin/rustc");
        fs::write(
            &path,
            format!(
                "#!/bin/sh\nLD_LIBRARY_PATH={} exec {} \"$@\"\n",
                libraries.display(),
                program.display()
            ),
        )?;
        run(Command::new("chmod").arg("755").arg(path))?;
        fs::rename(new, &self.root).context("the unpacked compiler")
    }

    /// The compiler; it finds its libraries.
    pub(crate) fn rustc(&self) -> PathBuf {
        self.root.join("rustc.sh")
    }

    /// The cargo of its time, which the compiler needs where it does not know
    /// what a later one asks it.
    pub(crate) fn cargo(&self) -> Option<Command> {
        let path = self.root.join("usr/bin/cargo");
        let mut command = Command::new(&path);
        command.env("LD_LIBRARY_PATH", self.root.join(LIBRARIES));
        path.is_file().then_some(command)
    }
}

/// The version of `package` that begins with `start` and that apt offers.
fn offered(package: &str, start: &str) -> Result<String> {
    let output = Command::new("apt-cache")
        .args(["madison", package])
        .output()
        .context("apt-cache")?;
    let text = String::from_utf8(output.stdout)?;
    let mut versions = text.lines().filter_map(|line| line.split('|').nth(1));
    let version = versions.find(|version| version.trim().starts_with(start));
    let version = version.with_context(|| format!("apt offers no {package} {start}"))?;
    Ok(version.trim().to_owned())
}

/// Runs a command that is silent when it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(())
}
