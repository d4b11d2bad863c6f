//! What is said beside the reports: that links are live, what is missing, why
//! it failed.
//!
//! In: a line. Out: the same on stderr. Never: a failure where nobody hears it.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// Says one line, or nothing where stderr takes none.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
