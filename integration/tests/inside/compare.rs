//! Two recordings of one program, event by event.
//!
//! In: what dial9 recorded inside and what we did outside, of the same time. Out: each
//! difference, and how much was compared. Never: a tolerance. What the two see
//! differently by their construction has a rule here, and is counted.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt::Debug,
};

use crate::{
    places,
    read::{Park, Recording, Thread},
    wakes,
};

/// The runtime of the program that is one; the others are current-thread ones.
const MULTI_THREAD: &str = "inside-0";

/// What was compared.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) polls: usize,
    /// Merged.
    pub(crate) parks: usize,
    /// Pairs of hooks.
    pub(crate) hooks: usize,
    /// Those with several parks of ours between them.
    pub(crate) loops: usize,
    pub(crate) spawns: usize,
    pub(crate) ends: usize,
    /// Tasks with a place of their spawn outside, and those with several.
    pub(crate) placed: usize,
    pub(crate) of_several: usize,
    /// Wakes with a twin.
    pub(crate) wakes: usize,
    /// Inside only: calls that Tokio did not get, since it had been woken already.
    pub(crate) superfluous: usize,
    /// Outside only: Tokio called by the poll that took over a racing wake.
    pub(crate) taken_over: usize,
    /// Wakes by a thread that is no worker, of those with a twin.
    pub(crate) from_outside: usize,
    /// Wakes by a worker that we do not know as one yet, of those with a twin.
    pub(crate) before_known: usize,
    /// Wakes by a worker's loop, of those with a twin: no task's.
    pub(crate) outside_polls: usize,
    /// Wakes by the runtime within a poll: to us that task's, to dial9 the loop's.
    pub(crate) at_the_end_of_a_poll: usize,
    /// Outside only: wakes of tasks that dial9 does not wrap.
    pub(crate) unwrapped: usize,
    /// What is not equal.
    pub(crate) differences: usize,
    /// The first of them.
    pub(crate) first: Vec<String>,
}

/// Compares everything.
pub(crate) fn compare(inside: &Recording, outside: &Recording) -> Tally {
    let mut tally = Tally::default();
    polls(inside, outside, &mut tally);
    parks(inside, outside, &mut tally);
    wakes::compare(inside, outside, &mut tally);
    spawns(inside, outside, &mut tally);
    ends(inside, outside, &mut tally);
    places::compare(inside, outside, &mut tally);
    let [one, other] = [inside, outside].map(|of| of.runtimes.values().collect::<BTreeSet<_>>());
    tally.equal("the workers of the runtimes", &one, &other);
    tally
}

/// Differences that are told.
const TOLD: usize = 20;

impl Tally {
    pub(crate) fn differ(&mut self, what: impl FnOnce() -> String) {
        self.differences += 1;
        if self.first.len() < TOLD {
            self.first.push(what());
        }
    }

    pub(crate) fn equal<T: PartialEq + Debug>(&mut self, what: &str, inside: &T, outside: &T) {
        if inside != outside {
            self.differ(|| format!("{what}: inside {inside:?}, outside {outside:?}"));
        }
    }
}

pub(crate) fn by<K: Ord, T>(
    all: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> BTreeMap<K, Vec<T>> {
    let mut groups = BTreeMap::<K, Vec<T>>::new();
    for one in all {
        groups.entry(key(&one)).or_default().push(one);
    }
    groups
}

/// The groups of both sides; those that only one has are given with nothing.
pub(crate) fn both<K: Ord + Copy, T>(
    inside: &BTreeMap<K, Vec<T>>,
    outside: &BTreeMap<K, Vec<T>>,
    mut each: impl FnMut(K, &[T], &[T]),
) {
    for (key, ours) in inside {
        each(*key, ours, outside.get(key).map_or(&[], Vec::as_slice));
    }
    for (key, theirs) in outside {
        if !inside.contains_key(key) {
            each(*key, &[], theirs);
        }
    }
}

/// The n-th poll of each task is the same one: Tokio's hooks run before and after the
/// call that we see, on its thread.
fn polls(inside: &Recording, outside: &Recording, tally: &mut Tally) {
    let [one, other] = [inside, outside].map(|of| by(of.polls.iter().copied(), |poll| poll.task));
    both(&one, &other, |task, inside, outside| {
        tally.equal(&format!("polls of {task}"), &inside.len(), &outside.len());
        for (inside, outside) in inside.iter().zip(outside) {
            tally.polls += 1;
            let is_within = inside.start <= outside.start && outside.end <= inside.end;
            if inside.thread != outside.thread || !is_within {
                tally.differ(|| format!("a poll: inside {inside:?}, outside {outside:?}"));
            }
        }
    });
}

/// What a worker does one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Polls(u64),
    /// From the first park, unless that was before, to the last coming back, unless
    /// that is after.
    Sleeps {
        from: Option<u64>,
        to: Option<u64>,
    },
}

/// Polls and parks of each worker, parks without a poll between them as one: the hook
/// runs once for a park, which in `Context::park` (`multi_thread/worker.rs`) is a loop
/// around the call that we see.
fn turns(of: &Recording) -> BTreeMap<Thread, Vec<Turn>> {
    let polls = of.polls.iter();
    let polls = polls.map(|poll| (poll.start, poll.thread, Turn::Polls(poll.task)));
    let parks = of.parks.iter().map(|park| {
        let turn = Turn::Sleeps {
            from: park.parks.then_some(park.at),
            to: (!park.parks).then_some(park.at),
        };
        (park.at, park.thread, turn)
    });
    let mut all: Vec<_> = polls.chain(parks).collect();
    all.sort_by_key(|(at, ..)| *at);
    let mut turns = BTreeMap::<Thread, Vec<Turn>>::new();
    for (_, thread, turn) in all {
        let turns = turns.entry(thread).or_default();
        match (turns.last_mut(), turn) {
            (Some(Turn::Sleeps { to: last, .. }), Turn::Sleeps { to, .. }) => *last = to,
            _ => turns.push(turn),
        }
    }
    turns
}

