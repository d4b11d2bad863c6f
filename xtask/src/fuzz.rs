//! `xtask fuzz`: libFuzzer on the scanner.
//!
//! In: the corpus in `userspace/probes/fuzz/corpus`, and how long. Out: how many
//! inputs came how far; an input that ends the scanner by a panic, or costs too much,
//! and where it is. What is found on the way is kept in `target/fuzz`, so that the next
//! run goes on from there.
//!
//! Stable compilers have libFuzzer's counters among their code generation options;
//! what cargo-fuzz needs a nightly for are sanitizers, and the scanner has no `unsafe`.

use std::fs;

use anyhow::{Context as _, Result};

use crate::shell;

/// How long.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Length of the run
    #[arg(long, default_value_t = 300)]
    seconds: u32,
}

impl Args {
    /// As one of many checks.
    pub(crate) fn brief() -> Self {
        Self { seconds: 20 }
    }
}

const FOLDER: &str = "userspace/probes/fuzz";
const HOST: &str = "x86_64-unknown-linux-gnu";
/// As cargo-fuzz sets them.
const COUNTERS: &str = "-Cpasses=sancov-module -Ccodegen-units=1 \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    // With a target named, build scripts are built without the counters.
    shell::run(
        shell::cargo_apart("build", FOLDER)
            .args(["--release", "--target", HOST])
            .env("RUSTFLAGS", COUNTERS),
    )?;
    let target = shell::root().join("target/fuzz");
    let kept = target.join("corpus");
    fs::create_dir_all(&kept)?;
    let found = target.join("found-");
    let mut fuzz = std::process::Command::new(target.join(HOST).join("release/fuzz"));
    fuzz.arg(format!("-max_total_time={}", args.seconds))
        .arg(format!("-artifact_prefix={}", found.display()))
        .args(["-max_len=65536", "-timeout=20", "-rss_limit_mb=1024"])
        .args(["-print_final_stats=1", "-verbosity=0"])
        .arg(kept)
        .arg(shell::root().join(FOLDER).join("corpus"));
    shell::run(&mut fuzz).with_context(|| {
        let found = found.display();
        format!("the input is {found}*: mend what it shows, then add it to {FOLDER}/corpus")
    })
}
