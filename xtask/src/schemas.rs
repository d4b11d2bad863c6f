//! `xtask schemas`: the committed text of what is written.
//!
//! In: the event types and record layouts. Out: `schemas/`, compared or written
//! anew by the tests of dial9-bpf-trace that have `schemas` in their names.

use anyhow::{Result, bail};

use crate::lint::{Step, step};
use crate::shell;

/// Whether to compare or to write.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare schemas/ with the sources (the default)
    #[arg(long)]
    check: bool,
    /// Write schemas/ anew
    #[arg(long, conflicts_with = "check")]
    bless: bool,
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let Step { mut command, .. } = step(
        "schemas",
        &[
            "test",
            "--package",
            "dial9-bpf-trace",
            "--lib",
            "--",
            "schemas",
        ],
    );
    if args.bless {
        command.env("DIAL9_BPF_BLESS", "1");
    }
    let mut ran = false;
    let passed = shell::watch(command, |line| {
        ran |= line.starts_with("test ") && line.contains("schemas");
    })?;
    if !passed {
        bail!("schemas/ differs from the sources; cargo xtask schemas --bless writes it anew");
    }
    if !ran {
        bail!("no test of dial9-bpf-trace has schemas in its name");
    }
    Ok(())
}