/// Each worker's polls and parks follow each other in the same order. The multi-thread
/// scheduler calls what we see between its hooks: at least once, and never elsewhere.
/// In the current-thread scheduler we see the function that calls the hooks, around them.
fn parks(inside: &Recording, outside: &Recording, tally: &mut Tally) {
    let many = &inside.runtimes[MULTI_THREAD];
    let is_multi = |thread: Thread| thread.is_some_and(|tid| many.contains(&tid));
    both(
        &turns(inside),
        &turns(outside),
        |thread, inside, outside| {
            let what = format!("polls and merged parks of {thread:?}");
            tally.equal(&what, &inside.len(), &outside.len());
            let is_sleep = |turn: &&Turn| matches!(turn, Turn::Sleeps { .. });
            tally.parks += inside.iter().filter(is_sleep).count();
            for (inside, outside) in inside.iter().zip(outside) {
                let agree = if is_multi(thread) {
                    is_around(inside, outside)
                } else {
                    is_around(outside, inside)
                };
                if !agree {
                    tally.differ(|| format!("{thread:?}: inside {inside:?}, outside {outside:?}"));
                }
            }
        },
    );
    let [one, other] = [inside, outside].map(|of| by(of.parks.iter().copied(), |park| park.thread));
    both(&one, &other, |thread, inside, outside| {
        let [inside, outside] = [inside, outside].map(|parks| sleeps(parks, tally));
        tally.hooks += inside.len();
        let (around, within) = if is_multi(thread) {
            (inside, outside)
        } else {
            (outside, inside)
        };
        let mut within = within.iter().peekable();
        for (from, to) in around {
            let is_within = |(later, earlier): &&(u64, u64)| from <= *later && *earlier <= to;
            let mut parks = 0;
            while within.next_if(is_within).is_some() {
                parks += 1;
            }
            tally.loops += usize::from(parks > 1);
            if parks == 0 || (parks > 1 && !is_multi(thread)) {
                tally.differ(|| format!("{thread:?}: {parks} parks between {from} and {to}"));
            }
        }
        for one in within {
            tally.differ(|| format!("{thread:?}: a park that is in none: {one:?}"));
        }
    });
}

/// Each park of a worker and its coming back; `u64::MAX` for one that is after, 0 for
/// one that was before.
fn sleeps(parks: &[Park], tally: &mut Tally) -> Vec<(u64, u64)> {
    let mut sleeps = Vec::new();
    let mut from = Some(0);
    for park in parks {
        match (park.parks, from) {
            (true, None | Some(0)) => from = Some(park.at),
            (false, Some(begin)) => {
                sleeps.push((begin, park.at));
                from = None;
            }
            _ => tally.differ(|| format!("the same twice: {park:?}")),
        }
    }
    sleeps.extend(from.map(|begin| (begin, u64::MAX)));
    sleeps
}

fn is_around(outer: &Turn, inner: &Turn) -> bool {
    let is_before = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (Some(one), Some(other)) => one <= other,
        (None, None) => true,
        _ => false,
    };
    match (*outer, *inner) {
        (Turn::Polls(one), Turn::Polls(other)) => one == other,
        (
            Turn::Sleeps { from, to },
            Turn::Sleeps {
                from: later,
                to: earlier,
            },
        ) => is_before(from, later) && is_before(earlier, to),
        _ => false,
    }
}

/// Tokio binds a task, which we see, and then runs the hook.
fn spawns(inside: &Recording, outside: &Recording, tally: &mut Tally) {
    let [one, other] =
        [inside, outside].map(|of| by(of.spawns.iter().copied(), |spawn| spawn.task));
    both(&one, &other, |task, inside, outside| {
        tally.spawns += 1;
        let agree = match (inside, outside) {
            ([inside], [outside]) => outside.at <= inside.at && inside.thread == outside.thread,
            _ => false,
        };
        if !agree {
            tally.differ(|| format!("the spawn of {task}: inside {inside:?}, outside {outside:?}"));
        }
    });
}

/// We see the end in `Harness::complete`, and the hook runs later there. It runs for
/// the closures of the blocking pool too, which are events of their own with us.
fn ends(inside: &Recording, outside: &Recording, tally: &mut Tally) {
    let inside_ends = inside
        .ends
        .iter()
        .filter(|(_, task)| !outside.closures.contains(task));
    let one = by(inside_ends.copied(), |(_, task)| *task);
    let other = by(outside.ends.iter().copied(), |(_, task)| *task);
    both(&one, &other, |task, inside, outside| {
        tally.ends += 1;
        let agree = match (inside, outside) {
            ([(inside, _)], [(outside, _)]) => outside <= inside,
            _ => false,
        };
        if !agree {
            tally.differ(|| format!("the end of {task}: inside {inside:?}, outside {outside:?}"));
        }
    });
    let closures: HashSet<u64> = inside
        .ends
        .iter()
        .map(|(_, task)| *task)
        .filter(|task| outside.closures.contains(task))
        .collect();
    tally.equal("closures", &closures.len(), &outside.closures.len());
}
