//! What a recording holds.
//!
//! In: the folder of its segments. Out: counts and names, read by dial9's decoder,
//! and what is wrong with them. Never: a segment that `dial9-bpf check` finds
//! anything wrong with, or that the two count differently.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use dial9_trace_format::decoder::{Decoder, RawEvent};
use dial9_trace_format::types::FieldValueRef;
use flate2::read::GzDecoder;

use super::load::REQUESTS;
use crate::check::Check;

/// The probes whose hits are events of a schema of their own. Whether panics are
/// missing is of no concern: there are to be none.
const PROBES: [(&str, &str); 7] = [
    ("poll-start", "PollStartEvent"),
    ("poll-end", "PollEndEvent"),
    ("wake", "WakeEventEvent"),
    ("spawn", SPAWN),
    ("terminate", "TaskTerminateEvent"),
    ("park", "WorkerParkEvent"),
    ("unpark", "WorkerUnparkEvent"),
];
/// A spawn that was seen: `TaskSpawnEvent` also announces a task at its first poll.
const SPAWN: &str = "spawns";
/// How a reason begins that is for current-thread runtimes alone.
const CURRENT_THREAD: &str = "of current-thread runtimes";
/// How a task type begins that has no name.
const NAMELESS: &str = "task@";

/// All segments of a recording.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// How many they are.
    pub(super) segments: usize,
    /// Events by schema, and [`SPAWN`].
    pub(super) counts: BTreeMap<String, u64>,
    /// Polls by task type.
    pub(super) types: BTreeMap<String, u64>,
    /// Workers that poll or park.
    pub(super) workers: BTreeSet<u64>,
    /// Polls that began inside another or ended without a begin, by worker.
    unpaired: u64,
    open: BTreeSet<u64>,
    /// Lost hits of all loss events.
    lost: u64,
    /// The last value of each key.
    pub(super) metadata: BTreeMap<String, String>,
}

impl Recording {
    /// Reads each of `trace.N.bin.gz` in `spool`; there must be no other file of the
    /// recorder's.
    pub(super) fn of(spool: &Path) -> Result<Self> {
        let mut recording = Self::default();
        for path in segments(spool)? {
            recording
                .add(&path)
                .with_context(|| path.display().to_string())?;
        }
        ensure!(recording.segments > 0, "no segment in {}", spool.display());
        Ok(recording)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let check = Check::of(path)?;
        let mut raw = Vec::new();
        GzDecoder::new(fs::File::open(path)?).read_to_end(&mut raw)?;
        let mut decoder = Decoder::new(&raw).context("no header")?;
        let mut counts = BTreeMap::new();
        decoder.for_each_event(|event| {
            *counts.entry(event.name.to_owned()).or_default() += 1;
            self.take(&event);
        })?;
        ensure!(
            decoder.position() == raw.len(),
            "{} of {} bytes decode",
            decoder.position(),
            raw.len()
        );
        ensure!(
            counts == check.events,
            "check counts {:?}, there are {counts:?}",
            check.events
        );
        self.segments += 1;
        for (name, count) in counts {
            *self.counts.entry(name).or_default() += count;
        }
        Ok(())
    }

    fn take(&mut self, event: &RawEvent<'_, '_>) {
        match event.name {
            "PollStartEvent" => {
                let worker = number(event, "worker_id");
                self.workers.extend(worker);
                let is_first = worker.is_none_or(|worker| self.open.insert(worker));
                self.unpaired += u64::from(!is_first);
                let kind = text(event, "spawn_loc").unwrap_or_default();
                *self.types.entry(kind).or_default() += 1;
            }
            "PollEndEvent" => {
                let worker = number(event, "worker_id");
                let is_open = worker.is_some_and(|worker| self.open.remove(&worker));
                self.unpaired += u64::from(!is_open);
            }
            "WorkerParkEvent" | "WorkerUnparkEvent" => {
                self.workers.extend(number(event, "worker_id"));
            }
            "TaskSpawnEvent"
                if field(event, "first_sighting") == Some(&FieldValueRef::Bool(false)) =>
            {
                *self.counts.entry(SPAWN.to_owned()).or_default() += 1;
            }
            "LossEvent" => self.lost += number(event, "lost").unwrap_or(u64::MAX),
            "SegmentMetadataEvent" => {
                if let Some(FieldValueRef::StringMap(entries)) = field(event, "entries") {
                    let entries = entries.iter();
                    self.metadata
                        .extend(entries.map(|(key, value)| (key.into(), value.into())));
                }
            }
            _ => {}
        }
    }

