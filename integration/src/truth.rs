//! The truth, and whether a trace tells it.
//!
//! In: the file that the `truth` program writes, facts of a trace. Out: the
//! differences, task by task. Never: a tolerance.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use crate::segment::{Facts, TaskFacts};

/// What the program itself counted of one task; the program's `count` module
/// says what each means.
#[derive(Clone, Debug)]
pub struct TrueTask {
    /// Tokio's id.
    pub id: u64,
    /// The program's name for it.
    pub kind: String,
    /// Whether it is a closure of the blocking pool.
    pub blocking: bool,
    /// Whether it was there before the tracer.
    pub spawned_before: bool,
    /// Entries into its poll function.
    pub entries: u64,
    /// Calls of its waker.
    pub wakes: u64,
    /// Whether it is over.
    pub ended: bool,
    /// A time before its spawn, `CLOCK_MONOTONIC`.
    pub spawned_ns: u64,
    /// When its future was dropped; 0 while it is alive.
    pub ended_ns: u64,
}

impl TrueTask {
    /// What the trace has to say; `exact` where spawns are seen as such.
    pub fn expected(&self, exact: bool) -> TaskFacts {
        if self.blocking {
            return TaskFacts {
                blocking_runs: self.entries,
                ..TaskFacts::default()
            };
        }
        let seen = self.entries + self.wakes > 0;
        let sighted = seen && (self.spawned_before || !exact);
        TaskFacts {
            polls: self.entries,
            wakes: self.wakes,
            ends: u64::from(self.ended && (self.entries > 0 || !self.spawned_before)),
            spawns: u64::from(exact && !self.spawned_before),
            sightings: u64::from(sighted),
            ..TaskFacts::default()
        }
    }
}

/// Reads what the program wrote.
///
/// # Panics
///
/// When it is not that.
pub fn read(path: &Path) -> Vec<TrueTask> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{error}"));
    text.lines()
        .map(|line| parse(line).unwrap_or_else(|| panic!("not a line of truth: {line:?}")))
        .collect()
}

fn parse(line: &str) -> Option<TrueTask> {
    let mut fields = line.split('\t');
    Some(TrueTask {
        id: fields.next()?.parse().ok()?,
        kind: fields.next()?.to_owned(),
        blocking: fields.next()? == "blocking",
        spawned_before: fields.next()? == "before",
        entries: fields.next()?.parse().ok()?,
        wakes: fields.next()?.parse().ok()?,
        ended: fields.next()? == "ended",
        spawned_ns: fields.next()?.parse().ok()?,
        ended_ns: fields.next()?.parse().ok()?,
    })
}

/// Polls of all tasks.
pub fn total_polls(truth: &[TrueTask]) -> u64 {
    truth
        .iter()
        .filter(|task| !task.blocking)
        .map(|task| task.entries)
        .sum()
}

/// Asserts that the trace has exactly the true numbers.
///
/// # Panics
///
/// With the first of the differences and how many there are in each number.
#[track_caller]
pub fn expect_told(truth: &[TrueTask], facts: &Facts, exact_spawns: bool) {
    let nothing = TaskFacts::default();
    let mut differences = Vec::new();
    for task in truth {
        let told = facts.tasks.get(&task.id).unwrap_or(&nothing);
        let told = TaskFacts {
            location: String::new(),
            ..told.clone()
        };
        let expected = task.expected(exact_spawns);
        if told != expected {
            differences.push((task, expected, told));
        }
    }
    let known: HashSet<u64> = truth.iter().map(|task| task.id).collect();
    let unknown: Vec<_> = facts
        .tasks
        .iter()
        .filter(|(id, _)| !known.contains(id))
        .collect();
    assert!(
        differences.is_empty() && unknown.is_empty(),
        "{}\ntasks that the program does not know: {unknown:#?}",
        report(&differences, truth.len())
    );
}

/// Asserts that the trace tells of nothing that was not, where records were
/// lost.
///
/// # Panics
///
/// With the first task of which more is told.
#[track_caller]
pub fn expect_no_more_told(truth: &[TrueTask], facts: &Facts) {
    let truth: HashMap<u64, &TrueTask> = truth.iter().map(|task| (task.id, task)).collect();
    for (id, told) in &facts.tasks {
        let task = truth
            .get(id)
            .unwrap_or_else(|| panic!("no task {id}: {told:?}"));
        let expected = task.expected(true);
        let no_more = told.polls <= expected.polls
            && told.wakes <= expected.wakes
            && told.ends <= expected.ends
            && told.spawns <= expected.spawns
            && told.spawns + told.sightings <= 1
            && told.blocking_runs <= expected.blocking_runs;
        assert!(
            no_more,
            "{task:?}\n  expected at most {expected:?}\n  told {told:?}"
        );
    }
}

type Number = fn(&TaskFacts) -> u64;

fn report(differences: &[(&TrueTask, TaskFacts, TaskFacts)], tasks: usize) -> String {
    let mut text = format!("{} of {tasks} tasks differ\n", differences.len());
    let numbers: [(&str, Number); 6] = [
        ("polls", |facts| facts.polls),
        ("wakes", |facts| facts.wakes),
        ("ends", |facts| facts.ends),
        ("exact spawns", |facts| facts.spawns),
        ("first sightings", |facts| facts.sightings),
        ("blocking runs", |facts| facts.blocking_runs),
    ];
    for (name, number) in numbers {
        let apart = differences
            .iter()
            .filter(|(_, true_, told)| number(true_) != number(told));
        let (mut wrong, mut expected, mut told) = (0, 0, 0);
        for (_, true_facts, told_facts) in apart {
            wrong += 1;
            expected += number(true_facts);
            told += number(told_facts);
        }
        let _ = writeln!(
            text,
            "  {name}: {wrong} tasks, {told} told of {expected} true"
        );
    }
    for (task, expected, told) in differences.iter().take(20) {
        let _ = writeln!(
            text,
            "{task:?}\n  expected {expected:?}\n  told     {told:?}"
        );
    }
    text
}
