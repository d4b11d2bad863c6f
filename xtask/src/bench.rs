//! `xtask bench`: what a hit costs, and what an event costs.
//!
//! In: this machine. Out: a table for the kernel side, one for context switches, one for
//! the profile, one for block I/O, one for userspace, one for the
//! way to the disk, one for a large program and one for names; the method is printed with each.

use std::path::Path;

use anyhow::{Result, bail};

use crate::{build_ebpf, shell};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
    /// Interleaved rounds of the kernel's parts
    #[arg(long, default_value_t = 40)]
    rounds: u32,
    /// Records of the demo server that the other parts work on
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Nanoseconds a poll cycle of a probed program
    Kernel,
    /// Nanoseconds a context switch
    Sched,
    /// What a thread pays for the profile
    Cpu,
    /// Nanoseconds a block I/O
    Io,
    /// Events a second from ring bytes to a segment
    Userspace,
    /// A million events a second, to compressed segments
    Disk,
    /// Attaching to a program of 100 MB with 2,000 task types
    Large,
    /// Names for a segment's addresses
    Symbols,
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !shell::is_root() {
        bail!("bench attaches to programs of its own, which needs root");
    }
    build_ebpf::ensure()?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "dial9-bpf"]))?;
    shell::run(shell::cargo_apart("build", "demo").arg("--release"))?;
    let is_asked = |part| args.only.is_none_or(|only| only == part);
    if is_asked(Part::Kernel) {
        kernel(args.rounds, "overhead")?;
    }
    if is_asked(Part::Sched) {
        kernel(args.rounds, "switches")?;
    }
    if is_asked(Part::Cpu) {
        kernel(args.rounds, "profile")?;
    }
    if is_asked(Part::Io) {
        kernel(args.rounds, "io")?;
    }
    if is_asked(Part::Large) {
        shell::run(shell::cargo_apart("build", "integration/large").arg("--release"))?;
        shell::run(&mut bench("dial9-bpf-integration", "large"))?;
    }
    if is_asked(Part::Symbols) {
        symbols()?;
    }
    let replays: Vec<_> = [
        (Part::Userspace, "dial9-bpf-trace", "pipeline"),
        (Part::Disk, "dial9-bpf", "disk"),
    ]
    .into_iter()
    .filter(|(part, ..)| is_asked(*part))
    .collect();
    if replays.is_empty() {
        return Ok(());
    }
    let dump = shell::root().join("target/demo.dump");
    record(&dump, args.records)?;
    let done = replays.iter().try_for_each(|(_, package, name)| {
        shell::run(bench(package, name).arg("--dump").arg(&dump))
    });
    std::fs::remove_file(&dump)?;
    done
}

fn kernel(rounds: u32, name: &str) -> Result<()> {
    shell::run(bench("dial9-bpf-integration", name).args(["--rounds", &rounds.to_string()]))
}

/// Programs with debug information and without: our own, and the demo server.
fn symbols() -> Result<()> {
    let programs = ["target/release/dial9-bpf", "target/demo/release/demo"];
    let programs = programs.map(|program| shell::root().join(program));
    shell::run(bench("dial9-bpf-integration", "symbols").args(programs))
}

/// What the rings of the demo server give.
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
