//! What a context switch pays for the scheduler's programs.
//!
//! `cargo xtask bench --only sched` runs it, as root. Two threads of this process on one
//! CPU wake each other in turns by a pair of pipes: each turn is two switches and two
//! wakes. In every round every variant is attached once, in shuffled order: nothing,
//! empty programs at the tracepoints, ours for another process, ours for this one; and these
//! two once more with the profile, whose clock the kernel starts and stops at switches.
//! Turns are timed in batches of a few ms, and of a variant's batches the fastest tenth
//! counts: whatever else runs on the machine makes a batch slower and none faster. Figures
//! are medians over the rounds of what a variant added to a switch of the bare one of the
//! same round; the ratio is the median of the rounds' own, with its quartiles, which tell
//! whether the machine is quiet enough to judge it.
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::{
    io::{PipeReader, PipeWriter, Read as _, Write as _, pipe},
    process, thread,
    time::{Duration, Instant},
};

use dial9_bpf_attach::{Abilities, Options, Target, Tracer, baseline::TracepointBaseline};
use dial9_bpf_integration::{Build, TestProgram, require_root, rounds};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Rounds when none are asked for.
const ROUNDS: usize = 40;
/// Turns that are timed at a time, some 2 ms.
const TURNS: u32 = 400;
/// Times, of each variant in a round.
const BATCHES: usize = 100;
/// Batches of which the slowest counts.
const FASTEST: usize = BATCHES / 10;
/// Room for the records of a run, bytes.
const RING_BYTES: u64 = 32 << 20;
/// CPU of both threads.
const CPU: usize = 1;
const VARIANTS: [Variant; 7] = [
    Variant::Bare,
    Variant::EmptySwitch,
    Variant::Empty,
    Variant::Untraced,
    Variant::Traced,
    Variant::UntracedProfile,
    Variant::TracedProfile,
];

/// What is attached while the threads take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Bare,
    /// An empty program at switches.
    EmptySwitch,
    /// Empty programs at switches and at wakes.
    Empty,
    /// Ours, and the threads are not the target's.
    Untraced,
    /// Ours, and they are.
    Traced,
    /// The same two, with the profile of the target.
    UntracedProfile,
    TracedProfile,
}

fn main() {
    require_root();
    let rounds = rounds(ROUNDS);
    let other = TestProgram::start("idle_std", Build::Plain);
    let mut costs = [const { Vec::new() }; VARIANTS.len()];
    for round in 0..rounds {
        let mut added = [0.0; VARIANTS.len()];
        for index in 0..VARIANTS.len() {
            let index = (index + round) % VARIANTS.len();
            added[index] = with(VARIANTS[index], other.pid());
        }
        let bare = added[0];
        for (costs, added) in costs.iter_mut().zip(added) {
            costs.push(added - bare);
        }
        costs[0][round] = bare;
    }
    assert!(other.exit().success());
    let mut ratios: Vec<f64> = costs[3].iter().zip(&costs[2]).map(|(a, b)| a / b).collect();
    let [
        bare,
        switch,
        empty,
        untraced,
        traced,
        untraced_profile,
        traced_profile,
    ] = costs.map(|mut values| quartiles(&mut values)[1]);
    println!("\nbare: {bare:.0} ns a switch, with half of a turn's pipes\n");
    println!("added to a switch and its wake, ns, median of {rounds}\n");
    println!("empty program at switches           {switch:>6.0}");
    println!("empty programs at switches, wakes   {empty:>6.0}");
    let [low, middle, high] = quartiles(&mut ratios);
    println!(
        "ours, of another process            {untraced:>6.0}   {middle:.3} of empty, quartiles {low:.3} and {high:.3} (limit 1.1)"
    );
    println!("ours, of the target                 {traced:>6.0}   (limit 400)");
    println!(
        "with the profile, of another        {untraced_profile:>6.0}   {:.3} of empty",
        untraced_profile / empty
    );
    println!("with the profile, of the target     {traced_profile:>6.0}");
}

/// ns a switch with a variant attached.
fn with(variant: Variant, other: u32) -> f64 {
    let names: &[&str] = match variant {
        Variant::EmptySwitch => &["sched_switch"],
        Variant::Empty => &["sched_switch", "sched_waking"],
        Variant::Bare => &[],
        Variant::Untraced => return with_ours(other, None),
        Variant::Traced => return with_ours(process::id(), None),
        Variant::UntracedProfile => return with_ours(other, Some(99)),
        Variant::TracedProfile => return with_ours(process::id(), Some(99)),
    };
    let _links = TracepointBaseline::attach(names).expect("the kernel has BTF");
    switch_ns()
}

fn with_ours(pid: u32, profile_hz: Option<u32>) -> f64 {
    let target = Target::open(pid).expect("it runs");
    let options = Options {
        sched: true,
        profile_hz,
        ..Options::bare(
            RING_BYTES,
            Abilities::probe(None).expect("the kernel can do it"),
        )
    };
    let mut tracer = Tracer::load(&target, options).expect("the programs load");
    assert!(tracer.tells_waits());
    tracer
        .attach(&target, &[])
        .expect("there is nothing to refuse");
    let cost = switch_ns();
    let losses = tracer.losses().expect("they can be read");
    assert!(losses.is_empty(), "a lost hit costs less: {losses:?}");
    cost
}

/// Two threads wake each other.
fn switch_ns() -> f64 {
    let [(mut here, to_here), (there, mut to_there)] =
        [pipe(), pipe()].map(|pipe| pipe.expect("pipes can be had"));
    let other = thread::spawn(move || answer(there, to_here));
    pin();
    turns(&mut here, &mut to_there, TURNS);
    let mut batches: Vec<Duration> = (0..BATCHES)
        .map(|_| {
            let begin = Instant::now();
            turns(&mut here, &mut to_there, TURNS);
            begin.elapsed()
        })
        .collect();
    drop(to_there);
    other.join().expect("it does not panic");
    batches.sort();
    batches[FASTEST].as_secs_f64() * 1e9 / f64::from(2 * TURNS)
}

fn turns(here: &mut PipeReader, to_there: &mut PipeWriter, turns: u32) {
    for _ in 0..turns {
        to_there.write_all(&[0]).expect("it listens");
        here.read_exact(&mut [0]).expect("it answers");
    }
}

fn answer(mut there: PipeReader, mut to_here: PipeWriter) {
    pin();
    while there.read_exact(&mut [0]).is_ok() {
        to_here.write_all(&[0]).expect("it is waited for");
    }
}

fn pin() {
    let mut cpus = CpuSet::new();
    cpus.set(CPU);
    sched_setaffinity(None, &cpus).expect("CPU 1 is there");
}

/// First quartile, median, third.
fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
