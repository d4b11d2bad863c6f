//! `xtask demo`: the whole of dial9-bpf in one run.
//!
//! In: nothing. Out: a segment of five seconds of the bundled server under load,
//! and how to look at it. The server and its load end with the verb.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};

use crate::shell::Running;
use crate::{build_ebpf, shell};

/// What to record, and where to.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the segment goes
    #[arg(long, value_name = "DIR", default_value = "dial9-traces")]
    output: PathBuf,
}

/// Seconds after which the server and its load end by themselves.
const LIFETIME: &str = "30";
/// The load runs as long before the tracer comes.
const WARM_UP: Duration = Duration::from_secs(1);

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    build()?;
    let server = Server::under_load()?;
    println!("demo: server at {}, pid {}", server.address, server.pid);

    let before = SystemTime::now();
    let attached = attach(&args.output, &server.pid);
    drop(server);
    let segments = segments(&args.output, before)?;
    if !segments.is_empty() {
        explain(&args.output, &segments);
    }
    attached
}

/// Builds the command, the server and its load.
pub(crate) fn build() -> Result<()> {
    build_ebpf::tracer()?;
    shell::run(shell::cargo_apart("build", "demo").arg("--release"))
}

fn demo() -> Command {
    Command::new(shell::root().join("target/demo/release/demo"))
}

fn attach(output: &Path, pid: &str) -> Result<()> {
    let program = shell::tracer();
    let mut command = if shell::is_root() {
        Command::new(program)
    } else {
        let mut command = Command::new("sudo");
        command.arg(program);
        command
    };
    command
        .args([
            "attach",
            "--rotate",
            "off",
            "--pid",
            pid,
            "--duration",
            "5s",
            "--output",
        ])
        .arg(output);
    println!("demo: {command:?}");
    shell::run(&mut command)
}

/// Segments in `folder` that are newer than `before`.
fn segments(folder: &Path, before: SystemTime) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(found);
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_segment = name.contains(".bin") && !name.contains(".active");
        if is_segment && entry.metadata()?.modified()? >= before {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn explain(folder: &Path, segments: &[PathBuf]) {
    println!();
    for segment in segments {
        println!("demo: segment {}", segment.display());
    }
    println!("demo: look at it at http://localhost:3000 after");
    println!("  cargo install dial9-viewer --version 0.5.7 --locked");
    println!("  dial9-viewer serve --local-dir {}", folder.display());
}

/// The server with its load. Both end with this value.
pub(crate) struct Server {
    address: String,
    /// The server's process.
    pub(crate) pid: String,
    _both: [Running; 2],
}

impl Server {
    /// Starts what [`build`] has made; returns once the load has run for a while.
    pub(crate) fn under_load() -> Result<Self> {
        let mut server = start(&["serve", "--seconds", LIFETIME])?;
        let stdout = server.stdout().context("its output is a pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["listening", address, "pid", pid] = words.as_slice() else {
            bail!("the demo server said {line:?}");
        };
        let load = start(&["load", address, "--seconds", LIFETIME])?;
        thread::sleep(WARM_UP);
        Ok(Self {
            address: (*address).to_owned(),
            pid: (*pid).to_owned(),
            _both: [load, server],
        })
    }
}

fn start(arguments: &[&str]) -> Result<Running> {
    Running::start(demo().args(arguments).stdout(Stdio::piped()))
}