    /// Events of a schema.
    pub(super) fn count(&self, schema: &str) -> u64 {
        self.counts.get(schema).copied().unwrap_or(0)
    }

    /// Hits that were lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Spawns that were seen.
    pub(super) fn spawns(&self) -> u64 {
        self.count(SPAWN)
    }

    /// Polls that had not ended at the end.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Probes that the program has no place for, with the reason.
    pub(super) fn absent(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().filter_map(|(key, reason)| {
            let probe = key.strip_prefix("dial9-bpf.absent.")?;
            Some((probe, reason.as_str()))
        })
    }

    /// How many of the task types have a name, and how many there are.
    pub(super) fn named(&self) -> (usize, usize) {
        let nameless = self.types.keys().filter(|kind| kind.starts_with(NAMELESS));
        (self.types.len() - nameless.count(), self.types.len())
    }

    /// What is not as it should be in a recording of a program that has a
    /// multi-thread runtime, or only current-thread ones.
    pub(super) fn problems(&self, is_multi_thread: bool) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, expected) in [
            ("dial9-bpf.lost", "0"),
            ("dial9-bpf.undecoded", "0"),
            ("segment.complete", "true"),
        ] {
            let value = self.metadata.get(key).map_or("absent", String::as_str);
            if value != expected {
                problems.push(format!("{key} is {value}"));
            }
        }
        if self.lost > 0 {
            problems.push(format!("{} hits lost", self.lost));
        }
        for schema in ["GapEvent", "PanicEvent"] {
            let count = self.count(schema);
            if count > 0 {
                problems.push(format!("{count} times {schema}"));
            }
        }
        let absent = self
            .absent()
            .filter(|(probe, reason)| is_missing(probe, reason, is_multi_thread));
        let absent: BTreeSet<_> = absent.map(|(probe, _)| probe).collect();
        for (probe, schema) in PROBES {
            match (absent.contains(probe), self.count(schema)) {
                (true, count @ 1..) => problems.push(format!("{count} {schema} without {probe}")),
                (false, 0) => problems.push(format!("no {schema}")),
                _ => {}
            }
        }
        if self.unpaired > 0 {
            problems.push(format!("{} polls begin or end twice", self.unpaired));
        }
        // The task of a connection is polled for each request that arrives; two may
        // arrive for one poll.
        let polls = self.count("PollStartEvent");
        if polls < REQUESTS / 2 {
            problems.push(format!("{polls} polls for {REQUESTS} requests"));
        }
        problems
    }
}

/// Whether that reason makes a probe missing in a program with that runtime: for
/// parks, those of multi-thread runtimes precede those of current-thread ones.
fn is_missing(probe: &str, reason: &str, is_multi_thread: bool) -> bool {
    match probe {
        "park" | "unpark" if is_multi_thread => !reason.starts_with(CURRENT_THREAD),
        "park" | "unpark" => reason.contains(CURRENT_THREAD),
        _ => true,
    }
}

