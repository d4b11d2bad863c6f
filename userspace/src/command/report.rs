//! `dial9-bpf report`: what segments say of one subject.
//!
//! In: files. Out: tables, or a job for fio. Never: a table of what was not recorded.

use std::{fs, path::Path};

use anyhow::Context as _;
use dial9_bpf_trace::{stored_hits, stored_io::StoredFile};

use crate::{
    args::{ReportArgs, ReportIoArgs, ReportKeysArgs, Subject},
    exit, fio_job,
    io_report::Io,
    keys_report::Keys,
    stderr, stdout,
};

/// Prints the report; the value is the exit code.
///
/// # Errors
/// When a file is no trace, or nothing can be written.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<u8> {
    match &args.subject {
        Subject::Io(args) => io(args),
        Subject::Keys(args) => keys(args),
    }
}

fn io(args: &ReportIoArgs) -> anyhow::Result<u8> {
    let mut io = Io::default();
    for path in &args.files {
        io.add(&path.display().to_string(), StoredFile::read(path)?);
    }
    io.sort();
    let is_job_printed = args.fio.as_deref() == Some(Path::new("-"));
    let report = io.render();
    if is_job_printed || !io.is_recorded() {
        stderr::say(report.trim_end());
    } else {
        stdout::print(&report)?;
    }
    if !io.is_recorded() {
        return Ok(exit::NOTHING_TO_TRACE);
    }
    if let Some(path) = &args.fio {
        let Some(job) = fio_job::render(&io) else {
            stderr::say("no job for fio: nothing was read or written");
            return Ok(exit::NOTHING_TO_TRACE);
        };
        if is_job_printed {
            stdout::print(&job)?;
        } else {
            fs::write(path, job).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(exit::of_recording(io.lost, 0))
}

fn keys(args: &ReportKeysArgs) -> anyhow::Result<u8> {
    let mut keys = Keys::new(args);
    for path in &args.files {
        let told = stored_hits::read(path, |hit| keys.add(hit))?;
        keys.file(path, told);
    }
    stdout::print(&keys.render())?;
    if keys.is_empty() {
        return Ok(exit::NOTHING_TO_TRACE);
    }
    Ok(exit::of_recording(keys.lost(), 0))
}
