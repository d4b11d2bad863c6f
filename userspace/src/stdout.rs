//! What is printed for whoever asked: reports and summaries.
//!
//! In: text. Out: the same on stdout. Never: a panic where stdout is closed.

use std::io::{self, Write as _};

use anyhow::Context as _;

/// Prints all of it.
///
/// # Errors
/// The system's, such as a pipe that nobody reads any more.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot print")
}
