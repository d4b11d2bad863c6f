//! `dial9-bpf attach` on a running program.
//!
//! In: its pid. Out: what the recorder said, and its exit code. Never: a recorder
//! that is taken as attached before it says so.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::shell::{self, Running};

/// Most that it takes to attach, and to end.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A recorder that is attached. It ends with this value.
pub(super) struct Recorder {
    process: Running,
    log: PathBuf,
}

impl Recorder {
    /// Returns once the links are live. What the recorder says goes to `log`.
    pub(super) fn attach(pid: &str, spool: &Path, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(shell::tracer());
        command
            .args(["attach", "--pid", pid, "--output"])
            .arg(spool)
            .stdout(file.try_clone()?)
            .stderr(file);
        println!("real: {command:?}");
        let mut recorder = Self {
            process: Running::start(&mut command)?,
            log: log.to_owned(),
        };
        let attached = recorder
            .process
            .wait_for(PATIENCE, || Ok(Said::of(log)?.sites));
        attached.with_context(|| format!("no attach: {command:?}, see {}", log.display()))?;
        Ok(recorder)
    }

    /// Ends it as Ctrl-C does; an error if it has ended before.
    pub(super) fn end(mut self) -> Result<ExitStatus> {
        let log = self.log.display();
        if let Some(status) = self.process.ended()? {
            bail!("the recorder ended under the load: {status}, see {log}");
        }
        self.process.interrupt()?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.ended()? {
                return Ok(status);
            }
            if begun.elapsed() > PATIENCE {
                bail!("the recorder does not end, see {log}");
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// What a recorder said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// `N sites in N ms`, once it is attached.
    pub(super) sites: Option<String>,
}

impl Said {
    /// So far, in `log`.
    pub(super) fn of(log: &Path) -> Result<Self> {
        let text = fs::read(log).with_context(|| log.display().to_string())?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// `attached to process PID (PATH): N sites in N ms, SIZE of rings`.
    fn parse(text: &str) -> Self {
        let sites = text.split(['\n', '\r']).find_map(|line| {
            let line = line.strip_prefix("attached to process ")?;
            let (_, sites) = line.rsplit_once("): ")?;
            let (sites, _) = sites.split_once(", ")?;
            Some(sites.to_owned())
        });
        Self { sites }
    }
}

#[cfg(test)]
mod tests {
    use super::Said;

    #[test]
    fn the_line_that_says_attached() {
        let text = "spool: recovered 1\nattached to process 12 (/a (b)/c): 126 sites in 5 ms, 32.0 MiB of rings\nmissing: park: x\n";
        assert_eq!(
            Said::parse(text).sites.as_deref(),
            Some("126 sites in 5 ms")
        );
        assert_eq!(Said::parse("attached to"), Said::default());
    }
}
