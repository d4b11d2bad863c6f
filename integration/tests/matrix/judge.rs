//! What a trace of a cell tells, against what the cell itself counted.
//!
//! In: a binary. Out: a verdict for each kind of event. Never: `Exact` where a
//! number differs.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use dial9_bpf_integration::{
    Attach, Facts, TestProgram, output_dir,
    segment::TaskFacts,
    truth::{self, TrueTask},
};

/// The kinds of events that are judged.
pub(crate) const EVENTS: [&str; 7] = [
    "polls", "wakes", "spawns", "ends", "blocking", "panics", "parks",
];

/// What the trace of a cell is worth for one kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Equal numbers, task by task.
    Exact,
    /// There are events, and this is what is not exact.
    Partial(String),
    /// There are none, for this reason.
    Absent(String),
}

/// By the order of [`EVENTS`].
pub(crate) type Verdicts = [Verdict; EVENTS.len()];

/// Records the program's work and compares.
pub(crate) fn judge(binary: &Path) -> Verdicts {
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = TestProgram::start_at(binary, |command| {
        command.arg(&counted);
    });
    let mut tracer = Attach::to(program.pid(), output.path()).start();
    if let Err(outcome) = tracer.wait_until_attached() {
        let process = format!(" in process {}", program.pid());
        let reason = outcome.stderr.join(" ").replace(&process, "");
        return std::array::from_fn(|_| Verdict::Absent(reason.clone()));
    }
    program.ask("go", "done");
    let outcome = tracer.interrupt();
    assert!(program.exit().success(), "the target fails");
    if outcome.code != Some(0) {
        let reason = format!("exit code {:?}: {}", outcome.code, outcome.stderr.join(" "));
        return std::array::from_fn(|_| Verdict::Partial(reason.clone()));
    }
    Comparison::new(&truth::read(&counted), &Facts::of_dir(output.path())).verdicts()
}

type Number = fn(&TaskFacts) -> u64;

struct Comparison<'a> {
    facts: &'a Facts,
    /// Of each task: expected where spawns are exact, expected where they are
    /// first sightings, told.
    tasks: Vec<[TaskFacts; 3]>,
    /// Whether it is known which is which.
    by_id: bool,
    panicking: usize,
}

impl<'a> Comparison<'a> {
    fn new(truth: &[TrueTask], facts: &'a Facts) -> Self {
        let by_id = truth.iter().all(|task| task.id != 0);
        let mut told: HashMap<u64, TaskFacts> = facts
            .tasks
            .iter()
            .map(|(&id, task)| (id, without_name(task)))
            .collect();
        let expected = |task: &TrueTask| [task.expected(true), task.expected(false)];
        let mut tasks: Vec<_> = truth
            .iter()
            .map(|task| {
                let [exact, sighted] = expected(task);
                let told = told.remove(&task.id).filter(|_| by_id);
                [exact, sighted, told.unwrap_or_default()]
            })
            .collect();
        // Of tasks that the program does not know, or that cannot be told apart.
        let nothing = TaskFacts::default();
        let rest = told.into_values();
        tasks.extend(rest.map(|told| [nothing.clone(), nothing.clone(), told]));
        Self {
            facts,
            tasks,
            by_id,
            panicking: truth
                .iter()
                .filter(|task| task.kind.starts_with("panics"))
                .count(),
        }
    }

    fn verdicts(&self) -> Verdicts {
        [
            self.polls(),
            self.of_probe("wake", "wakes", |task| task.wakes),
            self.spawns(),
            self.of_probe("terminate", "ends", |task| task.ends),
            self.of_probe("poll-start", "runs", |task| task.blocking_runs),
            self.panics(),
            self.parks(),
        ]
    }

    fn polls(&self) -> Verdict {
        let counted = self.of_probe("poll-start", "polls", |task| task.polls);
        if counted != Verdict::Exact {
            return counted;
        }
        let open = self.facts.workers.values();
        let open = open.filter(|worker| worker.open_poll.is_some()).count();
        let broken = self.facts.broken.len();
        let ends = self.facts.count("PollEndEvent");
        let starts = self.facts.count("PollStartEvent");
        if open + broken > 0 || starts != ends {
            let reason = format!("{starts} starts, {ends} ends, {open} open, {broken} broken");
            return Verdict::Partial(reason);
        }
        Verdict::Exact
    }

