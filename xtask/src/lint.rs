//! `xtask lint`: what reads the sources and runs nothing of them.
//!
//! In: the sources. Out: the names of the checks that failed. The kernel package
//! is only formatted here: its compiler comes without clippy.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{build_ebpf, shell};

const DENY_WARNINGS: [&str; 3] = ["--", "-D", "warnings"];

/// A command under a name.
#[derive(Debug)]
pub(crate) struct Step {
    /// What the step is called in reports.
    pub(crate) name: String,
    /// What it runs.
    pub(crate) command: Command,
}

/// The verb.
pub(crate) fn run() -> Result<()> {
    build_ebpf::ensure()?;
    let mut failed = Vec::new();
    for mut step in steps() {
        println!("lint: {}", step.name);
        if let Err(error) = shell::run(&mut step.command) {
            eprintln!("{error:#}");
            failed.push(step.name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Every check. They need the kernel object, which the binary embeds.
pub(crate) fn steps() -> Vec<Step> {
    let mut clippy = step("clippy", &with_host(&["clippy", "--all-targets"]));
    clippy.command.args(DENY_WARNINGS);
    let mut doc = step(
        "doc",
        &with_host(&["doc", "--no-deps", "--document-private-items"]),
    );
    doc.command.env("RUSTDOCFLAGS", "-D warnings");
    let mut steps = vec![step("fmt", &["fmt", "--all", "--check"]), clippy, doc];
    for folder in [
        "demo",
        "integration/testprogs",
        "integration/inside",
        "integration/large",
        "userspace/probes/fuzz",
    ] {
        steps.extend(apart(folder));
    }
    if shell::find("cargo-deny").is_some() {
        steps.push(step(
            "deny",
            &["deny", "check", "bans", "licenses", "sources"],
        ));
    } else {
        println!("lint: cargo-deny is not installed: skipped");
    }
    steps
}

/// The checks of a folder that is a workspace of its own. They share the
/// dependencies of the release build.
fn apart(folder: &str) -> [Step; 2] {
    let mut fmt = shell::cargo_apart("fmt", folder);
    fmt.arg("--check");
    let mut clippy = shell::cargo_apart("clippy", folder);
    clippy.arg("--release").args(DENY_WARNINGS);
    [("fmt", fmt), ("clippy", clippy)].map(|(name, command)| Step {
        name: format!("{name} {folder}"),
        command,
    })
}

/// `arguments` for every package that is compiled for this machine.
pub(crate) fn with_host<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [
        arguments,
        &["--workspace", "--exclude", "dial9-bpf-programs"],
    ]
    .concat()
}

/// A step that is a cargo command.
pub(crate) fn step(name: &str, arguments: &[&str]) -> Step {
    let mut command = shell::cargo();
    command.args(arguments);
    Step {
        name: name.to_owned(),
        command,
    }
}
