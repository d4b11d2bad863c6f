//! `dial9-bpf convert`: segments in another encoding.
//!
//! In: segment files. Out: each replaced by a file in the wanted encoding.
//! Never: a file of a spool that a recorder has; a file that was there before,
//! overwritten.

use std::path::Path;

use anyhow::{Context as _, ensure};
use bytesize::ByteSize;
use dial9_bpf_ship::convert::{Encoding, replace};
use dial9_bpf_trace::lock::DirectoryLock;

use crate::{args::ConvertArgs, exit, stderr, stdout};

/// Converts the files one after the other, and says what became of each; the
/// value is the exit code.
///
/// # Errors
/// When that cannot be said.
pub(crate) fn run(args: &ConvertArgs) -> anyhow::Result<u8> {
    let mut code = exit::DONE;
    for path in &args.files {
        match convert(path, args.to.into()) {
            Ok(report) => stdout::print(&report)?,
            Err(error) => {
                stderr::say(format_args!("dial9-bpf: {error:#}"));
                code = exit::FAILURE;
            }
        }
    }
    Ok(code)
}

fn convert(from: &Path, encoding: Encoding) -> anyhow::Result<String> {
    let name = || format!("{} is not named as a segment", from.display());
    let to = encoding.rename(from).with_context(name)?;
    if to == from {
        return Ok(format!("{}: unchanged\n", from.display()));
    }
    ensure!(!to.exists(), "{} is there already", to.display());
    let dir = from.parent().filter(|dir| !dir.as_os_str().is_empty());
    // The recorder of a spool knows each file of it.
    let _lock = DirectoryLock::take_spool(dir.unwrap_or(Path::new(".")))?;
    let converted = replace(from, &to, encoding, &[])?;
    let (bytes, raw) = (ByteSize(converted.bytes), ByteSize(converted.raw_bytes));
    Ok(format!("{}: {bytes}, {raw} raw\n", to.display()))
}
