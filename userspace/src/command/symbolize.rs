//! `dial9-bpf symbolize`: the helper of a recorder.
//!
//! In: a program as stdin, questions over stdout. Out: answers. Never: run by people.

use crate::exit;

/// Answers, and ends; the value is the exit code.
///
/// # Errors
/// The system's; the recorder goes on without names.
pub(crate) fn run() -> anyhow::Result<u8> {
    dial9_bpf_symbolize::child::run()?;
    Ok(exit::DONE)
}
