//! The same polls, wakes and parks as dial9's own recorder, which is inside the program.
//!
//! In: a program of over a million polls that dial9 records from within while we do from
//! without. Out: for every poll its twin, on the same thread, and within the other's
//! time: Tokio's hooks run just around it; the same of wakes, parks, spawns, ends and
//! places of spawns.
//! Never: a tolerance.
//!
//! What the two see differently by their construction, each with its rule in `compare` or
//! `wakes`:
//!
//! - dial9 counts calls of its own wakers, we those of Tokio's: a second wake before the
//!   next poll does not get there.
//! - dial9 takes a worker's loop for a task that wakes. We take the end of a poll for its
//!   task's, also where the runtime wakes who awaits the task.
//! - A wake by a worker that has neither polled nor come back from a park since we are
//!   there is no worker's to us.
//! - We see a task's spawn and end before the hooks, and a multi-thread worker's park
//!   between them, as often as Tokio parks there; a current-thread one's around them.
//!
//! Not compared, for lack of the other side: polls in a `LocalSet` and closures of the
//! blocking pool (no hooks), wakes of tasks that dial9 does not wrap, and
//! `block_in_place`, after which dial9's events of a worker are not always pairs.

mod compare;
mod places;
mod read;
mod wakes;

use std::collections::BTreeSet;

use compare::{Tally, compare};
use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, require_root, segment::sealed_segments,
};
use read::{Poll, Recording};
use rustix::time::{ClockId, clock_gettime};

const POLLS: usize = 1_000_000;

#[test]
fn in_a_multi_thread_runtime() {
    let [inside, outside] = recorded(&[100]);
    let tally = assert_agrees(&inside, &outside);
    assert!(tally.polls >= POLLS, "{tally:?}");
}

/// They work at the same time, and each has its own workers.
#[test]
fn in_runtimes_of_both_kinds() {
    let [inside, outside] = recorded(&[10, 10, 1]);
    assert_agrees(&inside, &outside);
    let workers: Vec<_> = inside.runtimes.values().map(BTreeSet::len).collect();
    assert_eq!(workers, [2, 1, 1]);
}

fn assert_agrees(inside: &Recording, outside: &Recording) -> Tally {
    assert_eq!(inside.metadata["tokio.poll_coverage"], "all");
    let tally = compare(inside, outside);
    assert_eq!(tally.differences, 0, "{tally:#?}");
    let compared = [
        tally.polls,
        tally.parks,
        tally.wakes,
        tally.from_outside,
        tally.spawns,
        tally.ends,
        tally.placed,
    ];
    assert!(!compared.contains(&0), "{tally:?}");
    tally
}

/// One event that is missing, one too many, and one at another time or place.
#[test]
fn any_difference_is_seen() {
    type Damage = fn(&mut Recording, &Recording);
    let [inside, outside] = recorded(&[2]);
    assert_agrees(&inside, &outside);
    let damages: [(&str, Damage); 11] = [
        ("a poll is missing", |of, _| _ = of.polls.remove(5_000)),
        ("a poll is there twice", |of, _| {
            of.polls.insert(5_000, of.polls[5_000]);
        }),
        ("a poll begins early", |of, inside| {
            of.polls[5_000].start = around(&of.polls[5_000], inside).start - 1;
        }),
        ("a poll ends late", |of, inside| {
            of.polls[5_000].end = around(&of.polls[5_000], inside).end + 1;
        }),
        ("a poll is elsewhere", |of, _| {
            let here = of.polls[5_000].thread;
            let elsewhere = of.polls.iter().find(|poll| poll.thread != here);
            of.polls[5_000].thread = elsewhere.expect("there are two workers").thread;
        }),
        ("a park is missing", |of, _| _ = of.parks.remove(50)),
        ("a wake is missing", |of, _| {
            let index = wrapped_wake(of);
            of.wakes.remove(index);
        }),
        ("a wake is there twice", |of, _| {
            let index = wrapped_wake(of);
            of.wakes.insert(index, of.wakes[index]);
        }),
        ("a spawn is missing", |of, _| _ = of.spawns.remove(100)),
        ("an end is missing", |of, _| _ = of.ends.remove(100)),
        ("a place is another", |of, inside| {
            let placed = of
                .places
                .iter_mut()
                .find(|(task, ours)| inside.places.get(task) == Some(ours));
            placed.expect("one has a place").1.push('0');
        }),
    ];
    for (what, damage) in damages {
        let mut outside = outside.clone();
        // Ours has the wakes of all tasks.
        outside.wrapped.clone_from(&inside.wrapped);
        damage(&mut outside, &inside);
        let tally = compare(&inside, &outside);
        assert!(tally.differences > 0, "{what}, and nobody says so");
    }
}

/// dial9's twin of a poll.
fn around(poll: &Poll, inside: &Recording) -> Poll {
    let is_twin = |other: &&Poll| {
        other.task == poll.task && other.start <= poll.start && poll.end <= other.end
    };
    *(inside.polls.iter().find(is_twin)).expect("it has one")
}

/// A wake, in the midst of the work, of a task that dial9 wraps.
fn wrapped_wake(of: &Recording) -> usize {
    let wakes = of.wakes.iter().skip(of.wakes.len() / 2);
    let before = wakes.take_while(|wake| !of.wrapped.contains(&wake.woken));
    of.wakes.len() / 2 + before.count()
}

/// Both recordings of one run with so much work in each runtime, from its begin to its
/// end.
fn recorded(percents: &[u32]) -> [Recording; 2] {
    require_root();
    let output = output_dir();
    let within = output_dir();
    let mut program = TestProgram::start_with("inside", Build::Plain, |command| {
        let percents = percents.iter().map(u32::to_string);
        command.arg(within.path()).args(percents);
    });
    let tracer = Attach::to(program.pid(), output.path()).attached();
    let from = now_ns();
    program.ask("go", "done");
    let to = now_ns();
    tracer.interrupt().expect(0);
    assert!(program.exit().success());

    Facts::of_dir(output.path())
        .expect_lossless()
        .expect_at_rest();
    let outside = read::recording(&sealed_segments(output.path()));
    let all = outside.polls.len();
    let outside = outside.within(from, to);
    assert_eq!(outside.polls.len(), all, "it was at rest before and after");
    let inside = read::recording(&[within.path().join("inside.0.bin")]).within(from, to);
    [inside, outside]
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(ns).expect("it has not run for 500 years")
}
