//! `xtask real`: programs that others wrote and built, recorded under load.
//!
//! In: nothing. Out: a table of what they served before, while and after they were
//! recorded, and of what is in the recordings; an error where that is not as it
//! should be. Never: a program that is built otherwise than its author's release
//! profile says; a server that outlives the verb.
//!
//! How fast they are is in the table and no part of the verdict: other work on the
//! machine decides it.

mod load;
mod recorder;
mod recording;
mod served;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result, bail, ensure};

use self::load::{CONNECTIONS, Load, REQUESTS};
use self::recorder::{Recorder, Said};
use self::recording::Recording;
use self::served::{FILE, Kind, MINISERVE, STATIC_WEB_SERVER, Served};
use self::table::Table;
use crate::setup::{self, Scope};
use crate::{build_ebpf, shell};

/// Whether the result is to be kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write the table into integration/REAL.md
    #[arg(long)]
    save: bool,
}

/// Bytes of the file that is served: no multiple of anything.
const SIZE: usize = 12_345;

/// One program before, while and after it was recorded.
struct Outcome {
    program: &'static str,
    version: String,
    loads: [Load; 3],
    /// `N sites in N ms`.
    sites: String,
    status: ExitStatus,
    recording: Recording,
    /// What is not as it should be.
    problems: Vec<String>,
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !shell::is_root() {
        bail!("real attaches to programs that it starts, which needs root");
    }
    setup::ensure(Scope::Real)?;
    build_ebpf::tracer()?;
    let folder = shell::root().join("target/real/run");
    shell::empty(&folder)?;
    let site = folder.join("site");
    fs::create_dir(&site)?;
    let content: Vec<u8> = (0..=250).cycle().take(SIZE).collect();
    fs::write(site.join(FILE), &content)?;

    let outcomes = [
        server(&folder, &MINISERVE, &content)?,
        server(&folder, &STATIC_WEB_SERVER, &content)?,
        client(&folder, &content)?,
    ];
    let table = Table::of(&outcomes);
    println!("\n{table}");
    let problems: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| {
            let problems = outcome.problems.iter();
            problems.map(|problem| format!("{}: {problem}", outcome.program))
        })
        .collect();
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    if args.save {
        save(&table, &reasons(&outcomes))?;
    }
    Ok(())
}

/// Where `cargo xtask setup` has put a program.
fn program(name: &str) -> PathBuf {
    shell::root().join("target/real/bin").join(name)
}

/// What the program says that it is: the first word that is a number.
fn version(name: &str) -> Result<String> {
    let said = shell::output(Command::new(program(name)).arg("--version"))?;
    let version = said
        .split_whitespace()
        .find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()));
    let version = version.with_context(|| format!("{name} --version says {said:?}"))?;
    Ok(version.to_owned())
}

/// A server, with `dial9-bpf attach` on it while it serves one of three loads.
fn server(folder: &Path, kind: &Kind, content: &[u8]) -> Result<Outcome> {
    let folder = folder.join(kind.program);
    fs::create_dir(&folder)?;
    let mut served = Served::start(&folder, kind, content)?;
    // The first load fills caches.
    served.load("warm-up")?;
    let before = served.load("before")?;
    let log = folder.join("recorder.log");
    let spool = folder.join("spool");
    let recorder = Recorder::attach(&served.pid(), &spool, &log)?;
    let recorded = served.load("recorded")?;
    let status = recorder.end()?;
    let after = served.load("after")?;
    let mut problems = served.problems()?;
    let loads = [before, recorded, after];
    let recording = Recording::of(&spool)?;
    problems.extend(recording.problems(kind.is_multi_thread));
    Outcome::of(kind.program, loads, (&log, status), recording, problems)
}

/// oha, started by `dial9-bpf run` for one of three loads on a server.
fn client(folder: &Path, content: &[u8]) -> Result<Outcome> {
    let folder = folder.join("oha");
    fs::create_dir(&folder)?;
    let mut served = Served::start(&folder, &STATIC_WEB_SERVER, content)?;
    served.load("warm-up")?;
    let before = served.load("before")?;
    let log = folder.join("recorder.log");
    let spool = folder.join("spool");
    let mut command = Command::new(shell::tracer());
    command
        .args(["run", "--output"])
        .arg(&spool)
        .arg("--")
        .args(load::oha(&served.url()));
    println!("real: {command:?}");
    let (recorded, status) = load::of_command(&mut command, &log)?;
    served.count("recorded")?;
    let after = served.load("after")?;
    let mut problems = served.problems()?;
    let loads = [before, recorded, after];
    let recording = Recording::of(&spool)?;
    // Its main runtime; the load is in a current-thread runtime on each of its threads.
    problems.extend(recording.problems(true));
    Outcome::of("oha", loads, (&log, status), recording, problems)
}

impl Outcome {
    fn of(
        program: &'static str,
        loads: [Load; 3],
        (log, status): (&Path, ExitStatus),
        recording: Recording,
        mut problems: Vec<String>,
    ) -> Result<Self> {
        for (name, load) in ["before", "recorded", "after"].iter().zip(&loads) {
            let found = load.problems(SIZE as u64);
            problems.extend(found.into_iter().map(|found| format!("{name}: {found}")));
        }
        if !status.success() {
            problems.push(format!("the recorder: {status}, see {}", log.display()));
        }
        problems.extend(served::complaints(log)?);
        Ok(Self {
            program,
            version: version(program)?,
            loads,
            sites: Said::of(log)?.sites.context("it never attached")?,
            status,
            recording,
            problems,
        })
    }
}

/// Why which probes are missing, as a list.
fn reasons(outcomes: &[Outcome]) -> String {
    let lines = outcomes.iter().flat_map(|outcome| {
        let absent = outcome.recording.absent();
        absent.map(|(probe, reason)| format!("- {}, {probe}: {reason}", outcome.program))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn save(table: &Table, reasons: &str) -> Result<()> {
    let kernel = shell::kernel()?;
    let rustc = shell::output(Command::new("rustc").current_dir("/").arg("--version"))?;
    let rustc = rustc.split(" (").next().unwrap_or_default();
    let text = format!(
        "# Programs of others, recorded under load

`cargo xtask real --save`, as root, {kernel}, {rustc}: three programs of crates.io, as
`cargo install --locked` builds them. A load is {REQUESTS} requests by oha on {CONNECTIONS} connections for a file of
{SIZE} bytes, over loopback. The servers get one before, one with `dial9-bpf attach` on them and one after it
has ended; oha puts one on static-web-server by itself, one started by `dial9-bpf run` and one by itself.

{table}
What is missing, in the words of the recordings:

{reasons}

The verb fails unless all requests of each load are answered with 200 and a body of that size, the server's own
log has each of them and no error, the server lives, and its file is what it was; unless the recorder's exit
code is 0, nothing is lost, `dial9-bpf check` finds nothing wrong and dial9's decoder counts what it counts; and
unless the events of each probe are there exactly where the probe is not missing. A task type has a name where
the program has symbols and they spell generic arguments, as v0 symbols do and legacy ones do not. Requests a
second are of a machine with other work on it, and no part of the verdict.

miniserve reads the file in its blocking pool. Where that is not done at once, head and body are written apart,
and the body waits for the acknowledgement that oha's side delays by 40 ms (miniserve does not set
`TCP_NODELAY`). How often that happens decides how many requests a second it serves, recorded or not; in most runs
it is more often while it is recorded. Each takes one poll more: the polls beyond one a request are how often.
"
    );
    let path = shell::root().join("integration/REAL.md");
    fs::write(&path, text).with_context(|| path.display().to_string())
}
