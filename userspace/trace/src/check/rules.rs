//! The rules for the events of a segment: dial9's own trace-integrity test,
//! and what its typed readers demand.
//!
//! In: the events in the order of the file. Out: lines for the report, one for
//! each rule broken, with its first case. Never: memory by event; only by
//! worker and task.

use std::collections::{BTreeMap, HashMap, HashSet};

use dial9_trace_format::decoder::RawEvent;

use super::{Report, Stage};
use crate::fields::{number, text};

/// Most that a task may seem to end before its spawn, ns.
const MAX_INVERSION_NS: u64 = 1_000_000;
/// Largest worker id that dial9's own integrity test takes.
const MAX_PLAIN_WORKER: u64 = 63;

/// State of the rules.
#[derive(Debug, Default)]
pub(super) struct Rules {
    broken: BTreeMap<&'static str, (u64, String)>,
    events: u64,
    lanes: HashMap<u64, Lane>,
    cpu_ns: HashMap<u64, u64>,
    spawned_ns: HashMap<u64, u64>,
    ended_ns: HashMap<u64, u64>,
    polled: HashSet<u64>,
    woken: HashSet<u64>,
}

#[derive(Debug, Default)]
struct Lane {
    last_ns: u64,
    poll: Option<Half>,
    park: Option<Half>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Begin,
    End,
}

impl Rules {
    pub(super) fn event(&mut self, event: &RawEvent<'_, '_>) {
        self.events += 1;
        if self.events == 1 && event.name != "ClockSyncEvent" {
            self.breach("first", || format!("the first event is a {}", event.name));
        }
        match event.name {
            "PollStartEvent" => self.poll_start(event),
            "PollEndEvent" => {
                let worker = number(event, "worker_id");
                self.lane(event, worker, |lane| &mut lane.poll, Half::End);
            }
            "WorkerParkEvent" => self.park(event, Half::Begin),
            "WorkerUnparkEvent" => self.park(event, Half::End),
            "TaskSpawnEvent" => self.spawn(event),
            "TaskTerminateEvent" => self.terminate(event),
            "WakeEventEvent" => {
                let task = self.task(event, "woken_task_id");
                self.woken.insert(task);
            }
            _ => {}
        }
    }

    pub(super) fn finish(mut self, report: &mut Report, stage: Stage) {
        self.tasks();
        let count = |name| report.events.get(name).copied().unwrap_or(0);
        if count("ClockSyncEvent") == 0 {
            self.breach("clock", || "no ClockSyncEvent".into());
        }
        if count("SegmentMetadataEvent") == 0 {
            self.breach("metadata", || "no SegmentMetadataEvent".into());
        }
        if stage == Stage::Sealed && !report.metadata.contains_key("segment.complete") {
            self.breach("seal", || "the metadata lacks segment.complete".into());
        }
        if !self.cpu_ns.is_empty() && self.cpu_ns.values().all(|&cpu_ns| cpu_ns == 0) {
            self.breach("no-cpu", || "every cpu_time_ns is 0".into());
        }
        report.workers = self.lanes.keys().copied().collect();
        if let Some(&most) = report.workers.last()
            && most > MAX_PLAIN_WORKER
        {
            report
                .notes
                .push(format!("worker ids go up to {most}, dial9's own up to 63"));
        }
        report
            .problems
            .extend(self.broken.into_values().map(|(cases, first)| match cases {
                1 => first,
                _ => format!("{first} ({cases} cases)"),
            }));
    }

    fn poll_start(&mut self, event: &RawEvent<'_, '_>) {
        let worker = number(event, "worker_id");
        self.lane(event, worker, |lane| &mut lane.poll, Half::Begin);
        let task = self.task(event, "task_id");
        self.polled.insert(task);
        self.located(event, task);
    }

    fn spawn(&mut self, event: &RawEvent<'_, '_>) {
        let task = self.task(event, "task_id");
        self.spawned_ns.insert(task, event.timestamp_ns);
        self.located(event, task);
    }

    fn terminate(&mut self, event: &RawEvent<'_, '_>) {
        let task = self.task(event, "task_id");
        if self.ended_ns.insert(task, event.timestamp_ns).is_some() {
            self.breach("ends", || format!("task {task} ends twice"));
        }
    }

    fn park(&mut self, event: &RawEvent<'_, '_>, half: Half) {
        let worker = number(event, "worker_id");
        self.lane(event, worker, |lane| &mut lane.park, half);
        let (tid, cpu_ns) = (number(event, "tid"), number(event, "cpu_time_ns"));
        let before = self.cpu_ns.insert(tid, cpu_ns).unwrap_or(0);
        if cpu_ns < before {
            self.breach("cpu", || {
                format!("cpu_time_ns of thread {tid} falls below {before}")
            });
        }
    }

    fn lane(
        &mut self,
        event: &RawEvent<'_, '_>,
        worker: u64,
        pair: impl Fn(&mut Lane) -> &mut Option<Half>,
        half: Half,
    ) {
        let ts_ns = event.timestamp_ns;
        let lane = self.lanes.entry(worker).or_default();
        let goes_back = ts_ns < lane.last_ns;
        lane.last_ns = ts_ns;
        let repeats = pair(lane).replace(half) == Some(half);
        if goes_back {
            self.breach("time", || {
                format!("time of worker {worker} goes back at {ts_ns}")
            });
        }
        if repeats {
            let rule = if event.name.starts_with("Poll") {
                "polls"
            } else {
                "parks"
            };
            self.breach(rule, || {
                format!("two {} in a row on worker {worker}", event.name)
            });
        }
    }

    fn task(&mut self, event: &RawEvent<'_, '_>, field: &str) -> u64 {
        let task = number(event, field);
        if task == 0 {
            self.breach("zero", || format!("a {} with {field} 0", event.name));
        }
        task
    }

    fn located(&mut self, event: &RawEvent<'_, '_>, task: u64) {
        if text(event, "spawn_loc").is_none_or(str::is_empty) {
            self.breach("location", || format!("task {task} has an empty spawn_loc"));
        }
    }

    fn tasks(&mut self) {
        let unknown = |tasks: &HashSet<u64>| {
            let unknown = tasks
                .iter()
                .filter(|task| !self.spawned_ns.contains_key(task));
            (unknown.clone().min().copied(), unknown.count() as u64)
        };
        let (polled, woken) = (unknown(&self.polled), unknown(&self.woken));
        for (rule, what, (first, cases)) in
            [("polled", "polled", polled), ("woken", "woken", woken)]
        {
            if let Some(task) = first {
                let first = format!("task {task} is {what} without a TaskSpawnEvent");
                self.broken.insert(rule, (cases, first));
            }
        }
        let inverted: Vec<u64> = self
            .spawned_ns
            .iter()
            .filter(|(task, spawned_ns)| {
                let ended_ns = self.ended_ns.get(task);
                ended_ns.is_some_and(|ns| spawned_ns.saturating_sub(*ns) > MAX_INVERSION_NS)
            })
            .map(|(task, _)| *task)
            .collect();
        for task in inverted {
            self.breach("inverted", || {
                format!("task {task} ends more than 1 ms before its spawn")
            });
        }
    }

    fn breach(&mut self, rule: &'static str, describe: impl FnOnce() -> String) {
        self.broken.entry(rule).or_insert_with(|| (0, describe())).0 += 1;
    }
}
