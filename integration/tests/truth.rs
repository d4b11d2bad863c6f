//! The trace tells exactly what the target counted, task by task.
//!
//! In: a program of more than fifty kinds of tasks and a million polls. Out:
//! equal numbers of polls, wakes, ends, spawns and blocking runs. Never: a
//! tolerance.

use std::path::Path;

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, require_root,
    truth::{self, TrueTask},
};

const POLLS: u64 = 1_000_000;
const KINDS: usize = 20;

#[test]
fn of_a_plain_release_build() {
    check(Build::Plain, true);
}

/// Equal poll functions of different task types are one function here.
#[test]
fn of_a_build_with_merged_functions() {
    check(Build::Merged, true);
}

/// Without symbols a spawn is a first sighting, and marked as that.
#[test]
fn of_a_stripped_build() {
    check(Build::Stripped, false);
}

/// Futures of more than a word's alignment: the id is where the vtable says.
#[test]
fn of_tasks_with_different_layouts() {
    for (build, exact_spawns) in [(Build::Plain, true), (Build::Stripped, false)] {
        let (truth, facts) = trace("aligned", build);
        assert_eq!(truth.len(), 12);
        facts.expect_lossless().expect_at_rest();
        truth::expect_told(&truth, &facts, exact_spawns);
    }
}

/// We see the target by another number than it sees itself.
#[test]
fn of_a_target_in_a_pid_namespace() {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let program = TestProgram::start_in_pid_namespace("aligned", Build::Plain, &counted);
    let facts = told_of(program, output.path());
    facts.expect_lossless().expect_at_rest();
    truth::expect_told(&truth::read(&counted), &facts, true);
}

fn check(build: Build, exact_spawns: bool) {
    let (truth, facts) = trace("truth", build);
    let mut kinds: Vec<&str> = truth.iter().map(|task| task.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert!(kinds.len() >= KINDS, "{kinds:?}");
    assert!(truth::total_polls(&truth) >= POLLS);
    facts.expect_lossless().expect_at_rest();
    truth::expect_told(&truth, &facts, exact_spawns);
    assert_eq!(
        facts
            .workers
            .values()
            .filter(|worker| worker.polls > 0)
            .count(),
        2
    );
    for task in facts.tasks.values() {
        assert!(task.polls == 0 || !task.location.is_empty(), "{task:?}");
    }
}

fn trace(program: &str, build: Build) -> (Vec<TrueTask>, Facts) {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let program = TestProgram::start_with(program, build, |command| {
        command.arg(&counted);
    });
    let facts = told_of(program, output.path());
    (truth::read(&counted), facts)
}

/// What the trace tells of a program's work.
fn told_of(mut program: TestProgram, output: &Path) -> Facts {
    let tracer = Attach::to(program.pid(), output).attached();
    program.ask("go", "done");
    tracer.interrupt().expect(0);
    assert!(program.exit().success());
    Facts::of_dir(output)
}
