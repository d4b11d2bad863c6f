//! What the kernel keeps of a killed recorder, and who takes it over.
//!
//! In: programs that count; recorders that are killed. Out: equal sums over the
//! recordings; a kernel and a BPF file system without anything of ours at the
//! end. Never: a tolerance.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use dial9_bpf_attach::{Abilities, LinkKind, keep};
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
    let bytes = |path: &PathBuf| path.metadata().map_or(0, |file| file.len());
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

#[test]
fn rings_that_overflow_meanwhile_count_what_they_lose() {
    begin();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = counting(&counted);
    let tracer = keeping(&program, output.path(), "64KiB").attached();
    let ours = Loaded::of(tracer.pid());
    kill(tracer);
    // Nobody drains: a million polls into 64 KiB.
    program.ask("go", "done");
    let tracer = keeping(&program, output.path(), "64KiB").attached();
    let outcome = tracer.interrupt();
    outcome.expect(7);
    expect_nothing_left(&program, &ours);
    assert!(program.exit().success());

    let truth = truth::read(&counted);
    let facts = Facts::of_dir(output.path());
    facts.expect_sound();
    expect_counted(&truth, &facts);
}

/// Recorded and lost are all that there was.
fn expect_counted(truth: &[TrueTask], facts: &Facts) {
    let wakes = told(facts, |task| task.wakes) + facts.lost_of("wake");
    assert_eq!(wakes, sum(truth, |task| task.wakes), "{:?}", facts.lost);
    let spawns = told(facts, |task| task.spawns) + facts.lost_of("spawn");
    let spawned = sum(truth, |task| u64::from(!task.spawned_before));
    assert_eq!(spawns, spawned, "{:?}", facts.lost);
    // A closure whose end was lost is not told of, but its start was a record.
    let polls = told(facts, |task| task.polls) + facts.lost_of("poll-start");
    let closures: u64 = truth
        .iter()
        .filter(|task| task.blocking)
        .map(|task| task.entries)
        .sum();
    let entries = sum(truth, |task| task.entries) + closures;
    let least = polls + told(facts, |task| task.blocking_runs);
    assert!(
        least <= entries && entries <= polls + closures,
        "{least} to {} of {entries} polls: {:?}",
        polls + closures,
        facts.lost
    );
    truth::expect_no_more_told(truth, facts);
}

/// In epochs, each loss is told by one segment, whoever closed it.
#[test]
fn losses_that_a_killed_recorder_told_are_not_told_again() {
    begin();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = counting(&counted);
    let rotating = |program: &TestProgram| {
        keeping(program, output.path(), "64KiB")
            .arg("--rotate")
            .arg("1s")
    };
    let tracer = rotating(&program).attached();
    program.say("go");
    wait::until("a segment tells of losses", || {
        let sealed = files(output.path()).into_iter().filter(|path| {
            let name = path.to_string_lossy();
            name.ends_with(".bin.gz")
        });
        let sealed: Vec<_> = sealed.collect();
        (Facts::of(&sealed).total_lost() > 0).then_some(())
    });
    kill(tracer);
    let tracer = rotating(&program).attached();
    assert!(program.hear().starts_with("done"));
    tracer.interrupt().expect(7);
    assert!(program.exit().success());
    let segments = sealed_segments(output.path());
    expect_counted_in_epochs(&truth::read(&counted), &Facts::of(&segments));
}

/// As [`expect_counted`], where each segment announces the tasks that it has.
fn expect_counted_in_epochs(truth: &[TrueTask], facts: &Facts) {
    let wakes = told(facts, |task| task.wakes) + facts.lost_of("wake");
    assert_eq!(wakes, sum(truth, |task| task.wakes), "{:?}", facts.lost);
}

#[test]
fn without_the_flag_nothing_is_pinned_and_what_is_left_goes() {
    begin();
    let output = output_dir();
    let mut program = serving();
    let plain = |program: &TestProgram| Attach::to(program.pid(), output.path());
    let tracer = plain(&program).attached();
    assert_eq!(bpffs::directory(program.pid()), None);
    tracer.interrupt().expect(0);

    let tracer = keeping(&program, output.path(), "32MiB").attached();
    let ours = Loaded::of(tracer.pid());
    program.wait_for_progress(100);
    kill(tracer);
    assert!(bpffs::pinned(program.pid()).contains(&"progress".to_owned()));
    let directory = bpffs::directory(program.pid()).expect("it is kept");
    let mode = directory.metadata().expect("it is there").mode();
    assert_eq!(mode & 0o777, 0o700);
    let tracer = plain(&program).attached();
    assert_eq!(bpffs::directory(program.pid()), None);
    let outcome = tracer.interrupt();
    outcome.expect(0);
    expect_said(
        &outcome,
        &["removed what a recorder had kept", "records were not read"],
    );
    expect_nothing_left(&program, &ours);
    program.ask("rest", "resting");
    assert!(program.exit().success());
}

