//! The wakes of two recordings of one program.
//!
//! In: what dial9 recorded inside and what we did outside. Out: each difference. Never: a
//! wake that is nobody's twin without the reason.
//!
//! dial9 gives the futures that it wraps a waker of its own: it records the call, then
//! calls Tokio's waker, which is what we see. So the two are twins if ours comes after
//! dial9's and before the thread's next wake of that task. Between the two is an
//! `AtomicWaker` (futures-core), which holds Tokio's waker once for each poll, so that not
//! every call has a twin: see [`is_superfluous`] and [`is_taken_over`].

use std::collections::{BTreeMap, HashMap};

use crate::{
    compare::{Tally, both, by},
    read::{Poll, Recording, Thread, Wake},
};

type Polls<K> = BTreeMap<K, Vec<Poll>>;

/// A call that dial9 recorded, and a time when it was over.
#[derive(Clone, Copy, Debug)]
struct Call {
    wake: Wake,
    over: u64,
}

/// Who is whose twin.
#[derive(Debug, Default)]
struct Pairs {
    /// By task, dial9's first.
    twins: HashMap<u64, Vec<(Wake, Wake)>>,
    inside: Vec<Call>,
    outside: Vec<Wake>,
}

/// Compares the wakes of the tasks that dial9 wraps.
pub(crate) fn compare(inside: &Recording, outside: &Recording, tally: &mut Tally) {
    let polls = by(inside.polls.iter().copied(), |poll| poll.task);
    let pairs = Pairs::of(inside, outside);
    tally.unwrapped += outside
        .wakes
        .iter()
        .filter(|wake| !inside.wrapped.contains(&wake.woken))
        .count();
    wakers(inside, &polls, &pairs, tally);
    let mut taken_over = Vec::new();
    for wake in &pairs.outside {
        let polls = polls_of(&polls, wake.woken);
        if is_taken_over(wake, &pairs, polls) {
            tally.taken_over += 1;
            taken_over.extend(last_begun(polls, wake.at).map(|index| (*wake, polls[index].start)));
        } else {
            tally.differ(|| format!("a wake without a twin: outside {wake:?}"));
        }
    }
    for call in &pairs.inside {
        let task = call.wake.woken;
        if is_superfluous(call, pairs.twins_of(task), polls_of(&polls, task)) {
            tally.superfluous += 1;
        } else if let Some(index) = taken_over.iter().position(|over| is_in_place(call, *over)) {
            taken_over.swap_remove(index);
        } else {
            tally.differ(|| format!("a wake without a twin: inside {call:?}"));
        }
    }
}

impl Pairs {
    fn of(inside: &Recording, outside: &Recording) -> Self {
        // We learn that a thread is a worker from its first poll, or from its coming back
        // from a park: which is after the wakes by the driver that it was parked on.
        let known = moments(outside);
        let is_known = |call: &Wake| known.get(&call.thread).is_some_and(|at| at[0] < call.at);
        let theirs = by(inside.wakes.iter().copied(), |call| {
            (call.woken, call.thread.filter(|_| is_known(call)))
        });
        let is_wrapped = |wake: &&Wake| inside.wrapped.contains(&wake.woken);
        let ours = outside.wakes.iter().filter(is_wrapped).copied();
        let ours = by(ours, |wake| (wake.woken, wake.thread));

        let moments = moments(inside);
        let over = |call: &Wake, next: u64| {
            let moments = moments.get(&call.thread).map_or(&[][..], Vec::as_slice);
            let after = moments.partition_point(|at| *at <= call.at);
            moments.get(after).map_or(next, |at| next.min(*at))
        };
        let mut pairs = Self::default();
        both(&theirs, &ours, |(task, _), inside, outside| {
            let mut outside = outside.iter().copied().peekable();
            for (index, call) in inside.iter().enumerate() {
                let next = inside.get(index + 1).map_or(u64::MAX, |next| next.at);
                while let Some(early) = outside.next_if(|wake| wake.at < call.at) {
                    pairs.outside.push(early);
                }
                match outside.next_if(|wake| wake.at < next) {
                    Some(twin) => pairs.twins.entry(task).or_default().push((*call, twin)),
                    None => pairs.inside.push(Call {
                        wake: *call,
                        over: over(call, next),
                    }),
                }
            }
            pairs.outside.extend(outside);
        });
        for twins in pairs.twins.values_mut() {
            twins.sort_by_key(|(call, _)| call.at);
        }
        pairs
    }

    fn twins_of(&self, task: u64) -> &[(Wake, Wake)] {
        self.twins.get(&task).map_or(&[], Vec::as_slice)
    }
}

