//! Counters of runtimes.
//!
//! In: a program whose runtimes stand still with known queues, and what Tokio itself
//! says of them. Out: equal numbers. Never: a tolerance.

use std::{collections::BTreeMap, fs};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, require_root, segment::SampleFacts,
};

/// What Tokio said of a runtime that stood still.
struct Held {
    /// Tasks in the global queue, tasks alive.
    counts: [u64; 2],
    /// Since when and until when, ns.
    from: u64,
    to: u64,
}

fn read_held(line: &str) -> Held {
    let mut numbers = line
        .split('\t')
        .map(|field| field.parse().expect("a number"));
    let [global, alive, from, to] = [(); 4].map(|()| numbers.next().expect("four numbers"));
    Held {
        counts: [global, alive],
        from,
        to,
    }
}

fn recorded(build: Build) -> (Vec<Held>, Facts) {
    require_root();
    let output = output_dir();
    let told = output.path().join("told.tsv");
    let mut program = TestProgram::start_with("queues", build, |command| {
        command.arg(&told);
    });
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("hold", "held");
    program.say("end");
    assert!(program.exit().success());
    tracer.outcome().expect(0);
    let told = fs::read_to_string(told).expect("it is written");
    let held = told.lines().map(read_held).collect();
    (held, Facts::of_dir(output.path()))
}

fn expect_equal(held: &[Held], facts: &Facts) {
    facts.expect_lossless();
    let during = |held: &Held| held.from..held.to;
    let mut by_runtime = BTreeMap::<&str, Vec<[u64; 2]>>::new();
    for sample in &facts.samples {
        let SampleFacts {
            at_ns,
            runtime,
            global_queue,
            alive_tasks,
        } = sample;
        let is_still = held.iter().all(|held| during(held).contains(at_ns));
        if is_still {
            let counts = by_runtime.entry(runtime).or_default();
            counts.push([*global_queue, *alive_tasks]);
        }
    }
    let mut told: Vec<[u64; 2]> = Vec::new();
    for (runtime, mut counts) in by_runtime {
        assert!(runtime.starts_with("tokio-"), "{runtime}");
        counts.dedup();
        assert_eq!(counts.len(), 1, "{runtime}: {counts:?}");
        told.extend(counts);
    }
    told.sort_unstable();
    let mut true_ones: Vec<_> = held.iter().map(|held| held.counts).collect();
    true_ones.sort_unstable();
    assert_eq!(told, true_ones);
    assert!(
        true_ones
            .iter()
            .all(|[global, alive]| (1..*alive).contains(global))
    );
    expect_cycles(&facts.samples);
}

/// All runtimes of a cycle have one time, and cycles are 10 ms apart.
fn expect_cycles(samples: &[SampleFacts]) {
    let mut cycles = BTreeMap::<u64, Vec<&str>>::new();
    for sample in samples {
        cycles
            .entry(sample.at_ns)
            .or_default()
            .push(&sample.runtime);
    }
    assert!(cycles.values().any(|runtimes| runtimes.len() == 2));
    let times: Vec<_> = cycles.keys().collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 10_000_000));
}

#[test]
fn of_a_plain_build() {
    let (held, facts) = recorded(Build::Plain);
    expect_equal(&held, &facts);
    assert!(
        !facts
            .metadata
            .contains_key("dial9-bpf.absent.runtime-metrics")
    );
}

#[test]
fn of_a_stripped_build() {
    let (held, facts) = recorded(Build::Stripped);
    expect_equal(&held, &facts);
}

#[test]
fn of_an_unoptimized_build() {
    let (held, facts) = recorded(Build::Unoptimized);
    expect_equal(&held, &facts);
}
