//! Whether everything is there, once, and true.
//!
//! In: the objects, the spool, what the program counted. Out: what was compared,
//! and what is wrong. Never: a tolerance; what cannot be told exactly is left out
//! and said to be.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use dial9_bpf_integration::{
    Attach, Facts,
    segment::{TaskFacts, sealed_segments},
    truth::TrueTask,
};

use crate::{run::Recorder, store::Store};

/// A task whose future was dropped so long before the end has ended in the trace.
const END_NS: u64 = 1_000_000_000;

/// The file of each segment.
pub(crate) fn segments(
    store: &Store,
    spool: &Path,
    wrong: &mut Vec<String>,
) -> BTreeMap<u64, PathBuf> {
    let mut segments = BTreeMap::new();
    let left = sealed_segments(spool);
    let left = left
        .into_iter()
        .map(|path| (path.display().to_string(), path));
    for (name, path) in store.files().into_iter().chain(left) {
        let index = name
            .split(['-', '.'])
            .rev()
            .find_map(|word| word.parse().ok());
        match index {
            Some(index) if segments.insert(index, path).is_some() => {
                wrong.push(format!("segment {index} twice: {name}"));
            }
            Some(_) => (),
            None => wrong.push(format!("no segment: {name}")),
        }
    }
    segments
}

/// The segments of one recorder.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    facts: Facts,
    segments: u64,
    begin_ns: u64,
    live_ns: u64,
    end_ns: u64,
}

/// Reads every segment in turn.
pub(crate) fn read(
    segments: &BTreeMap<u64, PathBuf>,
    recorders: &[Recorder],
    wrong: &mut Vec<String>,
) -> Vec<Recording> {
    let mut recordings = Vec::new();
    let mut next = 0;
    for recorder in recorders {
        let mut recording = Recording {
            live_ns: recorder.live_ns,
            ..Recording::default()
        };
        let last = recorder.last_index.unwrap_or(u64::MAX);
        for (index, path) in segments.range(next..=last) {
            if *index != next {
                wrong.push(format!("segments {next} to {index} are missing"));
            }
            next = index + 1;
            recording.add(*index, path, wrong);
        }
        recording.judge(wrong);
        recordings.push(recording);
    }
    recordings
}

impl Recording {
    fn add(&mut self, index: u64, path: &Path, wrong: &mut Vec<String>) {
        let checked = Attach::command(&["check"]).arg(path).outcome();
        if checked.code != Some(0) {
            wrong.push(format!("check of segment {index}: {checked:#?}"));
        }
        (self.facts.first_ns, self.facts.last_ns) = (0, 0);
        if let Err(error) = self.facts.add(path) {
            wrong.push(format!("segment {index}: {error:#}"));
        }
        let first_ns = self.facts.first_ns;
        if self.segments == 0 {
            self.begin_ns = first_ns;
        } else if first_ns != self.end_ns {
            let before = self.end_ns;
            wrong.push(format!(
                "segment {index} begins at {first_ns}, the one before ends at {before}"
            ));
        }
        self.end_ns = self.facts.last_ns;
        self.segments += 1;
    }

    fn judge(&self, wrong: &mut Vec<String>) {
        let (lost, gaps) = (&self.facts.lost, self.facts.count("GapEvent"));
        if !lost.is_empty() || gaps > 0 {
            wrong.push(format!("lost {lost:?}, {gaps} gaps"));
        }
        let broken = &self.facts.broken;
        wrong.extend(
            broken
                .first()
                .map(|first| format!("{} broken events: {first}", broken.len())),
        );
    }

    /// Whether the whole life of the task was recorded.
    fn has_whole(&self, task: &TrueTask) -> bool {
        task.ended && task.spawned_ns >= self.live_ns && task.ended_ns + END_NS <= self.end_ns
    }
}

/// What was compared.
#[derive(Debug, Default)]
pub(crate) struct Told {
    tasks: u64,
    polls: u64,
    wakes: u64,
    true_tasks: usize,
    true_polls: u64,
    polls_in_all: u64,
}

/// Compares each task that is wholly in one recording, and looks that no
/// recording tells more of any task than there was.
pub(crate) fn compare(
    truth: &[TrueTask],
    recordings: &[Recording],
    wrong: &mut Vec<String>,
) -> Told {
    let mut told = Told {
        true_tasks: truth.len(),
        true_polls: truth.iter().map(|task| task.entries).sum(),
        ..Told::default()
    };
    let by_id: HashMap<u64, &TrueTask> = truth.iter().map(|task| (task.id, task)).collect();
    for recording in recordings {
        for task in truth.iter().filter(|task| recording.has_whole(task)) {
            let found = recording.facts.tasks.get(&task.id);
            told.tasks += 1;
            told.polls += task.entries;
            told.wakes += task.wakes;
            if !found.is_some_and(|found| is_told(task, found)) {
                wrong.push(format!("{task:?} is told as {found:?}"));
            }
        }
        for (id, found) in &recording.facts.tasks {
            told.polls_in_all += found.polls;
            if !by_id.get(id).is_some_and(|task| is_no_more(task, found)) {
                wrong.push(format!(
                    "task {id}, {:?}, is told as {found:?}",
                    by_id.get(id)
                ));
            }
        }
    }
    told
}

fn is_told(task: &TrueTask, found: &TaskFacts) -> bool {
    let expected = TaskFacts {
        location: found.location.clone(),
        // Once in each segment that has the task.
        spawns: found.spawns.max(1),
        ..task.expected(true)
    };
    expected == *found
}

fn is_no_more(task: &TrueTask, found: &TaskFacts) -> bool {
    found.polls <= task.entries && found.wakes <= task.wakes && found.ends <= u64::from(task.ended)
}

pub(crate) fn report(recordings: &[Recording], told: &Told) -> String {
    let mut text = String::new();
    let mut before_ns = None;
    for recording in recordings {
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
        let (segments, events) = (
            recording.segments,
            recording.facts.counts.values().sum::<u64>(),
        );
        let length = seconds(recording.begin_ns, recording.end_ns);
        let _ = write!(
            text,
            "recording: {segments} segments, {length:.1} s, {events} events, {:.0} a second, lost {}",
            events as f64 / length,
            recording.facts.total_lost()
        );
        if let Some(before) = before_ns.replace(recording.end_ns) {
            let _ = write!(
                text,
                ", {:.2} s after the one before",
                seconds(before, recording.begin_ns)
            );
        }
        text.push('\n');
    }
    let Told {
        tasks,
        polls,
        wakes,
        true_tasks,
        true_polls,
        polls_in_all,
    } = told;
    let _ = write!(
        text,
        "compared: {tasks} of {true_tasks} tasks, those whose whole life is in one recording: {polls} polls, \
         {wakes} wakes, spawn and end of each exactly\nnot compared: what happened around the kills and to the \
         8 tasks that spawn the others; in all {polls_in_all} of {true_polls} polls are told, and of no task more \
         than there were"
    );
    text
}
