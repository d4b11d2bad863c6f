//! dial9's own readers take what we write.
//!
//! In: a segment of a server under load. Out: the same numbers from dial9's
//! Rust reader and ours, no complaint of the viewer's. Never: a reader of ours
//! where dial9 has one.

use std::{collections::HashSet, path::Path};

use dial9::analysis::{TraceReader, analysis_events::Dial9Event};
use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, require_root, segment::sealed_segments, viewer,
};
use tempfile::TempDir;

#[test]
fn the_viewer_draws_everything() {
    let output = recorded(Build::Plain);
    let report = accepted(output.path());
    let facts = Facts::of_dir(output.path());
    assert_eq!(report["views"]["lanes"], facts.count("PollStartEvent"));
}

#[test]
fn the_viewer_draws_everything_of_a_stripped_program() {
    let output = recorded(Build::Stripped);
    accepted(output.path());
}

fn accepted(dir: &Path) -> serde_json::Value {
    let segment = sealed_segments(dir).remove(0);
    viewer::check(&segment).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn dial9_reads_the_same_numbers() {
    let output = recorded(Build::Plain);
    let facts = Facts::of_dir(output.path());
    let segment = sealed_segments(output.path()).remove(0);
    let reader = TraceReader::new(segment.to_str().expect("it is text")).expect("it reads");

    let counted = |is: fn(&Dial9Event) -> bool| {
        reader.all_events.iter().filter(|event| is(event)).count() as u64
    };
    let told = [
        (
            "PollStartEvent",
            counted(|event| matches!(event, Dial9Event::PollStartEvent(_))),
        ),
        (
            "PollEndEvent",
            counted(|event| matches!(event, Dial9Event::PollEndEvent(_))),
        ),
        (
            "WorkerParkEvent",
            counted(|event| matches!(event, Dial9Event::WorkerParkEvent(_))),
        ),
        (
            "WorkerUnparkEvent",
            counted(|event| matches!(event, Dial9Event::WorkerUnparkEvent(_))),
        ),
        (
            "WakeEventEvent",
            counted(|event| matches!(event, Dial9Event::WakeEvent(_))),
        ),
        (
            "TaskSpawnEvent",
            counted(|event| matches!(event, Dial9Event::TaskSpawnEvent(_))),
        ),
        (
            "TaskTerminateEvent",
            counted(|event| matches!(event, Dial9Event::TaskTerminateEvent(_))),
        ),
        (
            "ClockSyncEvent",
            counted(|event| matches!(event, Dial9Event::ClockSyncEvent(_))),
        ),
    ];
    for (schema, told) in told {
        assert!(told > 0, "dial9 reads no {schema}");
        assert_eq!(told, facts.count(schema), "{schema}");
    }
    assert_eq!(
        reader.all_events.len() as u64,
        facts.counts.values().sum::<u64>()
    );
    assert_eq!(reader.is_complete(), Some(true));
    let known: HashSet<u64> = reader.task_spawn_locs.keys().copied().collect();
    let seen: HashSet<u64> = facts
        .tasks
        .iter()
        .filter(|(_, task)| task.polls > 0)
        .map(|(id, _)| *id)
        .collect();
    assert!(seen.is_subset(&known), "{:?}", seen.difference(&known));
    assert!(
        reader
            .task_spawn_locs
            .values()
            .all(|location| !location.is_empty())
    );
}

#[test]
fn panics_and_the_end_are_in_nobodys_way() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("ends", Build::Plain);
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.say("panics");
    program.hear_until("panicked");
    program.say("exit 3");
    tracer.outcome().expect(0);

    let facts = Facts::of_dir(output.path());
    assert!(facts.end.is_some() && !facts.panics.is_empty());
    accepted(output.path());
    let segment = sealed_segments(output.path()).remove(0);
    let reader = TraceReader::new(segment.to_str().expect("it is text")).expect("it reads");
    assert_eq!(
        reader.all_events.len() as u64,
        facts.counts.values().sum::<u64>()
    );
}

fn recorded(build: Build) -> TempDir {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", build);
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("load", "loaded");
    program.wait_for_progress(5_000);
    program.ask("rest", "resting");
    tracer.interrupt().expect(0);
    assert!(program.exit().success());
    output
}
