//! Block I/O: as fio makes it and says it did, and as a segment says it.
//!
//! In: options of fio. Out: its own counts, and events. Never: I/O by a process that fio
//! forks: it is told to use threads.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use dial9_trace_format::decoder::RawEvent;
use serde_json::Value;

use crate::{
    Attach, Facts, Outcome,
    segment::{is_set, maybe_number, number, text},
};

/// Bytes of a sector.
const SECTOR: u64 = 512;

/// A block I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoFacts {
    /// When it was submitted and when it was done, ns.
    pub times: [u64; 2],
    /// What.
    pub name: String,
    /// The thread.
    pub tid: u64,
    /// The worker that it was.
    pub worker: Option<u64>,
    /// The task that it polled.
    pub task: Option<u64>,
    /// Where on the disk, bytes.
    pub place: u64,
    /// How much.
    pub bytes: u64,
    /// The part of the time before a driver got it, ns.
    pub queue_ns: Option<u64>,
    /// Whether it is the file system's own.
    pub is_metadata: bool,
}

impl IoFacts {
    pub(crate) fn of(event: &RawEvent<'_, '_>) -> Self {
        let end = event.timestamp_ns;
        Self {
            times: [end - number(event, "duration_ns"), end],
            name: text(event, "name"),
            tid: number(event, "tid"),
            worker: maybe_number(event, "worker_id"),
            task: maybe_number(event, "task_id"),
            place: number(event, "sector") * SECTOR,
            bytes: number(event, "bytes"),
            queue_ns: maybe_number(event, "queue_ns"),
            is_metadata: is_set(event, "metadata"),
        }
    }
}

/// A wait for a file to be synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncFacts {
    /// When it began and ended, ns.
    pub times: [u64; 2],
    /// `fsync` or `fdatasync`.
    pub name: String,
    /// The thread.
    pub tid: u64,
    /// The task that it polls.
    pub task: Option<u64>,
    /// The file's inode.
    pub inode: u64,
}

impl SyncFacts {
    pub(crate) fn of(event: &RawEvent<'_, '_>) -> Self {
        let end = event.timestamp_ns;
        Self {
            times: [end - number(event, "duration_ns"), end],
            name: text(event, "name"),
            tid: number(event, "tid"),
            task: maybe_number(event, "task_id"),
            inode: number(event, "inode"),
        }
    }
}

/// A file in one piece of the disk.
#[derive(Debug)]
pub struct DiskFile {
    /// Its path.
    pub path: PathBuf,
    /// Where it begins and ends on the disk, bytes.
    pub place: [u64; 2],
}

impl DiskFile {
    /// Makes one, with data in it that is on the disk.
    ///
    /// # Panics
    ///
    /// When the file system does not give it one piece.
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        run(Command::new("fallocate")
            .args(["-l", &bytes.to_string()])
            .arg(&path));
        let count = format!("count={}", bytes >> 20);
        run(Command::new("dd")
            .args([
                "if=/dev/urandom",
                "bs=1M",
                &count,
                "conv=notrunc,fsync",
                "status=none",
            ])
            .arg(format!("of={}", path.display())));
        let told = run(Command::new("filefrag")
            .args(["-e", "-v", "-b1"])
            .arg(&path));
        // `N: FIRST.. LAST: FIRST.. LAST: LENGTH: FLAGS`, in bytes.
        let mut pieces = told.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split([':', '.']).map(str::trim).collect();
            fields.first()?.parse::<u32>().ok()?;
            let places: Vec<u64> = fields[1..]
                .iter()
                .filter_map(|of| of.parse().ok())
                .collect();
            Some([*places.get(2)?, *places.get(3)? + 1])
        });
        let mut place = pieces
            .next()
            .unwrap_or_else(|| panic!("no place in {told}"));
        for next in pieces {
            assert_eq!(place[1], next[0], "it is in pieces: {told}");
            place[1] = next[1];
        }
        Self { path, place }
    }

    /// The recorded I/O in it.
    pub fn ios<'a>(&self, facts: &'a Facts) -> Vec<&'a IoFacts> {
        let [begin, end] = self.place;
        let is_in = |io: &&IoFacts| (begin..end).contains(&io.place) && io.bytes > 0;
        facts.ios.iter().filter(is_in).collect()
    }
}

/// What fio says that it did in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// How often.
    pub count: u64,
    /// How much.
    pub bytes: u64,
    /// Latency from submission to completion at the median and at 99 %, ns.
    pub quantiles_ns: [u64; 2],
}

