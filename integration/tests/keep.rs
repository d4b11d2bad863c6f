//! What the kernel keeps of a killed recorder, and who takes it over.
//!
//! In: programs that count; recorders that are killed. Out: equal sums over the
//! recordings; a kernel and a BPF file system without anything of ours at the
//! end. Never: a tolerance.

use std::path::Path;

use dial9_bpf_integration::{
    Attach, Build, Facts, Outcome, TestProgram, Tracer, bpffs,
    kernel::Loaded,
    output_dir, require_root,
    segment::{TaskFacts, files, sealed_segments},
    truth::{self, TrueTask},
    wait,
};
use rustix::process::Signal;

/// Room for all records between a kill and the next recorder.
const LARGE_RINGS: &str = "256MiB";

fn begin() {
    require_root();
    bpffs::mount();
}

fn counting(counted: &Path) -> TestProgram {
    TestProgram::start_with("truth", Build::Plain, |command| {
        command.arg(counted);
    })
}

fn serving() -> TestProgram {
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    program
}

fn keeping(program: &TestProgram, output: &Path, ring_bytes: &str) -> Attach {
    Attach::to(program.pid(), output)
        .arg("--keep-rings")
        .arg("--ring-bytes")
        .arg(ring_bytes)
}

fn kill(tracer: Tracer) {
    tracer.signal(Signal::KILL);
    assert_eq!(tracer.outcome().code, None);
}

fn bytes_in(output: &Path) -> u64 {
    let bytes = |path: &std::path::PathBuf| path.metadata().map_or(0, |file| file.len());
    files(output).iter().map(bytes).sum()
}

/// Waits until the recorder has written more.
fn grows(output: &Path) {
    let before = bytes_in(output);
    wait::until("a segment grows", || {
        (bytes_in(output) > before + (64 << 10)).then_some(())
    });
}

fn expect_said(outcome: &Outcome, words: &[&str]) {
    let has = |line: &String| words.iter().all(|word| line.contains(word));
    assert!(outcome.stderr.iter().any(has), "no {words:?}: {outcome:#?}");
}

fn expect_nothing_left(program: &TestProgram, ours: &Loaded) {
    assert_eq!(bpffs::directory(program.pid()), None);
    wait::until("everything is gone from the kernel", || {
        Loaded::now().also_in(ours).is_empty().then_some(())
    });
}

fn told(facts: &Facts, of: fn(&TaskFacts) -> u64) -> u64 {
    facts.tasks.values().map(of).sum()
}

fn sum(truth: &[TrueTask], of: fn(&TrueTask) -> u64) -> u64 {
    truth.iter().filter(|task| !task.blocking).map(of).sum()
}

const fn has_end(task: &TrueTask) -> bool {
    task.ended && (task.entries > 0 || !task.spawned_before)
}

/// Each task's polls, wakes and end are there exactly once.
fn expect_told(truth: &[TrueTask], facts: &Facts) {
    let nothing = TaskFacts::default();
    for task in truth.iter().filter(|task| !task.blocking) {
        let told = facts.tasks.get(&task.id).unwrap_or(&nothing);
        assert_eq!(
            (told.polls, told.wakes, told.ends),
            (task.entries, task.wakes, u64::from(has_end(task))),
            "{task:?} {told:?}"
        );
    }
}

#[test]
fn kills_under_load_lose_nothing() {
    begin();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = counting(&counted);
    let mut tracer = keeping(&program, output.path(), LARGE_RINGS).attached();
    let ours = Loaded::of(tracer.pid());
    program.say("go");
    for _ in 0..3 {
        grows(output.path());
        kill(tracer);
        tracer = keeping(&program, output.path(), LARGE_RINGS).attached();
    }
    assert!(program.hear().starts_with("done"));
    let outcome = tracer.interrupt();
    outcome.expect(0);
    expect_said(&outcome, &["attached to process", "ms ago"]);
    expect_nothing_left(&program, &ours);
    assert!(program.exit().success());

    let segments = sealed_segments(output.path());
    assert_eq!(segments.len(), 4, "{segments:?}");
    let facts = Facts::of(&segments);
    facts.expect_lossless();
    expect_told(&truth::read(&counted), &facts);
}
