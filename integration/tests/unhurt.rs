//! What is traced goes on as if it were not.
//!
//! In: targets that panic, abort, are in the middle of a poll, or are killed; a
//! tracer that is killed. Out: targets that behave as ever, segments that are
//! whole, a kernel without anything of ours. Never: a look at the tracer's
//! inside.

use std::{fs, os::unix::process::ExitStatusExt as _, path::Path};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, kernel::Loaded, output_dir, require_root, wait,
};
use rustix::{
    process::Signal,
    time::{ClockId, clock_gettime},
};

#[test]
fn panics_are_caught_as_ever() {
    panics_are_caught("0");
}

#[test]
fn panics_with_backtraces_are_caught_as_ever() {
    panics_are_caught("1");
}

fn panics_are_caught(backtrace: &str) {
    require_root();
    let output = output_dir();
    let said = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let mut program = TestProgram::start_with("panics", Build::Plain, |command| {
        command.env("RUST_BACKTRACE", backtrace);
        command.stderr(said.reopen().expect("it is there"));
    });
    program.ask("panic", "survived");
    let untraced = stack_frames(said.path());
    assert_eq!(untraced.is_empty(), backtrace == "0", "{untraced:?}");

    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("panic", "survived");
    let traced = stack_frames(said.path()).split_off(untraced.len());
    assert_eq!(traced, untraced, "the backtrace is another under tracing");
    program.ask("load", "loaded");
    program.wait_for_progress(500);
    tracer.interrupt().expect(0);
    program.wait_for_progress(100);
    program.ask("rest", "resting");
    assert!(program.exit().success());

    let facts = Facts::of_dir(output.path());
    facts.expect_lossless().expect_sound();
    assert!(
        facts.count("TaskTerminateEvent") >= 500,
        "{:?}",
        facts.counts
    );
}

/// Names in the backtraces of a panicking program, without their addresses.
fn stack_frames(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("it is text");
    let numbered = |line: &str| {
        let (number, name) = line.trim().split_once(": ")?;
        number.parse::<u32>().is_ok().then(|| name.to_owned())
    };
    text.lines().filter_map(numbered).collect()
}

#[test]
fn a_target_that_aborts_aborts() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start_with("panics", Build::Abort, |command| {
        command.stderr(std::process::Stdio::null());
    });
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.say("panic");
    assert_eq!(program.wait().signal(), Some(Signal::ABORT.as_raw()));
    tracer.outcome().expect(0);
    let facts = Facts::of_dir(output.path());
    assert!(facts.broken.is_empty(), "{:?}", facts.broken);
    assert!(facts.count("PollStartEvent") > 0, "{:?}", facts.counts);
}

#[test]
fn a_poll_that_is_going_on_at_attach_is_left_out() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    let held: u64 = program.ask("hold", "held").parse().expect("a task id");
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("release", "released");
    program.ask("load", "loaded");
    program.wait_for_progress(1_000);
    program.ask("rest", "resting");
    tracer.interrupt().expect(0);
    assert!(program.exit().success());

    let facts = Facts::of_dir(output.path());
    facts.expect_lossless().expect_sound();
    let held = &facts.tasks[&held];
    assert_eq!(
        (held.polls, held.ends),
        (1, 1),
        "its second poll only: {held:?}"
    );
}

#[test]
fn a_killed_tracer_leaves_a_serving_target_and_nothing_in_the_kernel() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let tracer = Attach::to(program.pid(), output.path()).attached();
    let ours = Loaded::of(tracer.pid());
    assert!(
        !ours.links.is_empty() && !ours.programs.is_empty(),
        "{ours:?}"
    );
    program.wait_for_progress(1_000);
    tracer.signal(Signal::KILL);
    assert_eq!(tracer.outcome().code, None);

    wait::until("links and programs are gone", || {
        Loaded::now().also_in(&ours).is_empty().then_some(())
    });
    program.wait_for_progress(1_000);
    // What it left in the folder is in nobody's way.
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.wait_for_progress(1_000);
    tracer.interrupt().expect(0);
    program.ask("rest", "resting");
    assert!(program.exit().success());
}

#[test]
fn the_last_records_of_a_killed_target_are_in_the_segment() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.wait_for_progress(1_000);

    // From here until the target is gone nobody empties the rings.
    tracer.signal(Signal::STOP);
    wait::until("the tracer is stopped", || {
        is_stopped(tracer.pid()).then_some(())
    });
    let stopped_ns = monotonic_ns();
    program.wait_for_progress(1_000);
    program.signal(Signal::KILL);
    program.wait();
    tracer.signal(Signal::CONT);

    tracer.outcome().expect(0);
    let facts = Facts::of_dir(output.path());
    facts.expect_lossless();
    assert!(facts.broken.is_empty(), "{:?}", facts.broken);
    assert!(
        facts.last_ns > stopped_ns,
        "{} after {stopped_ns}",
        facts.last_ns
    );
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('T'))
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.expect("after boot") * 1_000_000_000 + nanos.expect("after boot")
}
