//! `dial9-bpf check`: what segments hold, and what is wrong with them.
//!
//! In: files. Out: a report for each, or why it cannot be read. Never: an end at
//! a bad file before the others are looked at.

use dial9_bpf_trace::check::check_file;

use crate::{args::CheckArgs, exit, stderr, stdout};

/// Prints a report for each file; the value is the exit code.
///
/// # Errors
/// When nothing can be printed.
pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<u8> {
    let mut code = exit::DONE;
    for path in &args.files {
        match check_file(path) {
            Ok(report) => {
                stdout::print(&format!("{}:\n{}", path.display(), report.render()))?;
                if report.is_sound() {
                    continue;
                }
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                stderr::say(format_args!("dial9-bpf: check: {error:#}"));
            }
        }
        code = exit::FAILURE;
    }
    Ok(code)
}
