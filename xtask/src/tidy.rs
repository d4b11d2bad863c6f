//! `xtask tidy`: the shape of the project.
//!
//! In: the packages' dependencies and the source files. Out: one line for each
//! thing that is out of shape.

mod files;
mod imports;

use anyhow::{Result, bail};

/// The verb.
pub(crate) fn run() -> Result<()> {
    let mut findings = imports::check()?;
    let (count, of_files) = files::check()?;
    findings.extend(of_files);
    for finding in &findings {
        println!("tidy: {finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: {count} files in shape");
    Ok(())
}
