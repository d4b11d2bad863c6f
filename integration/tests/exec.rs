//! A recording is of one life of a process: it ends when the target executes a
//! program, be it the same.
//!
//! In: a program that executes itself again, from either kind of thread. Out: a
//! sealed segment of the life before, and a summary that says why it ends.
//! Never: an event of the life after; an end for what a child executes.

use dial9_bpf_attach::AttachError;
use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram,
    driven::{loaded, scanned},
    output_dir, require_root,
};

#[test]
fn from_the_main_thread() {
    ends_with_the_life("exec");
}

/// The thread takes the place of the main thread, and its id.
#[test]
fn from_another_thread() {
    ends_with_the_life("exec-on-thread");
}

#[track_caller]
fn ends_with_the_life(word: &str) {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("reexec", Build::Plain);
    let ready = format!("ready {}", program.pid());
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("work", "worked");
    program.ask("child", "child");
    let polls = program.ask("work", "worked");
    program.ask(word, &ready);
    program.ask("work", "worked");

    let outcome = tracer.outcome();
    outcome.expect(0);
    let reason = "the target executed another program";
    assert!(outcome.stdout.contains(reason), "{outcome:#?}");
    program.ask("work", "worked");
    assert!(program.exit().success());
    let facts = Facts::of_dir(output.path());
    facts.expect_lossless().expect_at_rest();
    assert_eq!(facts.count("PollStartEvent").to_string(), polls);
    for (id, task) in &facts.tasks {
        let first = task.spawns + task.sightings;
        assert_eq!((first, task.ends), (1, 1), "{id}: {task:?}");
    }
}

/// The programs are loaded, and look for an exec, before they are attached.
#[test]
fn before_the_hits_begin() {
    require_root();
    let mut program = TestProgram::start("reexec", Build::Plain);
    let (target, objects) = scanned(program.pid());
    let mut tracer = loaded(&target, 1 << 20);
    assert_eq!(tracer.absent(), []);
    assert!(target.is_same());
    program.ask("exec", "ready");
    assert!(!target.is_same(), "its stack is where it was");
    let refused = tracer.attach(&target, &objects);
    assert!(
        matches!(refused, Err(AttachError::Executed { .. })),
        "{refused:?}"
    );
    assert!(program.exit().success());
}
