//! Kernels of Debian's.
//!
//! In: the archive that the system's own sources name. Out: the kernel's image, unpacked,
//! in the cache. Never: an installation; a change outside of the cache.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::folder;
use crate::shell;

/// Names the kernel for virtual machines of each suite.
const META: &str = "linux-image-cloud-amd64";
/// Suites with the kernels that we want.
const SUITES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// One that is unpacked.
pub(super) struct Kernel {
    /// Of the package.
    pub(super) version: String,
    /// What is booted.
    pub(super) image: PathBuf,
}

/// Versions of the kernels that there are, newest first.
pub(super) fn available() -> Result<Vec<String>> {
    let state = folder().join("apt");
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(state.join(part))?;
    }
    fs::write(state.join("sources.list"), sources()?)?;
    shell::run(apt("apt-get").args(["-qq", "update"]))?;
    let listed = shell::output(apt("apt-cache").args(["madison", META]))?;
    let version = |line: &str| Some(line.split('|').nth(1)?.trim().to_owned());
    let versions: Vec<_> = listed.lines().filter_map(version).collect();
    ensure!(!versions.is_empty(), "no package {META}");
    Ok(versions)
}

/// The suites, from where the system has its own.
fn sources() -> Result<String> {
    let targets = [
        "--format",
        "$(CODENAME) $(REPO_URI)",
        "Created-By: Packages",
    ];
    let targets = shell::output(Command::new("apt-get").arg("indextargets").args(targets))?;
    let of = |is_it: fn(&str) -> bool| {
        let mut pairs = targets.lines().filter_map(|line| line.split_once(' '));
        pairs.find(|(name, _)| is_it(name)).map(|(_, uri)| uri)
    };
    let suites = SUITES;
    let main = of(|name| SUITES.contains(&name)).context("no source of Debian's in apt")?;
    let mut text = String::new();
    for suite in suites {
        writeln!(text, "deb [signed-by={KEYS}] {main} {suite} main")?;
    }
    if let Some(security) = of(|name| name.ends_with("-security")) {
        for suite in suites.iter().filter(|suite| **suite != "sid") {
            writeln!(
                text,
                "deb [signed-by={KEYS}] {security} {suite}-security main"
            )?;
        }
    }
    Ok(text)
}

/// `apt` with sources and state of its own.
fn apt(program: &str) -> Command {
    let state = folder().join("apt");
    let mut command = Command::new(program);
    let mut option = |name: &str, value: &Path| {
        command.arg("-o").arg(format!("{name}={}", value.display()));
    };
    option("Dir::Etc::sourcelist", &state.join("sources.list"));
    option("Dir::Etc::sourceparts", Path::new("/dev/null"));
    option("Dir::State::Lists", &state.join("lists"));
    option("Dir::Cache", &state.join("cache"));
    // Without it the user `_apt` writes, which may not be able to.
    option("APT::Sandbox::User", Path::new("root"));
    option("APT::Architecture", Path::new("amd64"));
    command.args([
        "-o",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
    ]);
    command
}

impl Kernel {
    /// The newest whose version begins so, from the cache or the archive.
    pub(super) fn fetch(available: &[String], series: &str) -> Result<Self> {
        let version = available.iter().find(|version| version.starts_with(series));
        let version = version.with_context(|| format!("no kernel {series}"))?;
        let unpacked = folder().join(version);
        if !unpacked.join("vmlinuz").exists() {
            unpack(version, &unpacked)?;
        }
        Ok(Self {
            version: version.clone(),
            image: unpacked.join("vmlinuz"),
        })
    }
}

fn unpack(version: &str, to: &Path) -> Result<()> {
    let image = depended_on(&format!("{META}={version}"), "linux-image-")?;
    let image = image.with_context(|| format!("{META} {version} depends on no image"))?;
    // From 7.x on the image is in a package of its own.
    let binary = depended_on(&format!("{image}={version}"), "linux-binary-")?;
    let package = binary.unwrap_or(image);
    let scratch = folder().join("unpacked");
    shell::empty(&scratch)?;
    let download = format!("{package}={version}");
    shell::run(
        apt("apt-get")
            .current_dir(&scratch)
            .args(["-qq", "download", &download]),
    )?;
    let archive = only(&scratch, |name| name.starts_with("linux-"))?;
    shell::run(
        Command::new("dpkg-deb")
            .arg("-x")
            .arg(archive)
            .arg(&scratch),
    )?;
    fs::create_dir_all(to)?;
    let is_image = |name: &str| name.starts_with("vmlinuz");
    let built = only(&scratch.join("boot"), is_image).or_else(|_| {
        let modules = only(&scratch.join("usr/lib/modules"), |_| true)?;
        only(&modules, is_image)
    })?;
    fs::rename(built, to.join("vmlinuz"))?;
    Ok(fs::remove_dir_all(scratch)?)
}

/// The package of this prefix that a package depends on.
fn depended_on(package: &str, prefix: &str) -> Result<Option<String>> {
    let shown = shell::output(apt("apt-cache").args(["show", package]))?;
    let depends = shown
        .lines()
        .find_map(|line| line.strip_prefix("Depends: "));
    let mut names = depends.unwrap_or_default().split([',', '|', ' ']);
    Ok(names
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned))
}

fn only(folder: &Path, is_it: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let named = |path: &PathBuf| is_it(&path.file_name().unwrap_or_default().to_string_lossy());
    let mut found = paths.filter(named);
    found
        .next()
        .with_context(|| format!("not in {}", folder.display()))
}