/// Sealed segments, oldest first.
fn segments(spool: &Path) -> Result<Vec<PathBuf>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(spool).with_context(|| spool.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(rest) = name.strip_prefix("trace.") {
            let index = rest.strip_suffix(".bin.gz");
            let index: u64 = index
                .and_then(|index| index.parse().ok())
                .with_context(|| format!("{} is left over", path.display()))?;
            segments.push((index, path));
        }
    }
    segments.sort();
    Ok(segments.into_iter().map(|(_, path)| path).collect())
}

fn field<'f, 'a>(event: &RawEvent<'a, 'f>, name: &str) -> Option<&'f FieldValueRef<'a>> {
    let fields = event.schema.fields();
    let at = fields.iter().position(|field| field.name() == name)?;
    event.fields.get(at)
}

fn number(event: &RawEvent<'_, '_>, name: &str) -> Option<u64> {
    match field(event, name)? {
        FieldValueRef::Varint(value) => Some(*value),
        _ => None,
    }
}

fn text(event: &RawEvent<'_, '_>, name: &str) -> Option<String> {
    match field(event, name)? {
        FieldValueRef::PooledString(id) => event.string_pool.get(*id).map(str::to_owned),
        FieldValueRef::String(text) => Some((*text).to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{REQUESTS, Recording, is_missing};

    fn recording() -> Recording {
        let counts = [
            ("PollStartEvent", REQUESTS),
            ("PollEndEvent", REQUESTS),
            ("WakeEventEvent", 1),
            ("spawns", 1),
            ("TaskTerminateEvent", 1),
            ("WorkerUnparkEvent", 1),
        ];
        let metadata = [
            ("dial9-bpf.lost", "0"),
            ("dial9-bpf.undecoded", "0"),
            ("dial9-bpf.absent.park", "it has a reason"),
            ("segment.complete", "true"),
        ];
        Recording {
            counts: counts
                .into_iter()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            metadata: metadata
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            ..Recording::default()
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Recording), expected: &[&str]) {
        let mut recording = recording();
        change(&mut recording);
        assert_eq!(recording.problems(true), expected);
    }

    #[test]
    fn a_recording_that_is_as_it_should_be() {
        check(|_| (), &[]);
    }

    #[test]
    fn what_is_missing_and_what_is_there_too_much() {
        let set = |schema: &'static str, count| {
            move |recording: &mut Recording| {
                recording.counts.insert(schema.to_owned(), count);
            }
        };
        check(set("WakeEventEvent", 0), &["no WakeEventEvent"]);
        check(
            set("WorkerParkEvent", 2),
            &["2 WorkerParkEvent without park"],
        );
        check(set("PanicEvent", 1), &["1 times PanicEvent"]);
        check(set("PollStartEvent", 9), &["9 polls for 20000 requests"]);
        check(|recording| recording.lost = 3, &["3 hits lost"]);
        check(
            |recording| recording.unpaired = 1,
            &["1 polls begin or end twice"],
        );
    }

    #[test]
    fn parks_may_be_missing_of_one_runtime() {
        let current = "of current-thread runtimes: no symbol";
        assert!(!is_missing("park", current, true));
        assert!(is_missing("park", current, false));
        assert!(is_missing("park", "3 functions", true));
        assert!(!is_missing("park", "3 functions", false));
        for is_multi_thread in [false, true] {
            let both = format!("3 functions; {current}");
            assert!(is_missing("unpark", &both, is_multi_thread));
            assert!(is_missing("spawn", "no symbol table", is_multi_thread));
        }
    }

    #[test]
    fn what_the_segment_says_of_itself() {
        let put = |key: &'static str, value: &'static str| {
            move |recording: &mut Recording| {
                recording.metadata.insert(key.to_owned(), value.to_owned());
            }
        };
        check(put("dial9-bpf.lost", "4"), &["dial9-bpf.lost is 4"]);
        check(
            put("segment.complete", "false"),
            &["segment.complete is false"],
        );
        check(
            |recording| drop(recording.metadata.remove("dial9-bpf.undecoded")),
            &["dial9-bpf.undecoded is absent"],
        );
    }
}
