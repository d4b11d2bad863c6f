//! `xtask matrix`: what is exact on which build of which Tokio.
//!
//! In: which cells. Out: `integration/MATRIX.md`, when it went through all of
//! them. `integration/tests/matrix` builds them, records them and judges; a few
//! of them are one of the integration tests. Cells with musl want
//! `rustup target add x86_64-unknown-linux-musl`.

use anyhow::{Result, bail};

use crate::{build_ebpf, shell};

/// Where the table is.
const TABLE: &str = "integration/MATRIX.md";

/// Which cells.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only cells whose name has one of these in it, separated by commas; no table
    /// is written then
    #[arg(long, value_name = "FILTER")]
    only: Option<String>,
    /// Build nothing: only cells that an earlier run has built are measured, and
    /// the table says so of the others
    #[arg(long)]
    built: bool,
    /// Print the cells' names, and build nothing
    #[arg(long)]
    list: bool,
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut test = shell::cargo();
    if args.list {
        test.env("DIAL9_BPF_MATRIX_LIST", "1");
    } else if !shell::is_root() {
        bail!("matrix attaches to programs of its own, which needs root");
    }
    if args.built {
        test.env("DIAL9_BPF_MATRIX_BUILT", "1");
    }
    match &args.only {
        Some(filter) => drop(test.env("DIAL9_BPF_MATRIX_ONLY", filter)),
        None => drop(test.env("DIAL9_BPF_MATRIX_TABLE", shell::root().join(TABLE))),
    }
    if args.list {
        build_ebpf::ensure()?;
    } else {
        build_ebpf::tracer()?;
    }
    shell::run(
        test.env("DIAL9_BPF_BIN", shell::tracer())
            .args(["test", "--quiet", "--package", "dial9-bpf-integration"])
            .args(["--test", "matrix", "--", "--ignored", "--nocapture"]),
    )
}
