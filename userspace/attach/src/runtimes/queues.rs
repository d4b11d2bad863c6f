//! The run queues of a multi-thread scheduler's workers.
//!
//! In: where a scheduler has its `remotes`, and cores of workers. Out: the addresses of
//! the queues, and where in a core that of its queue is. Never: an offset at which no core
//! was seen to have one of the queues.
//!
//! A queue belongs to a core and to one of the `remotes` (`src/runtime/scheduler/
//! multi_thread/worker.rs`, Tokio 1.24 to 1.54): the same `Arc` is in both, and nothing
//! else in a core has it. So what is found there is it, whatever the version.

use std::fs::File;

use dial9_bpf_abi::queue;

use super::read;

/// A remote: the queue's address, then that of what unparks the worker.
const REMOTE_BYTES: usize = 16;
/// Workers of a runtime whose queues are looked at.
const MOST_WORKERS: usize = 1024;
/// Where a core has the address of its queue, bytes: in all builds without
/// `tokio_unstable`, and in those with it from 1.41 on.
pub(super) const OFFSETS: [u64; 2] = [24, 192];

/// The queues of so many workers, whose remotes are there; none where one does not look
/// like a queue.
pub(super) fn of_remotes(memory: &File, address: u64, workers: u64) -> Option<Vec<u64>> {
    let workers = usize::try_from(workers)
        .ok()
        .filter(|&workers| workers <= MOST_WORKERS)?;
    let mut bytes = vec![0; workers * REMOTE_BYTES];
    if read(memory, address, &mut bytes).ok()? < bytes.len() {
        return None;
    }
    let remotes = bytes.chunks_exact(REMOTE_BYTES);
    let queues = remotes.map(|remote| Some(u64::from_ne_bytes(*remote.first_chunk()?)));
    let is_one = |queue: Option<u64>| queue.filter(|&queue| is_queue(memory, queue));
    queues.map(is_one).collect()
}

/// Where the core has the address of one of the queues.
pub(super) fn offset_in(memory: &File, core: u64, queues: &[u64]) -> Option<u64> {
    OFFSETS.into_iter().find(|offset| {
        let word = words::<1>(memory, core.wrapping_add(*offset));
        word.is_some_and(|[word]| queues.contains(&word))
    })
}

/// Two counts of references, the address of the tasks, and two ends that fit.
fn is_queue(memory: &File, address: u64) -> bool {
    let Some([strong, weak, tasks, head, tail]) = words(memory, address) else {
        return false;
    };
    let [stolen, first] = [head >> 32, head & u64::from(u32::MAX)];
    let is_count = |count| (1..1 << 32).contains(&count);
    is_count(strong)
        && is_count(weak)
        && tasks != 0
        && tasks.is_multiple_of(8)
        && queue::depth(head, tail).is_some()
        && queue::depth(stolen, first).is_some()
}

fn words<const COUNT: usize>(memory: &File, address: u64) -> Option<[u64; COUNT]> {
    let mut bytes = [0; 64];
    let bytes = &mut bytes[..COUNT * 8];
    if read(memory, address, bytes).ok()? < bytes.len() {
        return None;
    }
    let mut words = [0; COUNT];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(*bytes.first_chunk()?);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Memory from address 0 on.
    fn memory(words: &[u64]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for word in words {
            file.write_all(&word.to_ne_bytes()).unwrap();
        }
        file
    }

    /// At 0 the remotes, at 32 a queue, at 72 another one, at 112 a core.
    fn scheduler() -> [u64; 18] {
        [
            32,
            8,
            72,
            8, // remotes
            2,
            1,
            4096,
            7 << 32 | 9,
            12, // a queue that somebody steals from
            2,
            1,
            8192,
            0,
            0, // an empty one
            1,
            1,
            1,
            72, // a core
        ]
    }

    #[test]
    fn a_core_has_the_queue_of_a_remote() {
        let memory = memory(&scheduler());
        let queues = of_remotes(&memory, 0, 2).unwrap();
        assert_eq!(queues, [32, 72]);
        assert_eq!(offset_in(&memory, 112, &queues), Some(24));
        assert_eq!(offset_in(&memory, 104, &queues), None);
        assert_eq!(offset_in(&memory, 112, &[32]), None);
    }

    #[test]
    fn what_does_not_look_like_a_queue_is_none() {
        let spoiled = |at: usize, word: u64| {
            let mut words = scheduler();
            words[at] = word;
            of_remotes(&memory(&words), 0, 2)
        };
        assert!(spoiled(1, 0).is_some(), "of the unparker nothing is asked");
        for (at, word) in [(0, 4), (4, 0), (5, 0), (6, 0), (7, 300 << 32 | 9), (8, 8)] {
            assert_eq!(spoiled(at, word), None, "{at}");
        }
        assert_eq!(of_remotes(&memory(&scheduler()), 0, 10), None, "cut off");
        assert_eq!(of_remotes(&memory(&[]), 0, 1 << 40), None);
    }
}