    fn spawns(&self) -> Verdict {
        let spawns: Number = |task| task.spawns;
        let sightings: Number = |task| task.sightings;
        let is_told = |kind| {
            self.difference(kind, spawns).is_none() && self.difference(kind, sightings).is_none()
        };
        if is_told(0) {
            Verdict::Exact
        } else if is_told(1) {
            Verdict::Partial("first sightings, marked as such".to_owned())
        } else {
            let spawns = self.difference(0, spawns).unwrap_or_default();
            Verdict::Partial(format!("exact spawns: {spawns}"))
        }
    }

    fn of_probe(&self, probe: &str, what: &str, number: Number) -> Verdict {
        let told: u64 = self.tasks.iter().map(|[.., told]| number(told)).sum();
        let reason = self.absent(probe);
        match (self.difference(0, number), reason) {
            (None, _) => Verdict::Exact,
            (Some(_), Some(reason)) if told == 0 => Verdict::Absent(reason),
            (Some(difference), reason) => {
                let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
                Verdict::Partial(format!("{what}: {difference}{reason}"))
            }
        }
    }

    /// How one number differs, from what is expected in the first or second way.
    fn difference(&self, way: usize, number: Number) -> Option<String> {
        let sum = |kind: usize| -> u64 { self.tasks.iter().map(|task| number(&task[kind])).sum() };
        let wrong = if self.by_id {
            let differs = |task: &&[TaskFacts; 3]| number(&task[way]) != number(&task[2]);
            self.tasks.iter().filter(differs).count()
        } else {
            // Together with the polls, which are many different numbers.
            let count = |kind: usize| {
                let mut tasks: BTreeMap<(u64, u64), i64> = BTreeMap::new();
                for task in &self.tasks {
                    let of_task = (number(&task[kind]), task[kind].polls);
                    *tasks.entry(of_task).or_default() += 1;
                }
                tasks.remove(&(0, 0));
                tasks
            };
            let (expected, told) = (count(way), count(2));
            let keys = expected.keys().chain(told.keys());
            keys.filter(|key| expected.get(key) != told.get(key))
                .count()
        };
        (wrong > 0).then(|| format!("{} told of {}, {wrong} tasks differ", sum(2), sum(way)))
    }

    fn panics(&self) -> Verdict {
        let told = self.facts.panics.len();
        if self.panicking == 0 {
            return Verdict::Absent("it does not unwind".to_owned());
        }
        let placed = self
            .facts
            .panics
            .iter()
            .filter(|panic| panic.place.is_some());
        let texts = self
            .facts
            .panics
            .iter()
            .filter(|panic| panic.message.is_some());
        let (placed, texts) = (placed.count(), texts.count());
        if [told, placed, texts] == [self.panicking; 3] {
            return Verdict::Exact;
        }
        let reason = self
            .absent("panic")
            .or_else(|| self.absent("panic-message"));
        let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        let all = self.panicking;
        if told == 0 {
            return Verdict::Absent(format!("none of {all}{reason}"));
        }
        Verdict::Partial(format!(
            "{told} of {all}, {placed} with place, {texts} with message{reason}"
        ))
    }

    /// The program cannot count them: a worker may park several times before it
    /// says so. They come in pairs, or are wrong.
    fn parks(&self) -> Verdict {
        let (parks, unparks) = (
            self.facts.count("WorkerParkEvent"),
            self.facts.count("WorkerUnparkEvent"),
        );
        let reason = self.absent("park").or_else(|| self.absent("unpark"));
        if let Some(reason) = reason {
            return if parks + unparks == 0 {
                Verdict::Absent(reason)
            } else {
                Verdict::Partial(reason)
            };
        }
        // A worker sleeps at the begin and at the end.
        if parks > 0 && parks.abs_diff(unparks) <= 2 && self.facts.broken.is_empty() {
            return Verdict::Exact;
        }
        Verdict::Partial(format!("{parks} parks, {unparks} unparks"))
    }

    fn absent(&self, probe: &str) -> Option<String> {
        let key = format!("dial9-bpf.absent.{probe}");
        self.facts.metadata.get(&key).cloned()
    }
}

fn without_name(task: &TaskFacts) -> TaskFacts {
    TaskFacts {
        location: String::new(),
        ..task.clone()
    }
}
