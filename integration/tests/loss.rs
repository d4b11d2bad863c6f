//! What does not fit is counted: recorded and lost are all there was.
//!
//! In: the program that counts, rings of one page for each CPU. Out: equal
//! sums; segments that are whole around the gaps. Never: a hidden flag; where
//! nobody drains, the rings are driven through the package.

use std::{collections::BTreeMap, thread};

use dial9_bpf_attach::{Tracer, rings::Drained};
use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram,
    driven::{loaded, scanned},
    output_dir, proc, require_root,
    segment::TaskFacts,
    truth::{self, TrueTask},
};
use dial9_bpf_trace::decode::Record;

const ROUNDS: usize = 10;

/// One page for each CPU.
fn least_ring_bytes() -> u64 {
    let cpus = thread::available_parallelism().expect("Linux says").get();
    (rustix::param::page_size() * cpus) as u64
}

fn attached(program: &TestProgram) -> Tracer {
    let (target, objects) = scanned(program.pid());
    let mut tracer = loaded(&target, least_ring_bytes());
    let attached = tracer.attach(&target, &objects);
    attached.expect("it can be attached to");
    tracer
}

#[test]
fn rings_that_nobody_drains() {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = TestProgram::start_with("truth", Build::Merged, |command| {
        command.arg(&counted);
    });
    let mut tracer = attached(&program);
    program.ask("go", "done");
    tracer.detach();
    assert!(program.exit().success());

    let mut hits = BTreeMap::<&str, u64>::new();
    let mut in_gaps = 0;
    let drained = tracer
        .rings()
        .drain(usize::MAX, |_, bytes| match Record::decode(bytes) {
            Ok(Record::Gap(gap)) => in_gaps += gap.lost,
            Ok(record) => *hits.entry(name(&record)).or_default() += 1,
            Err(error) => panic!("{error}"),
        });
    assert_eq!(drained, Drained::All);
    let losses = tracer.losses().expect("they can be read");
    let lost: u64 = losses.iter().map(|loss| loss.lost).sum();
    assert!(lost > 1_000_000, "{hits:?} {losses:?}");
    for loss in &losses {
        *hits
            .entry(loss.kind.name().expect("it is a hit"))
            .or_default() += loss.lost;
    }
    let pending = tracer.pending_gaps().expect("they can be read");
    let in_gaps = in_gaps + pending.iter().map(|gap| gap.lost).sum::<u64>();
    assert_eq!(in_gaps, lost, "gaps and losses: {losses:?}");
    expect_all(&hits, &truth::read(&counted));
}

fn name(record: &Record) -> &'static str {
    record.header().kind.name().expect("it was decoded")
}

/// Hits of each kind, recorded or lost, are those that there were.
fn expect_all(hits: &BTreeMap<&str, u64>, truth: &[TrueTask]) {
    let sum = |of: fn(&TrueTask) -> u64| truth.iter().map(of).sum::<u64>();
    let entries = sum(|task| task.entries);
    // The closure that was running already ends as well.
    let before = sum(|task| u64::from(task.blocking && task.spawned_before && task.ended));
    let ended = sum(|task| u64::from(!task.blocking && task.ended && task.entries > 0));
    let closures = before + sum(|task| if task.blocking { task.entries } else { 0 });
    let spawned = sum(|task| u64::from(!task.blocking && !task.spawned_before));
    assert_eq!(before, 1);
    assert_eq!(hits["poll-start"], entries, "poll starts: {hits:?}");
    assert_eq!(hits["wake"], sum(|task| task.wakes), "wakes: {hits:?}");
    assert_eq!(hits["spawn"], spawned, "spawns: {hits:?}");
    // The end of a closure may be a site of its own or not; in the trace it is
    // that of its poll.
    let ends = hits["terminate"];
    assert!(
        ends == ended || ends == ended + closures,
        "{ended} and {closures} ends: {hits:?}"
    );
    // A branch may lead to the same instruction: then it is hit more often.
    assert!(hits["poll-end"] >= entries + before, "poll ends: {hits:?}");
    // At attach every worker is parked, and so it is at the end.
    assert_eq!(hits["park"], hits["unpark"], "{hits:?}");
}

#[test]
fn a_recording_that_loses_is_whole_around_the_gaps() {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = TestProgram::start_with("truth", Build::Plain, |command| {
        command.arg(&counted);
    });
    let tracer = Attach::to(program.pid(), output.path())
        .arg("--ring-bytes")
        .arg(least_ring_bytes().to_string())
        .attached();
    program.ask("go", "done");
    let outcome = tracer.interrupt();
    outcome.expect(7);
    assert!(program.exit().success());

    let truth = truth::read(&counted);
    let facts = Facts::of_dir(output.path());
    facts.expect_at_rest();
    assert!(
        facts.total_lost() > 0 && facts.count("GapEvent") > 0,
        "{:?}",
        facts.counts
    );
    assert_eq!(
        facts.metadata["dial9-bpf.lost"],
        facts.total_lost().to_string()
    );
    let told = |of: fn(&TaskFacts) -> u64| facts.tasks.values().map(of).sum::<u64>();
    let sum = |of: fn(&TrueTask) -> u64| truth.iter().map(of).sum::<u64>();
    let wakes = told(|task| task.wakes) + facts.lost_of("wake");
    assert_eq!(wakes, sum(|task| task.wakes), "wakes: {:?}", facts.lost);
    let spawned = sum(|task| u64::from(!task.blocking && !task.spawned_before));
    let spawns = told(|task| task.spawns) + facts.lost_of("spawn");
    assert_eq!(spawns, spawned, "spawns: {:?}", facts.lost);
    // A closure whose end was lost is not told of, but its start was a record.
    let polls = told(|task| task.polls) + facts.lost_of("poll-start");
    let (entries, closures) = (
        sum(|task| task.entries),
        sum(|task| if task.blocking { task.entries } else { 0 }),
    );
    let least = polls + told(|task| task.blocking_runs);
    assert!(
        least <= entries && entries <= polls + closures,
        "{least} to {} of {entries} polls: {:?}",
        polls + closures,
        facts.lost
    );
    truth::expect_no_more_told(&truth, &facts);
}

/// The same process attaches again and again.
#[test]
fn rounds_of_one_tracer_process() {
    require_root();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let own = std::process::id();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut tracer = attached(&program);
        program.wait_for_progress(500);
        tracer.detach();
        drop(tracer);
        rounds.push((
            proc::fds(own),
            proc::mappings(own).len(),
            proc::fds(program.pid()),
            proc::mappings(program.pid()).len(),
            proc::changed_code(program.pid(), program.path()),
        ));
    }
    program.ask("rest", "resting");
    assert!(program.exit().success());
    let [_, second, later @ ..] = &rounds[..] else {
        panic!("{ROUNDS} rounds")
    };
    assert_eq!(second.4, 0, "breakpoints stay");
    assert!(later.iter().all(|round| round == second), "{rounds:?}");
}