/// A run of fio under `dial9-bpf run --signals io`.
#[derive(Debug)]
pub struct FioRun {
    /// Reads and writes.
    pub told: [Told; 2],
    /// Syncs.
    pub syncs: u64,
    /// How often each size was, by direction: 0 reads, 1 writes.
    pub sizes: [BTreeMap<u64, u64>; 2],
    /// Each, where it logs them.
    pub logged: Vec<Logged>,
    /// The segment.
    pub facts: Facts,
    /// What the recorder said.
    pub outcome: Outcome,
}

impl FioRun {
    /// Runs fio with these arguments; `dir` gets a folder for everything.
    ///
    /// # Panics
    ///
    /// When fio or the recorder fails.
    pub fn record(dir: &Path, arguments: &[&str]) -> Self {
        Self::record_signals(dir, "io", arguments)
    }

    /// The same, with other signals.
    ///
    /// # Panics
    ///
    /// When fio or the recorder fails.
    pub fn record_signals(dir: &Path, signals: &str, arguments: &[&str]) -> Self {
        let report = dir.join("fio.json");
        let log = dir.join("fio");
        let traces = dir.join("traces");
        let mut attach =
            Attach::command(&["run", "--rotate", "off", "--signals", signals, "--output"])
                .arg(&traces)
                .arg("--")
                .arg("fio");
        for argument in arguments {
            attach = attach.arg(*argument);
        }
        let outcome = attach
            .arg("--output-format=json")
            .arg(format!("--output={}", report.display()))
            .outcome();
        assert!(matches!(outcome.code, Some(0 | 7)), "{outcome:#?}");
        let text = fs::read_to_string(&report).expect("fio writes it");
        let json: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let job = &json["jobs"][0];
        Self {
            told: ["read", "write"].map(|direction| told(&job[direction])),
            syncs: job["sync"]["total_ios"].as_u64().unwrap_or(0),
            sizes: sizes_of(&logged(&log)),
            logged: logged(&log),
            facts: Facts::of_dir(&traces),
            outcome,
        }
    }

    /// The arguments that make it log each I/O.
    pub fn logging(dir: &Path) -> [String; 2] {
        let log = dir.join("fio");
        [
            format!("--write_lat_log={}", log.display()),
            "--log_offset=1".to_owned(),
        ]
    }
}

fn told(of: &Value) -> Told {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let quantile = |name: &str| number(&of["clat_ns"]["percentile"][name]);
    Told {
        count: number(&of["total_ios"]),
        bytes: number(&of["io_bytes"]),
        quantiles_ns: [quantile("50.000000"), quantile("99.000000")],
    }
}

/// An I/O as fio logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// From its submission until fio has it back, ns.
    pub latency_ns: u64,
    /// 0 for a read, 1 for a write.
    pub direction: usize,
    /// How much.
    pub bytes: u64,
    /// Where in the file, bytes.
    pub offset: u64,
}

/// From the log of a run with one job: `TIME, LATENCY, DIRECTION, BYTES, OFFSET, …`, one
/// line an I/O.
fn logged(log: &Path) -> Vec<Logged> {
    let text = fs::read_to_string(format!("{}_clat.1.log", log.display())).unwrap_or_default();
    let line = |line: &str| {
        let fields: Vec<u64> = line
            .split(',')
            .filter_map(|of| of.trim().parse().ok())
            .collect();
        let [_, latency_ns, direction @ (0 | 1), bytes, offset, ..] = fields[..] else {
            return None;
        };
        Some(Logged {
            latency_ns,
            direction: usize::from(direction == 1),
            bytes,
            offset,
        })
    };
    text.lines().filter_map(line).collect()
}

fn sizes_of(logged: &[Logged]) -> [BTreeMap<u64, u64>; 2] {
    let mut sizes = <[BTreeMap<u64, u64>; 2]>::default();
    for of in logged {
        *sizes[of.direction].entry(of.bytes).or_default() += 1;
    }
    sizes
}

/// What the summary says of I/O whose end nobody has seen.
///
/// # Panics
///
/// When that is no number.
pub fn not_done(outcome: &Outcome) -> u64 {
    let mut lines = outcome.stderr.iter().map(|line| line.trim());
    let count = lines.find_map(|line| line.strip_prefix("I/O not done"));
    count.map_or(0, |count| {
        count.trim().replace(',', "").parse().expect("a number")
    })
}

/// Runs a command to its end; the value is what it said.
///
/// # Panics
///
/// When it fails.
pub fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