fn polls_of(polls: &Polls<u64>, task: u64) -> &[Poll] {
    polls.get(&task).map_or(&[], Vec::as_slice)
}

/// Twins name the same waking task. Outside of tasks' own code dial9 names the worker's
/// loop, which is a closure of the blocking pool and has an id like a task's, and we name
/// none; but where the runtime wakes who awaits a task that has just ended, we name that
/// task, since its poll is not over.
fn wakers(inside: &Recording, polls: &Polls<u64>, pairs: &Pairs, tally: &mut Tally) {
    let by_worker = by(inside.polls.iter().copied(), |poll| poll.thread);
    let mut loops = HashMap::new();
    for (call, twin) in pairs.twins.values().flatten() {
        tally.wakes += 1;
        tally.from_outside += usize::from(call.thread.is_none());
        tally.before_known += usize::from(call.thread != twin.thread);
        let waker = if polls.contains_key(&call.waker) {
            call.waker
        } else if let Some(poll) = open_poll(&by_worker, call) {
            tally.at_the_end_of_a_poll += 1;
            poll.task
        } else {
            tally.outside_polls += 1;
            let id = *loops.entry(call.thread).or_insert(call.waker);
            tally.equal("the id of a worker's loop", &call.waker, &id);
            0
        };
        if waker != twin.waker {
            tally.differ(|| format!("a waker: inside {call:?}, outside {twin:?}"));
        }
    }
}

/// The poll that the worker of `wake` is in.
fn open_poll<'a>(polls: &'a Polls<Thread>, wake: &Wake) -> Option<&'a Poll> {
    wake.thread?;
    let polls = polls.get(&wake.thread)?;
    let poll = &polls[last_begun(polls, wake.at)?];
    (wake.at <= poll.end).then_some(poll)
}

fn last_begun(polls: &[Poll], at: u64) -> Option<usize> {
    polls
        .partition_point(|poll| poll.start <= at)
        .checked_sub(1)
}

/// When each worker was certainly not in the midst of a call of a waker.
fn moments(of: &Recording) -> BTreeMap<Thread, Vec<u64>> {
    let polls = of.polls.iter();
    let polls = polls.flat_map(|poll| [poll.start, poll.end].map(|at| (poll.thread, at)));
    let mut moments = BTreeMap::<Thread, Vec<u64>>::new();
    for (thread, at) in polls.chain(of.parks.iter().map(|park| (park.thread, park.at))) {
        moments.entry(thread).or_default().push(at);
    }
    for moments in moments.values_mut() {
        moments.sort_unstable();
    }
    moments
}

/// A call finds no waker when another one has taken it, and the task has not been polled
/// since: the poll puts it back. A poll that was open on another thread may not have put
/// it back yet.
fn is_superfluous(call: &Call, twins: &[(Wake, Wake)], polls: &[Poll]) -> bool {
    let Call { wake, over } = call;
    let put_back = last_begun(polls, wake.at).and_then(|index| {
        let poll = polls[index];
        let is_sure = poll.end < wake.at || poll.thread == wake.thread;
        if is_sure {
            Some(index)
        } else {
            index.checked_sub(1)
        }
    });
    let put_back = put_back.map_or(0, |index| polls[index].start);
    let earlier = twins.partition_point(|(before, _)| before.at < *over);
    let mut latest_first = twins[..earlier].iter().rev();
    latest_first.any(|(_, taken)| taken.at > put_back)
}

/// A poll that puts the waker back while a call takes it wakes its own task, in place
/// of that call or besides it: our wake is inside a poll of the task that it wakes,
/// with a call by another thread that is not over when that poll begins.
fn is_taken_over(wake: &Wake, pairs: &Pairs, polls: &[Poll]) -> bool {
    let Some(poll) = last_begun(polls, wake.at).map(|index| polls[index]) else {
        return false;
    };
    let alone = pairs.inside.iter().map(|call| (call.wake, call.over));
    let twins = pairs.twins_of(wake.woken).iter();
    let mut calls = alone.chain(twins.map(|(call, twin)| (*call, twin.at)));
    poll.thread == wake.thread
        && wake.at <= poll.end
        && calls.any(|(wake_of, over)| {
            let call = Call {
                wake: wake_of,
                over,
            };
            is_in_place(&call, (*wake, poll.start))
        })
}

/// Whether a poll that began then may have made this wake in place of a call.
fn is_in_place(call: &Call, (wake, poll_start): (Wake, u64)) -> bool {
    let Call { wake: of, over } = call;
    of.woken == wake.woken && of.thread != wake.thread && of.at < wake.at && poll_start < *over
}
