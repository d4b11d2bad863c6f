//! `xtask soak`: one long recording, whatever happens to it.
//!
//! In: how long. Out: the report of `integration/tests/soak`, and its verdict.
//! The short form is one of the integration tests.

use anyhow::{Result, bail};

use crate::{build_ebpf, shell};

/// How long, and which random numbers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Length of the recording
    #[arg(long, default_value_t = 30)]
    minutes: u32,
    /// Where kills and faults come from
    #[arg(long, default_value_t = 9)]
    seed: u64,
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !shell::is_root() {
        bail!("soak attaches to a program of its own, which needs root");
    }
    build_ebpf::tracer()?;
    shell::run(
        shell::cargo()
            .env("DIAL9_BPF_BIN", shell::tracer())
            .env("DIAL9_BPF_SOAK_MINUTES", args.minutes.to_string())
            .env("DIAL9_BPF_SOAK_SEED", args.seed.to_string())
            .args(["test", "--release", "--package", "dial9-bpf-integration"])
            .args(["--test", "soak", "--", "--ignored", "--nocapture"]),
    )
}
