//! What a segment holds, as we count it.
//!
//! In: a compressed segment. Out: what `dial9-bpf check` counts in it, and the
//! ids behind its counts, so that segments can be added up. Never: counts of a
//! segment that `check` finds anything wrong with, or that the two differ on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use dial9_trace_format::decoder::{Decoder, RawEvent};
use dial9_trace_format::types::FieldValueRef;
use flate2::read::GzDecoder;

use crate::check::Check;

/// The schemas of what the viewer's page counts as events: what it draws in the
/// lanes. Spawns and ends of tasks, the clock, the metadata and the events of
/// other names are in lists of their own (`ui/trace_parser.js` of dial9-viewer
/// 0.5.7, `processFrame`).
const DRAWN: [&str; 5] = [
    "PollStartEvent",
    "PollEndEvent",
    "WorkerParkEvent",
    "WorkerUnparkEvent",
    "WakeEventEvent",
];

/// A segment in the store.
pub(super) struct Segment {
    /// Its key.
    pub(super) key: String,
    /// Its bytes there.
    pub(super) content: Vec<u8>,
    /// What is in it.
    pub(super) counts: Counts,
}

/// Counts of one segment, or of several.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Events of the page.
    pub(super) events: u64,
    /// Polls whose end the viewer's aggregates take as proven: it is in the same
    /// segment, and before the task's next start on another worker
    /// (`src/ingest/decode/polls.rs` of dial9-viewer 0.5.7). Such a start may come
    /// first, since a task can be polled again before its worker is back from it.
    pub(super) polls: u64,
    /// Workers that poll.
    pub(super) polling: BTreeSet<u64>,
    /// Workers that park: those are the page's.
    pub(super) parking: BTreeSet<u64>,
    /// Tasks. Each segment announces those that are seen in it.
    pub(super) tasks: BTreeSet<u64>,
}

impl Counts {
    /// Of a segment in a file.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let check = Check::of(path)?;
        let mut counts = Self {
            events: DRAWN.iter().map(|name| check.events(name)).sum(),
            ..Self::default()
        };
        counts.add_ids(path)?;
        let announced = check.events("TaskSpawnEvent");
        let workers = counts.polling.union(&counts.parking).count() as u64;
        ensure!(
            announced == counts.tasks.len() as u64 && check.workers == workers,
            "{}: check counts {announced} tasks and {} workers, there are {} and {workers}",
            path.display(),
            check.workers,
            counts.tasks.len(),
        );
        Ok(counts)
    }

    /// Of all of `segments` together.
    pub(super) fn sum(segments: &[Segment]) -> Self {
        let mut sum = Self::default();
        for Segment { counts, .. } in segments {
            sum.events += counts.events;
            sum.polls += counts.polls;
            sum.polling.extend(&counts.polling);
            sum.parking.extend(&counts.parking);
            sum.tasks.extend(&counts.tasks);
        }
        sum
    }

    /// Adds what is not among `check`'s counts.
    fn add_ids(&mut self, path: &Path) -> Result<()> {
        let mut raw = Vec::new();
        let mut open = BTreeMap::new();
        GzDecoder::new(std::fs::File::open(path)?).read_to_end(&mut raw)?;
        let mut decoder = Decoder::new(&raw).context("no header")?;
        decoder
            .for_each_event(|event| self.add(&event, &mut open))
            .with_context(|| path.display().to_string())
    }

    /// `open` has the tasks that are being polled, by worker.
    fn add(&mut self, event: &RawEvent<'_, '_>, open: &mut BTreeMap<u64, Option<u64>>) {
        let worker = number(event, "worker_id");
        match (event.name, worker) {
            ("PollStartEvent", Some(worker)) => {
                self.polling.insert(worker);
                let task = number(event, "task_id");
                open.retain(|_, polled| *polled != task);
                open.insert(worker, task);
            }
            ("PollEndEvent", Some(worker)) => {
                self.polling.insert(worker);
                self.polls += u64::from(open.remove(&worker).is_some());
            }
            ("WorkerParkEvent" | "WorkerUnparkEvent", Some(worker)) => {
                self.parking.insert(worker);
            }
            ("TaskSpawnEvent", _) => self.tasks.extend(number(event, "task_id")),
            _ => {}
        }
    }
}

fn number(event: &RawEvent<'_, '_>, name: &str) -> Option<u64> {
    let fields = event.schema.fields();
    let at = fields.iter().position(|field| field.name() == name)?;
    match event.fields.get(at)? {
        FieldValueRef::Varint(value) => Some(*value),
        _ => None,
    }
}
