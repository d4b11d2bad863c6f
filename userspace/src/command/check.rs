//! `dial9-bpf check`: what segments hold, and what is wrong with them.

use anyhow::Context as _;
use dial9_bpf_trace::check::check_file;

use crate::{args::CheckArgs, exit, stdout};

/// Prints a report for each file; the value is the exit code.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<u8> {
    let mut problems = 0;
    for path in &args.files {
        let report = check_file(path).context("check")?;
        stdout::print(&format!("{}:\n{}", path.display(), report.render()))?;
        problems += report.problems.len();
    }
    Ok(if problems == 0 {
        exit::DONE
    } else {
        exit::FAILURE
    })
}
