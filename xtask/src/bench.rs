//! `xtask bench`: what a hit costs, and what an event costs.
//!
//! In: this machine. Out: one table for the kernel side and one for userspace;
//! the method is printed with each.

use std::path::Path;

use anyhow::{Result, bail};

use crate::{build_ebpf, shell};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
    /// Interleaved rounds of the kernel part
    #[arg(long, default_value_t = 40)]
    rounds: u32,
    /// Records of the demo server that the userspace part works on
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Nanoseconds a poll cycle of a probed program
    Kernel,
    /// Events a second from ring bytes to a segment
    Userspace,
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !shell::is_root() {
        bail!("bench attaches to programs of its own, which needs root");
    }
    build_ebpf::ensure()?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "dial9-bpf"]))?;
    shell::run(shell::cargo_apart("build", "demo").arg("--release"))?;
    if args.only != Some(Part::Userspace) {
        kernel(args.rounds)?;
    }
    if args.only != Some(Part::Kernel) {
        userspace(args.records)?;
    }
    Ok(())
}

fn kernel(rounds: u32) -> Result<()> {
    shell::run(bench("dial9-bpf-integration", "overhead").args(["--rounds", &rounds.to_string()]))
}

/// The line from ring bytes to batches, on what the demo's rings gave.
fn userspace(records: u64) -> Result<()> {
    let dump = shell::root().join("target/demo.dump");
    record(&dump, records)?;
    let piped = shell::run(
        bench("dial9-bpf-trace", "pipeline")
            .arg("--dump")
            .arg(&dump),
    );
    std::fs::remove_file(&dump)?;
    piped
}

fn record(dump: &Path, records: u64) -> Result<()> {
    shell::run(
        bench("dial9-bpf-integration", "demo_dump")
            .arg(dump)
            .arg(records.to_string()),
    )
}

/// `cargo bench` of one bench, up to and with the `--`.
fn bench(package: &str, bench: &str) -> std::process::Command {
    let mut command = shell::cargo();
    command.args(["bench", "--package", package, "--bench", bench, "--"]);
    command
}
