//! `dial9-bpf run`: a program from its first instruction.
//!
//! In: programs that count, end in every way, or are no Tokio programs. Out: every
//! spawn exactly; the program's exit code. Never: a program left behind.

use std::path::Path;

use dial9_bpf_integration::{
    Attach, Build, Facts, output_dir, require_root, target_dir::test_program, truth, wait,
};
use rustix::process::Signal;

/// Runs a test program to which these words are said.
fn run(output: &Path, words: &str, (name, arguments): (&str, &[&str])) -> Attach {
    require_root();
    let program = test_program(name, Build::Plain).unwrap_or_else(|error| panic!("{error:#}"));
    let said = format!("printf '{words}' | exec \"$@\"");
    let attach = Attach::command(&["run", "--rotate", "off", "--output"])
        .arg(output)
        .arg("--")
        .arg(program)
        .under(&["sh", "-c", &said, "sh"]);
    arguments
        .iter()
        .fold(attach, |attach, word| attach.arg(*word))
}

#[test]
fn every_spawn_is_exact_and_nothing_was_there_before() {
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let counted = counted.to_str().expect("it is text");
    let attach = run(output.path(), "go\\nexit\\n", ("truth", &[counted, "10"]));
    attach.outcome().expect(0);
    let facts = Facts::of_dir(output.path());
    facts.expect_lossless();
    for (id, told) in &facts.tasks {
        let runs = told.blocking_runs > 0;
        assert!(
            runs || (told.spawns, told.sightings) == (1, 0),
            "{id} {told:?}"
        );
    }
    // The program counts from `go` on; of what it had spawned by then we know more.
    let truth = truth::read(Path::new(counted));
    let since: Vec<_> = truth.iter().filter(|task| !task.spawned_before).collect();
    assert!(since.len() > 1000, "{}", since.len());
    for task in since {
        let mut told = facts.tasks[&task.id].clone();
        told.location.clear();
        assert_eq!(told, task.expected(true), "{task:?}");
    }
    for task in truth.iter().filter(|task| task.spawned_before) {
        assert!(facts.tasks[&task.id].polls >= task.entries, "{task:?}");
    }
}

#[test]
fn the_exit_code_is_that_of_the_program() {
    for (words, code, end) in [
        ("exit 3\\n", 3, "exit code 3"),
        ("abort\\n", 128 + 6, "signal 6 (SIGABRT)"),
    ] {
        let output = output_dir();
        let outcome = run(output.path(), words, ("ends", &[])).outcome();
        outcome.expect(code);
        let is_end = |line: &String| line.starts_with("the target ended: ") && line.contains(end);
        assert!(outcome.stderr.iter().any(is_end), "{outcome:#?}");
        // What is ours is beside the program's output.
        assert!(outcome.stdout.starts_with("ready "), "{outcome:#?}");
        assert!(!outcome.stdout.contains("recorded process"), "{outcome:#?}");
        Facts::of_dir(output.path()).expect_lossless();
    }
}

#[test]
fn what_cannot_be_traced_does_not_run() {
    require_root();
    let output = output_dir();
    let made = output.path().join("made");
    let run = |program: &str| {
        Attach::command(&["run", "--output"])
            .arg(output.path().join("traces"))
            .arg("--")
            .arg(program)
            .arg(&made)
            .outcome()
    };
    run("touch").expect_failure(6, &["nothing to trace"]);
    run("/no/such/program").expect_failure(5, &["cannot run /no/such/program"]);
    run("/dev/null").expect_failure(5, &["cannot run /dev/null", "denied"]);
    assert_eq!(std::fs::read_dir(output.path()).expect("ours").count(), 0);
}

#[test]
fn a_signal_to_us_is_one_to_the_program() {
    require_root();
    let output = output_dir();
    let fifo = output.path().join("words");
    let fifo = fifo.to_str().expect("it is text");
    let program = test_program("serve", Build::Plain).unwrap_or_else(|error| panic!("{error:#}"));
    let script = format!("mkfifo {fifo} && exec \"$@\" <> {fifo}");
    let mut tracer = Attach::command(&["run", "--output"])
        .arg(output.path())
        .arg("--")
        .arg(program)
        .under(&["sh", "-c", &script, "sh"])
        .attached();
    let children = format!("/proc/{0}/task/{0}/children", tracer.pid());
    let child = wait::until("the program runs", || {
        let children = std::fs::read_to_string(&children).ok()?;
        children.trim().parse::<u32>().ok()
    });
    tracer.signal(Signal::TERM);
    let told = tracer.wait_until_said("the target ended: signal 15 (SIGTERM)");
    told.expect("it says so");
    tracer.outcome().expect(128 + 15);
    assert!(!Path::new(&format!("/proc/{child}")).exists());
    assert!(Facts::of_dir(output.path()).end.is_some());
}
