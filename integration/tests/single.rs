//! Runtimes of one thread: the same truth, parks included.
//!
//! In: a program with two current-thread runtimes and a `LocalSet`, which counts its
//! polls, wakes and parks. Out: equal numbers. Never: a tolerance.

use std::fs;

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, require_root,
    segment::WorkerFacts,
    truth::{self, TrueTask},
};

/// What the program counted, its threads' parks, and the trace.
fn recorded(build: Build) -> (Vec<TrueTask>, Vec<[u64; 2]>, Facts) {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = TestProgram::start_with("single", build, |command| {
        command.arg(&counted);
    });
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("go", "done");
    tracer.interrupt().expect(0);
    assert!(program.exit().success());
    let parks = fs::read_to_string(counted.with_extension("parks")).expect("it is written");
    let parse = |line: &str| {
        let mut numbers = line
            .split('\t')
            .map(|field| field.parse().expect("a number"));
        [(); 2].map(|()| numbers.next().expect("two numbers"))
    };
    let mut parks: Vec<[u64; 2]> = parks.lines().map(parse).collect();
    parks.sort_unstable();
    (truth::read(&counted), parks, Facts::of_dir(output.path()))
}

fn expect_tasks(tasks: &[TrueTask], facts: &Facts, exact_spawns: bool) {
    facts.expect_lossless().expect_at_rest();
    assert_eq!(tasks.len(), 13);
    for task in tasks {
        let mut told = facts.tasks[&task.id].clone();
        told.location.clear();
        assert_eq!(told, task.expected(exact_spawns), "{task:?}");
    }
    assert_eq!(facts.tasks.len(), tasks.len());
}

fn told_parks(facts: &Facts) -> Vec<[u64; 2]> {
    let of = |worker: &WorkerFacts| [worker.parks, worker.unparks];
    let mut parks: Vec<_> = facts.workers.values().map(of).collect();
    parks.sort_unstable();
    parks
}

/// Each thread is a runtime of its own.
fn expect_two_runtimes(facts: &Facts) {
    let runtimes = facts.metadata.iter().filter_map(|(key, workers)| {
        let name = key.strip_prefix("runtime.")?;
        Some((name.starts_with("tokio-"), workers.as_str()))
    });
    let mut runtimes: Vec<_> = runtimes.collect();
    runtimes.sort_unstable();
    assert_eq!(runtimes, [(true, "0"), (true, "1")]);
}

#[test]
fn of_a_plain_build() {
    let (tasks, parks, facts) = recorded(Build::Plain);
    expect_tasks(&tasks, &facts, true);
    expect_two_runtimes(&facts);
    assert_eq!(told_parks(&facts), parks);
    assert!(parks.iter().all(|[parks, _]| *parks > 10), "{parks:?}");
}

#[test]
fn of_a_merged_build() {
    let (tasks, parks, facts) = recorded(Build::Merged);
    expect_tasks(&tasks, &facts, true);
    assert_eq!(told_parks(&facts), parks);
}

/// The park function is told by what it expects.
#[test]
fn of_a_stripped_build() {
    let (tasks, parks, facts) = recorded(Build::Stripped);
    expect_tasks(&tasks, &facts, false);
    expect_two_runtimes(&facts);
    assert_eq!(told_parks(&facts), parks);
    assert!(!facts.metadata.contains_key("dial9-bpf.absent.park"));
}
