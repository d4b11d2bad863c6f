//! `dial9-bpf dump`: the last seconds of a recorder that runs with `--on-demand`.
//!
//! In: the recorder's directory. Out: its segments there, or in its store. Never: a
//! signal to a process that is no such recorder.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;
use dial9_bpf_trace::lock::{DirectoryLock, Holder, LockError};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use crate::{args::DumpArgs, exit, flight::Noted, stdout};

/// Time between two looks at what the recorder has written down.
const LOOK: Duration = Duration::from_millis(20);

/// The recorder is somebody else's.
#[derive(Debug, thiserror::Error)]
#[error("not allowed to ask the recorder of {}: run as its user or as root", dir.display())]
pub(crate) struct NotAllowed {
    dir: PathBuf,
}

/// Asks, waits, and says what was dumped; the value is the exit code.
///
/// # Errors
/// When there is nobody to be asked, or no answer in time.
pub(crate) fn run(args: &DumpArgs) -> anyhow::Result<u8> {
    let dir = &args.dir;
    let (pid, before) = recorder(dir)?;
    ask(pid, dir)?;
    let deadline = Instant::now() + args.timeout;
    loop {
        let Some(holder) = holder_of(dir)?.filter(|now| now.pid == pid) else {
            bail!("process {pid} ended before it said what it has dumped");
        };
        if let Some(noted) = noted(&holder)
            && noted.answered > before
        {
            stdout::print(&format!("{}\n", noted.text))?;
            return Ok(exit::DONE);
        }
        if Instant::now() >= deadline {
            bail!(
                "process {pid} has not dumped within {:?}: it says why",
                args.timeout
            );
        }
        thread::sleep(LOOK);
    }
}

/// The recorder of a directory, and how often it has been asked.
fn recorder(dir: &Path) -> anyhow::Result<(u32, u64)> {
    let Some(holder) = holder_of(dir)? else {
        bail!("nobody records into {}", dir.display());
    };
    let Some(noted) = noted(&holder) else {
        bail!(
            "process {} records into {} without --on-demand: it is all there",
            holder.pid,
            dir.display()
        );
    };
    Ok((holder.pid, noted.answered))
}

fn holder_of(dir: &Path) -> anyhow::Result<Option<Holder>> {
    match DirectoryLock::spool_holder(dir) {
        Err(LockError::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            let dir = dir.to_owned();
            Err(NotAllowed { dir }.into())
        }
        found => Ok(found?),
    }
}

fn noted(holder: &Holder) -> Option<Noted> {
    holder.note.parse().ok()
}

fn ask(pid: u32, dir: &Path) -> anyhow::Result<()> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let sent = raw.map_or(Err(Errno::SRCH), |raw| kill_process(raw, Signal::USR1));
    match sent {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            let dir = dir.to_owned();
            Err(NotAllowed { dir }.into())
        }
        Err(errno) => bail!("cannot signal process {pid}: {errno}"),
    }
}
