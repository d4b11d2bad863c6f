//! What is known of each thread: open polls, workers, CPU time.
//!
//! In: thread ids and stack pointers. Out: per-thread state. Never: state for
//! a thread that neither polls nor parks, so that a churning blocking pool
//! costs nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::fast::RandomState;

use crate::declared::Values;
use crate::location::LocationId;
use crate::metadata::Runtime;

/// A poll that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenPoll {
    /// Stack pointer at the call, bytes; an inner poll has a smaller one.
    pub(crate) sp: u64,
    pub(crate) task_id: u64,
    pub(crate) start_ns: u64,
    pub(crate) work: Work,
}

/// What an open poll runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// A task, on a worker.
    Task { worker: u32 },
    /// A closure of the blocking pool.
    Closure { location: LocationId },
    /// A closure of the blocking pool in which tasks were polled or a worker
    /// parked: a worker's own loop, or one that runs a runtime of its own.
    WorkerLoop { location: LocationId },
}

/// A call of `block_on` that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenBlockOn {
    /// Stack pointer of its function, bytes.
    pub(crate) sp: u64,
    pub(crate) start_ns: u64,
}

/// A call of a declared probe that has not returned.
#[derive(Debug)]
pub(crate) struct OpenCall {
    /// Stack pointer at the function's begin, bytes.
    pub(crate) sp: u64,
    pub(crate) definition: u16,
    pub(crate) start_ns: u64,
    pub(crate) values: Values,
}

/// Hits lost that the thread's next record ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingGap {
    pub(crate) since_ns: u64,
    pub(crate) lost: u64,
}

/// Whether a worker last parked or came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParkSide {
    Park,
    Unpark,
}

/// One thread.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    /// Innermost last.
    pub(crate) open: Vec<OpenPoll>,
    /// Innermost last. Apart from the polls: inlined, one of each may be at the same
    /// stack pointer.
    pub(crate) blocked: Vec<OpenBlockOn>,
    /// Innermost last.
    pub(crate) calls: Vec<OpenCall>,
    /// Room for the values of calls to come.
    pub(crate) spare_values: Vec<Values>,
    /// Worker ids by nesting depth of task polls.
    workers: Vec<u32>,
    /// Task polls among `open`.
    pub(crate) depth: usize,
    /// Time of the last record.
    pub(crate) last_ns: u64,
    /// Largest CPU time seen.
    pub(crate) cpu_ns: u64,
    pub(crate) gap: Option<PendingGap>,
    /// Time in which it could have run and did not since it parked, ns; `None` where that
    /// is not known.
    pub(crate) parked_wait_ns: Option<u64>,
    /// No poll start since the last gap.
    pub(crate) is_after_gap: bool,
    /// Whether the worker that last parked here has a queue that is known.
    pub(crate) has_queue: bool,
}

impl Thread {
    /// The worker that polls at `depth`; given at the first call.
    #[inline]
    pub(crate) fn worker_at(&mut self, depth: usize, workers: &mut Workers) -> u32 {
        while self.workers.len() <= depth {
            self.workers.push(workers.give(self.last_ns));
        }
        let worker = self.workers[depth];
        workers.touch(worker, self.last_ns);
        worker
    }

    /// The thread has left its worker loop: its ids are free.
    pub(crate) fn leave_workers(&mut self, workers: &mut Workers) {
        for worker in self.workers.drain(..) {
            workers.touch(worker, self.last_ns);
            workers.take_back(worker);
        }
    }

    /// The task of the innermost open task poll; 0 without one.
    pub(crate) fn innermost(&self) -> u64 {
        let is_task = |poll: &&OpenPoll| matches!(poll.work, Work::Task { .. });
        self.open
            .iter()
            .rev()
            .find(is_task)
            .map_or(0, |poll| poll.task_id)
    }

    /// The same, or a closure's of the blocking pool.
    pub(crate) fn innermost_or_closure(&self) -> u64 {
        let is_run = |poll: &&OpenPoll| !matches!(poll.work, Work::WorkerLoop { .. });
        let run = self.open.iter().rev().find(is_run);
        run.map_or(0, |poll| poll.task_id)
    }

    /// The worker that the thread is at this moment, if it is one.
    pub(crate) fn current_worker(&self) -> Option<u32> {
        self.workers.get(self.depth.saturating_sub(1)).copied()
    }

