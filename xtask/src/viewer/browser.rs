//! The viewer's pages in Chromium, without a screen.
//!
//! In: the address of a page. Out: the counters that it shows. Never: a count that
//! is not read off the page; a browser that outlives its owner.
//!
//! Chromium is asked through its own protocol
//! (<https://chromedevtools.github.io/devtools-protocol/>): `--dump-dom` prints a
//! page before the workers that parse the trace are done.

use std::fmt::{self, Display};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use crate::shell::{self, Running};

/// Most that Chromium takes to begin, and a page to show a trace.
const PATIENCE: Duration = Duration::from_mins(3);
/// Most that it takes to end.
const FAREWELL: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the toolbar says of the trace, how far the list of tasks is, and the
/// page's text.
const LOOK: &str = "(() => {
    const text = (selector) => document.querySelector(selector)?.textContent ?? '';
    return [
        text('[data-file-meta]'),
        text('[data-task-position]'),
        document.body?.innerText ?? '',
    ];
})()";

/// A browser. It ends with this value.
pub(super) struct Browser {
    process: Running,
    socket: WebSocket<TcpStream>,
    asked: u64,
}

/// What a page shows of a trace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counters {
    /// `N events`.
    pub(super) events: u64,
    /// `N workers`.
    pub(super) workers: u64,
    /// `0/N`, over the list of tasks.
    pub(super) tasks: u64,
}

impl Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            events,
            workers,
            tasks,
        } = self;
        write!(f, "{events} events, {workers} workers, {tasks} tasks")
    }
}

impl Browser {
    /// Starts Chromium with an empty page.
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let profile = folder.join("chromium");
        let log = fs::File::create(folder.join("chromium.log"))?;
        let program = shell::find("chromium-headless-shell").context("no Chromium")?;
        let mut process = Running::start(
            Command::new(program)
                // Root's Chromium has no sandbox; it opens loopback only.
                .args(["--no-sandbox", "--disable-gpu", "--no-proxy-server"])
                .args(["--disable-dev-shm-usage", "--lang=en-US"])
                .args(["--window-size=1800,1400", "--remote-debugging-port=0"])
                .arg(format!("--user-data-dir={}", profile.display()))
                .arg("about:blank")
                .stdout(Stdio::null())
                .stderr(log),
        )?;
        let port = debugging_port(&profile, &mut process)?;
        Ok(Self {
            process,
            socket: connect(port)?,
            asked: 0,
        })
    }

    /// Opens a page of the viewer and waits for the counters of its trace.
    pub(super) fn counters(&mut self, url: &str) -> Result<Counters> {
        let gone = self.ask("Page.navigate", &json!({ "url": url }))?;
        if let Some(error) = gone["errorText"].as_str() {
            bail!("{error}: {url}");
        }
        let begun = Instant::now();
        let look = json!({ "expression": LOOK, "returnByValue": true });
        loop {
            let seen = self.ask("Runtime.evaluate", &look)?;
            let [toolbar, position, page] =
                [0, 1, 2].map(|at| seen["result"]["value"][at].as_str().unwrap_or_default());
            if let Some(counters) = Counters::parse(toolbar, position) {
                return Ok(counters);
            }
            if begun.elapsed() > PATIENCE {
                let page: String = page.chars().take(500).collect();
                bail!("no counters on {url}; toolbar {toolbar:?}, page {page:?}");
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Name and version.
    pub(super) fn version(&mut self) -> Result<String> {
        let version = self.ask("Browser.getVersion", &json!({}))?;
        let product = version["product"].as_str().context("no product")?;
        Ok(product.replace('/', " "))
    }

    /// Sends a command; returns what it gives.
    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.asked += 1;
        let question = json!({ "id": self.asked, "method": method, "params": params });
        self.socket.send(Message::text(question.to_string()))?;
        loop {
            let said = self.socket.read().with_context(|| method.to_owned())?;
            let Message::Text(said) = said else { continue };
            let mut said: Value = serde_json::from_str(&said)?;
            // Others are events.
            if said["id"] != self.asked {
                continue;
            }
            if !said["error"].is_null() {
                bail!("{method}: {}", said["error"]);
            }
            return Ok(said["result"].take());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Asked to end, it takes its processes along; what is left of it is killed.
        let _ = self.ask("Browser.close", &json!({}));
        let begun = Instant::now();
        while begun.elapsed() < FAREWELL && matches!(self.process.ended(), Ok(None)) {
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Counters {
    /// Of `N events · N workers · TIME` and `0/N`; `None` as long as there is no
    /// trace. A trace that was cut says so in the first; the second is `No tasks`
    /// for an empty one, and before the list is made.
    fn parse(toolbar: &str, position: &str) -> Option<Self> {
        let mut parts = toolbar.trim().split(" · ");
        let events = number(parts.next()?.strip_suffix(" events")?)?;
        let workers = number(parts.next()?.strip_suffix(" workers")?)?;
        let tasks = match position.trim().split_once('/') {
            Some((_, tasks)) => number(tasks)?,
            None if events == 0 && position.trim() == "No tasks" => 0,
            None => return None,
        };
        let is_whole = !parts.any(|part| part == "truncated" || part == "range-filtered");
        is_whole.then_some(Self {
            events,
            workers,
            tasks,
        })
    }
}

/// With commas.
fn number(text: &str) -> Option<u64> {
    text.replace(',', "").parse().ok()
}

/// The port that Chromium has chosen, which it writes into its profile.
fn debugging_port(profile: &Path, process: &mut Running) -> Result<u16> {
    let file = profile.join("DevToolsActivePort");
    let look = || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        Ok(text.split_once('\n').map(|(port, _)| port.to_owned()))
    };
    let port = process.wait_for(PATIENCE, look).context("no Chromium")?;
    port.parse().with_context(|| format!("port {port:?}"))
}

/// A connection to Chromium's page.
fn connect(port: u16) -> Result<WebSocket<TcpStream>> {
    let list = format!("http://127.0.0.1:{port}/json/list");
    let list = crate::listening::agent()
        .get(list)
        .call()?
        .body_mut()
        .read_to_string()?;
    let list: Value = serde_json::from_str(&list)?;
    let url = list[0]["webSocketDebuggerUrl"]
        .as_str()
        .context("Chromium has no page")?;
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (socket, _) = tungstenite::client(url, stream)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::Counters;

    #[test]
    fn counters_are_read() {
        let read = Counters::parse(" 17,860 events · 4 workers · 5.0s ", "0/1,234");
        let expected = Counters {
            events: 17_860,
            workers: 4,
            tasks: 1234,
        };
        assert_eq!(read, Some(expected));
    }

    #[test]
    fn an_empty_trace_has_no_tasks() {
        let read = Counters::parse("0 events · 0 workers", "No tasks");
        let expected = Counters {
            events: 0,
            workers: 0,
            tasks: 0,
        };
        assert_eq!(read, Some(expected));
    }

    #[test]
    fn a_page_that_is_not_there_yet_has_none() {
        assert_eq!(Counters::parse("no trace loaded", "No tasks"), None);
        assert_eq!(
            Counters::parse("5 events · 4 workers · 1s", "No tasks"),
            None
        );
        let cut = "5 events · 4 workers · 1s · truncated";
        assert_eq!(Counters::parse(cut, "0/1"), None);
    }
}
