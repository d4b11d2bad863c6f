//! `xtask bench`: what a hit costs, and what an event costs.
//!
//! In: this machine. Out: one table for the kernel side and one for userspace;
//! the method is printed with each.

use std::path::{self, Path, PathBuf};

use anyhow::{Result, bail};

use crate::{build_ebpf, shell};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
    /// Records for the userspace part, as the ring gave them; synthetic without
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
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
    build_ebpf::ensure()?;
    if args.only != Some(Part::Kernel) {
        userspace(args.dump.as_deref())?;
    }
    if args.only != Some(Part::Userspace) {
        kernel()?;
    }
    Ok(())
}

fn userspace(dump: Option<&Path>) -> Result<()> {
    let mut command = shell::cargo();
    command.args([
        "bench",
        "--package",
        "dial9-bpf-trace",
        "--bench",
        "pipeline",
    ]);
    if let Some(dump) = dump {
        // The bench runs in the folder of its package.
        let dump = path::absolute(dump)?;
        command.args(["--", "--dump"]).arg(dump);
    }
    shell::run(&mut command)
}

/// It attaches to programs of its own, which root may.
fn kernel() -> Result<()> {
    if !shell::is_root() {
        bail!("the kernel part needs root");
    }
    shell::run(shell::cargo().args([
        "run",
        "--release",
        "--package",
        "dial9-bpf-integration",
        "--bin",
        "price",
    ]))
}
