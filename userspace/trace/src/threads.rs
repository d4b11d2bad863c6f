//! What is known of each thread: open polls, workers, CPU time.
//!
//! In: thread ids and stack pointers. Out: per-thread state. Never: state for
//! a thread that neither polls nor parks, so that a churning blocking pool
//! costs nothing.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::location::LocationId;

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
    /// parked: a worker's own loop.
    WorkerLoop,
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
    /// Worker ids by nesting depth of task polls.
    workers: Vec<u32>,
    /// Task polls among `open`.
    pub(crate) depth: usize,
    /// Time of the last record.
    pub(crate) last_ns: u64,
    /// Largest CPU time seen.
    pub(crate) cpu_ns: u64,
    /// Last park event written.
    pub(crate) side: Option<ParkSide>,
    pub(crate) gap: Option<PendingGap>,
    /// No poll start since the last gap.
    pub(crate) is_after_gap: bool,
}

impl Thread {
    /// The worker that polls at `depth`; given at the first call.
    pub(crate) fn worker_at(&mut self, depth: usize, next: &mut WorkerIds) -> u32 {
        while self.workers.len() <= depth {
            self.workers.push(next.give());
        }
        self.workers[depth]
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

    /// The worker that the thread is at this moment, if it is one.
    pub(crate) fn current_worker(&self) -> Option<u32> {
        self.workers.get(self.depth.saturating_sub(1)).copied()
    }

    /// Marks the closures around this point as worker loops.
    pub(crate) fn mark_worker_loops(&mut self) {
        for poll in self.open.iter_mut().rev() {
            match poll.work {
                Work::Closure { .. } => poll.work = Work::WorkerLoop,
                Work::Task { .. } | Work::WorkerLoop => break,
            }
        }
    }

    /// Whether nothing about the thread is worth keeping.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.workers.is_empty() && self.gap.is_none()
    }
}

/// Gives worker ids: dense from 0, without the two that dial9 reserves.
#[derive(Debug, Default)]
pub(crate) struct WorkerIds {
    next: u32,
}

impl WorkerIds {
    fn give(&mut self) -> u32 {
        let id = self.next;
        self.next = if id == 253 { 256 } else { id + 1 };
        id
    }

    /// Every id given.
    pub(crate) fn given(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.next).filter(|id| !matches!(id, 254 | 255))
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
        let (open, workers) = (
            std::mem::take(&mut thread.open),
            std::mem::take(&mut thread.workers),
        );
        *thread = Thread {
            open,
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
        let mut ids = WorkerIds::default();
        let given: Vec<u32> = (0..300).map(|_| ids.give()).collect();
        assert_eq!(given, ids.given().collect::<Vec<_>>());
        assert_eq!(&given[252..256], [252, 253, 256, 257]);
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
