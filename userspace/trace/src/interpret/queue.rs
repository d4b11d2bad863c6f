//! How deep a worker's queue was at its parks and polls.
//!
//! In: what a record has of a queue, the queues that are known to be some. Out: the
//! depth. Never: one that was read from memory of which that is not known.

use std::collections::BTreeSet;

use dial9_bpf_abi::queue;
use dial9_bpf_abi::record::Park;

use super::Interpreter;
use crate::threads::{Thread, Work};

/// Cores that are remembered until somebody asks.
const MOST_CORES: usize = 64;

/// The queues of the target's workers.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Addresses of those that belong to runtimes whose memory is laid out as known.
    known: BTreeSet<u64>,
    /// Cores whose queues have not been found.
    cores: BTreeSet<u64>,
}

impl Queues {
    /// These are the queues of the runtimes that there are.
    pub(super) fn know(&mut self, queues: impl Iterator<Item = u64>) {
        self.known.clear();
        self.known.extend(queues);
    }

    /// Hands over the cores that parks have told since this was last asked.
    pub(super) fn take_cores(&mut self, each: impl FnMut(u64)) {
        std::mem::take(&mut self.cores).into_iter().for_each(each);
    }

    /// The depth at a park or an unpark; the thread's polls have the same queue until
    /// the next.
    pub(super) fn at_park(&mut self, park: &Park, thread: &mut Thread) -> Option<u32> {
        let (address, depth) = queue::split(park.queue);
        thread.has_queue = self.known.contains(&address);
        if !thread.has_queue && park.core != 0 && self.cores.len() < MOST_CORES {
            self.cores.insert(park.core);
        }
        depth.filter(|_| thread.has_queue)
    }
}

impl Interpreter {
    /// These are the addresses of the queues of workers, as far as they are known.
    pub fn know_queues(&mut self, queues: impl Iterator<Item = u64>) {
        self.queues.know(queues);
    }

    /// Addresses of workers' cores whose queues have not been found, since this was last
    /// asked.
    pub fn take_cores(&mut self, each: impl FnMut(u64)) {
        self.queues.take_cores(each);
    }
}

/// The index or address that a poll's record has, and the depth: of an outermost poll,
/// since in what runs inside another one the thread may have given its worker away.
pub(super) fn at_poll(word: u64, thread: &Thread) -> Option<u32> {
    let is_loop = |work: Work| matches!(work, Work::WorkerLoop { .. });
    let is_outermost = thread.open.iter().all(|poll| is_loop(poll.work));
    let (_, depth) = queue::split(word);
    depth.filter(|_| thread.has_queue && is_outermost)
}