    /// The worker of its outermost task polls, once it has had one.
    pub(crate) fn first_worker(&self) -> Option<u32> {
        self.workers.first().copied()
    }

    /// Marks the closures around this point as worker loops.
    pub(crate) fn mark_worker_loops(&mut self) {
        for poll in self.open.iter_mut().rev() {
            match poll.work {
                Work::Closure { location } => poll.work = Work::WorkerLoop { location },
                Work::Task { .. } | Work::WorkerLoop { .. } => break,
            }
        }
    }

    /// Whether nothing about the thread is worth keeping.
    pub(crate) fn is_idle(&self) -> bool {
        let Self {
            open,
            blocked,
            calls,
            workers,
            gap,
            cpu_ns,
            ..
        } = self;
        let has_open = !(open.is_empty() && blocked.is_empty() && calls.is_empty());
        !has_open && workers.is_empty() && gap.is_none() && *cpu_ns == 0
    }
}

/// Worker ids: dense from 0, without the two that dial9 reserves, and given
/// again once their thread has left its worker loop.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// By id, the reserved two among them.
    lanes: Vec<Lane>,
    free: BTreeSet<u32>,
}

/// What the trace has of one worker.
#[derive(Debug, Default)]
struct Lane {
    last_ns: u64,
    side: Option<ParkSide>,
    /// Number of the list of tasks that the first of its tasks to end was in, since
    /// the worker has its thread: unique in the target, or 0.
    owner: u64,
    /// Object of the first task that it polled since.
    object: Option<u8>,
}

impl Workers {
    /// The lowest free id whose last event is not after `ts_ns`.
    fn give(&mut self, ts_ns: u64) -> u32 {
        let lanes = &self.lanes;
        let free = self
            .free
            .iter()
            .copied()
            .find(|&id| lanes[id as usize].last_ns <= ts_ns);
        if let Some(id) = free {
            self.free.remove(&id);
            return id;
        }
        while matches!(self.lanes.len(), 254 | 255) {
            self.lanes.push(Lane::default());
        }
        self.lanes.push(Lane::default());
        u32::try_from(self.lanes.len() - 1).expect("fewer workers than 2^32")
    }

    fn take_back(&mut self, worker: u32) {
        self.free.insert(worker);
        let lane = &mut self.lanes[worker as usize];
        (lane.owner, lane.object) = (0, None);
    }

    /// A task that the worker polls is in a list of this number. A `LocalSet` has one
    /// beside its runtime's: the first counts.
    pub(crate) fn own(&mut self, worker: u32, owner: u64) {
        let lane = &mut self.lanes[worker as usize];
        if lane.owner == 0 {
            lane.owner = owner;
        }
    }

    /// Workers by runtime, in the order of Tokio's numbers. Those that it is not known
    /// of are in the one that their object has, or in one of their own.
    pub(crate) fn runtimes(&self) -> Vec<Runtime> {
        let objects: BTreeSet<u8> = self.lanes.iter().filter_map(|lane| lane.object).collect();
        let only_object = objects.first().copied().filter(|_| objects.len() == 1);
        let mut by_owner = BTreeMap::<u64, Vec<u32>>::new();
        for worker in self.given() {
            let lane = &self.lanes[worker as usize];
            let owner = match lane.owner {
                0 => self.only_owner(lane.object.or(only_object)),
                owner => owner,
            };
            by_owner.entry(owner).or_default().push(worker);
        }
        let is_alone = by_owner.len() == 1;
        let runtime = |(owner, workers)| Runtime {
            number: (owner > 0 && !is_alone).then_some(owner),
            workers,
        };
        by_owner.into_iter().map(runtime).collect()
    }

    /// The only owner that an object's workers have; 0 where there is none or several.
    fn only_owner(&self, object: Option<u8>) -> u64 {
        let of_object = |lane: &&Lane| lane.owner > 0 && (lane.object == object);
        let mut owners = self.lanes.iter().filter(of_object).map(|lane| lane.owner);
        let first = owners.next().unwrap_or(0);
        if owners.all(|owner| owner == first) {
            first
        } else {
            0
        }
    }