#[test]
fn a_target_that_exits_meanwhile_is_named_with_what_nobody_read() {
    begin();
    let (output, other_output) = (output_dir(), output_dir());
    let (mut program, other) = (serving(), serving());
    let tracer = keeping(&program, output.path(), "32MiB").attached();
    let ours = Loaded::of(tracer.pid());
    kill(tracer);
    program.wait_for_progress(100);
    let pid = program.pid();
    program.ask("rest", "resting");
    assert!(program.exit().success());
    assert!(bpffs::directory(pid).is_some());

    let tracer = keeping(&other, other_output.path(), "32MiB").attached();
    assert_eq!(bpffs::directory(pid), None);
    let outcome = tracer.interrupt();
    outcome.expect(0);
    expect_said(
        &outcome,
        &[&format!("of process {pid}: the process is gone")],
    );
    let said = outcome.stderr.iter().find(|line| line.contains("not read"));
    assert!(
        said.is_some_and(|line| !line.contains("; 0 records")),
        "{outcome:#?}"
    );
    wait::until("everything is gone from the kernel", || {
        Loaded::now().also_in(&ours).is_empty().then_some(())
    });
    assert!(other.exit().success());
}

#[test]
fn another_plan_is_not_taken_over() {
    begin();
    let output = output_dir();
    let mut program = serving();
    let tracer = keeping(&program, output.path(), "32MiB").attached();
    let ours = Loaded::of(tracer.pid());
    kill(tracer);
    // As if its sites had been others.
    bpffs::set_word(program.pid(), "progress", 3, 1);
    let tracer = keeping(&program, output.path(), "32MiB").attached();
    program.wait_for_progress(100);
    let outcome = tracer.interrupt();
    outcome.expect(0);
    expect_said(
        &outcome,
        &["removed what a recorder had kept", "it is for other sites"],
    );
    expect_nothing_left(&program, &ours);
    assert!(program.exit().success());
}

#[test]
fn one_recorder_keeps_the_rings_of_a_target() {
    begin();
    let (output, other_output) = (output_dir(), output_dir());
    let program = serving();
    let tracer = keeping(&program, output.path(), "32MiB").attached();
    let refused = keeping(&program, other_output.path(), "32MiB").outcome();
    refused.expect_failure(1, &["another recorder keeps the rings"]);
    // Without the flag it is as ever, and does not touch what is kept.
    let plain = Attach::to(program.pid(), other_output.path()).attached();
    plain.interrupt().expect(0);
    assert!(bpffs::directory(program.pid()).is_some());
    tracer.interrupt().expect(0);
    assert_eq!(bpffs::directory(program.pid()), None);
    assert!(program.exit().success());
}

#[test]
fn a_target_that_exits_ends_what_is_kept() {
    begin();
    let output = output_dir();
    let mut program = serving();
    let tracer = keeping(&program, output.path(), "32MiB").attached();
    let (pid, ours) = (program.pid(), Loaded::of(tracer.pid()));
    program.ask("rest", "resting");
    assert!(program.exit().success());
    tracer.outcome().expect(0);
    assert_eq!(bpffs::directory(pid), None);
    wait::until("everything is gone from the kernel", || {
        Loaded::now().also_in(&ours).is_empty().then_some(())
    });
}

#[test]
fn without_a_bpf_file_system_there_is_one_line() {
    begin();
    let output = output_dir();
    let program = serving();
    let unmounted = "umount /sys/fs/bpf; exec \"$@\"";
    let outcome = keeping(&program, output.path(), "32MiB")
        .under(&["unshare", "--mount", "sh", "-c", unmounted, "sh"])
        .outcome();
    outcome.expect_failure(
        4,
        &["cannot keep the rings", "no BPF file system at /sys/fs/bpf"],
    );
    assert!(program.exit().success());
}

/// What kernels before 6.6 have.
#[test]
fn links_of_perf_events_are_not_kept() {
    begin();
    let perf = Abilities::probe(Some(LinkKind::Perf)).expect("the kernel can do it");
    let error = keep::check(perf).expect_err("they are not");
    assert!(error.to_string().contains("uprobe_multi"), "{error}");
    let multi = Abilities::probe(Some(LinkKind::Multi)).expect("the kernel can do it");
    keep::check(multi).expect("they are");
}
