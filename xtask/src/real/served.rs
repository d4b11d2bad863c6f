//! A server of others, its requests and its log.
//!
//! In: which one, and the file that it serves. Out: what loads on it got, and
//! whether its log says the same. Never: a server that has ended meanwhile and is
//! taken for the one that was started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::load::{self, Load, REQUESTS};
use super::program;
use crate::listening::Listening;

/// Name of the file.
pub(super) const FILE: &str = "content.bin";
/// Most that the server's log lags.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A server that can be started.
pub(super) struct Kind {
    /// Its crate and its program.
    pub(super) program: &'static str,
    /// For logging requests on loopback; the port and the folder follow.
    arguments: &'static [&'static str],
    /// What precedes the folder.
    folder: &'static [&'static str],
    /// Whether its runtime is a multi-thread one.
    pub(super) is_multi_thread: bool,
    /// What is in its log for each request of [`FILE`].
    request: &'static str,
}

/// On actix-web: a current-thread runtime on each of its threads.
pub(super) const MINISERVE: Kind = Kind {
    program: "miniserve",
    arguments: &["--interfaces", "127.0.0.1", "--verbose"],
    folder: &[],
    is_multi_thread: false,
    request: "\"GET /content.bin HTTP/1.1\" 200 ",
};

/// On hyper: a multi-thread runtime.
pub(super) const STATIC_WEB_SERVER: Kind = Kind {
    program: "static-web-server",
    arguments: &["--host", "127.0.0.1", "--log-level", "info"],
    folder: &["--root"],
    is_multi_thread: true,
    request: "incoming request: method=GET uri=/content.bin",
};

/// A server that runs. It ends with this value.
pub(super) struct Served<'a> {
    kind: &'a Kind,
    server: Listening,
    content: &'a [u8],
    folder: PathBuf,
    log: PathBuf,
    /// Requests that its log is to have.
    requests: u64,
}

impl<'a> Served<'a> {
    /// Starts it; the folder that it serves is `site` beside `folder`, its log is in
    /// `folder`.
    pub(super) fn start(folder: &Path, kind: &'a Kind, content: &'a [u8]) -> Result<Self> {
        let log = folder.join("server.log");
        let server = Listening::start(&log, |port| {
            let mut command = Command::new(program(kind.program));
            command
                .current_dir(folder)
                .args(kind.arguments)
                .args(["--port", &port.to_string()])
                .args(kind.folder)
                .arg("../site");
            println!("real: {command:?}");
            command
        })?;
        let mut served = Self {
            kind,
            server,
            content,
            folder: folder.to_owned(),
            log,
            requests: 0,
        };
        served.expect_content()?;
        Ok(served)
    }

    /// Its process id.
    pub(super) fn pid(&self) -> String {
        self.server.process.pid()
    }

    /// The address of the file.
    pub(super) fn url(&self) -> String {
        format!("{}/{FILE}", self.server.url)
    }

    /// Puts a load on it.
    pub(super) fn load(&mut self, name: &str) -> Result<Load> {
        let load = load::run(&self.url(), &self.folder.join(format!("oha-{name}.log")))?;
        self.count(name)?;
        Ok(load)
    }

    /// Waits until its log has all requests of a load that has ended.
    pub(super) fn count(&mut self, name: &str) -> Result<()> {
        self.requests += REQUESTS;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.server.process.ended()? {
                bail!("{name}: {status}: the server, see {}", self.log.display());
            }
            let logged = self.logged()?;
            if logged == self.requests {
                return Ok(());
            }
            if logged > self.requests || begun.elapsed() > PATIENCE {
                bail!(
                    "{name}: {logged} requests in {}, not {}",
                    self.log.display(),
                    self.requests
                );
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// What is wrong with it after everything.
    pub(super) fn problems(&mut self) -> Result<Vec<String>> {
        self.expect_content()?;
        let mut problems = complaints(&self.log)?;
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("oha-") {
                problems.extend(complaints(&path)?);
            }
        }
        Ok(problems)
    }

    /// Gets the file, which is what it was.
    fn expect_content(&mut self) -> Result<()> {
        let mut response = self.server.agent.get(self.url()).call()?;
        let body = response.body_mut().read_to_vec()?;
        ensure!(body == self.content, "{} is another file", self.url());
        self.requests += 1;
        Ok(())
    }

    fn logged(&self) -> Result<u64> {
        let text = text(&self.log)?;
        let lines = text.lines().filter(|line| line.contains(self.kind.request));
        Ok(lines.count() as u64)
    }
}

/// The lines of a log that tell of an error or a panic; a few are enough.
pub(super) fn complaints(log: &Path) -> Result<Vec<String>> {
    let text = text(log)?;
    let lines = text.lines().filter(|line| is_complaint(line)).take(3);
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    Ok(lines.map(|line| format!("{name}: {line}")).collect())
}

fn is_complaint(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    ["error", "panicked", "warn", "fatal", "aborted"]
        .iter()
        .any(|word| line.contains(word))
}

fn text(log: &Path) -> Result<String> {
    let text = fs::read(log).with_context(|| log.display().to_string())?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::is_complaint;

    #[test]
    fn what_is_a_complaint() {
        for line in [
            "thread 'main' panicked at src/main.rs:1:1:",
            "12:00:00 [ERROR] Connection reset by peer",
            "2026-11-30T12:00:00 WARN static_web_server::x: y",
        ] {
            assert!(is_complaint(line), "{line}");
        }
        for line in [
            "  panics                  0",
            "12:00:00 [INFO] \"GET / HTTP/1.1\" 200 3",
        ] {
            assert!(!is_complaint(line), "{line}");
        }
    }
}