    #[inline]
    fn touch(&mut self, worker: u32, ts_ns: u64) {
        let lane = &mut self.lanes[worker as usize];
        lane.last_ns = lane.last_ns.max(ts_ns);
    }

    /// Notes a park event. False when it is the worker's second of its kind in
    /// a row.
    pub(crate) fn turn(&mut self, worker: u32, side: ParkSide) -> bool {
        self.lanes[worker as usize].side.replace(side) != Some(side)
    }

    /// The worker polls a task of an object, so that it does not park: what comes back next without a park
    /// before it is none's end. Tokio's `park_yield` may reach the same instruction.
    #[inline]
    pub(crate) fn note_awake(&mut self, worker: u32, object: u8) {
        let lane = &mut self.lanes[worker as usize];
        lane.side.get_or_insert(ParkSide::Unpark);
        lane.object.get_or_insert(object);
    }

    /// Every id given so far.
    pub(crate) fn given(&self) -> impl Iterator<Item = u32> + use<> {
        let end = u32::try_from(self.lanes.len()).expect("fewer workers than 2^32");
        (0..end).filter(|id| !matches!(id, 254 | 255))
    }
}

/// Every thread with state.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    by_tid: HashMap<u32, u32, RandomState>,
    slots: Vec<Thread>,
    free: Vec<u32>,
}

impl Threads {
    #[inline]
    pub(crate) fn get(&mut self, tid: u32) -> Option<&mut Thread> {
        let slot = *self.by_tid.get(&tid)?;
        Some(&mut self.slots[slot as usize])
    }

    /// The thread's state, fresh for a new thread.
    pub(crate) fn enter(&mut self, tid: u32) -> &mut Thread {
        let slot = *self.by_tid.entry(tid).or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.slots.push(Thread::default());
                u32::try_from(self.slots.len() - 1).expect("fewer threads than 2^32")
            })
        });
        let thread = &mut self.slots[slot as usize];
        thread.tid = tid;
        thread
    }

    /// Forgets a thread that [is idle](Thread::is_idle).
    pub(crate) fn forget_if_idle(&mut self, tid: u32) {
        let Some(&slot) = self.by_tid.get(&tid) else {
            return;
        };
        let thread = &mut self.slots[slot as usize];
        if !thread.is_idle() {
            return;
        }
        let Thread {
            open,
            workers,
            calls,
            spare_values,
            ..
        } = std::mem::take(thread);
        *thread = Thread {
            open,
            calls,
            spare_values,
            workers,
            ..Thread::default()
        };
        self.by_tid.remove(&tid);
        self.free.push(slot);
    }

    /// Threads with state, in no order of meaning.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Thread> {
        let by_tid = &self.by_tid;
        self.slots
            .iter_mut()
            .filter(|thread| by_tid.contains_key(&thread.tid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_ids_are_dense_and_skip_the_reserved_two() {
        let mut workers = Workers::default();
        let given: Vec<u32> = (0..300).map(|_| workers.give(0)).collect();
        assert_eq!(given, workers.given().collect::<Vec<_>>());
        assert_eq!(&given[252..256], [252, 253, 256, 257]);
    }

    #[test]
    fn an_id_is_given_again_but_not_to_an_earlier_time() {
        let mut workers = Workers::default();
        let mut thread = Thread {
            last_ns: 5,
            ..Thread::default()
        };
        assert_eq!(
            (
                thread.worker_at(0, &mut workers),
                thread.worker_at(1, &mut workers)
            ),
            (0, 1)
        );
        thread.leave_workers(&mut workers);
        assert_eq!(
            (workers.give(4), workers.give(5), workers.give(6)),
            (2, 0, 1)
        );
    }

    #[test]
    fn an_idle_thread_leaves_its_slot_to_the_next() {
        let mut threads = Threads::default();
        threads.enter(7).is_after_gap = true;
        threads.forget_if_idle(7);
        assert!(threads.get(7).is_none());
        assert!(!threads.enter(8).is_after_gap);
        assert_eq!(threads.slots.len(), 1);
        assert_eq!(threads.iter_mut().count(), 1);
        threads.enter(8).gap = Some(PendingGap {
            since_ns: 1,
            lost: 1,
        });
        threads.forget_if_idle(8);
        assert!(threads.get(8).is_some());
    }
}
