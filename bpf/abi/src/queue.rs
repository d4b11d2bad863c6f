//! The run queue of a multi-thread worker, and how deep it is.
//!
//! `Inner` in `src/runtime/scheduler/multi_thread/queue.rs`, Tokio 1.24 to 1.54: the
//! struct is not `repr(C)`, but the DWARF of every build looked at has it so, with
//! `tokio_unstable` and without. The task in the LIFO slot is not in the queue, and
//! Tokio's own `worker_local_queue_depth` does not count it either.

/// Offset of the head in the queue's `ArcInner`, bytes: above the number of the first
/// task that somebody is stealing, below that of the first which is there. The tail
/// follows, the number behind the last task, in 32 bits.
pub const HEAD: u64 = 24;
/// Most tasks in a queue: `LOCAL_QUEUE_CAPACITY`.
pub const CAPACITY: u32 = 256;
/// Position of the depth above an address or an index, 1 for an empty queue; 0 where
/// none was read. Addresses of user space have 47 bits.
const DEPTH_SHIFT: u32 = 48;

/// Tasks in a queue with these words; `None` where no queue has them.
#[inline(always)]
#[expect(clippy::inline_always, reason = "BPF programs call nothing on a hit")]
#[expect(clippy::cast_possible_truncation, reason = "the halves are meant")]
pub const fn depth(head: u64, tail: u64) -> Option<u32> {
    let depth = (tail as u32).wrapping_sub(head as u32);
    if depth > CAPACITY { None } else { Some(depth) }
}

/// `word` with a depth above it.
#[inline(always)]
#[expect(clippy::inline_always, reason = "BPF programs call nothing on a hit")]
pub const fn with_depth(word: u64, depth: u32) -> u64 {
    word | (depth as u64 + 1) << DEPTH_SHIFT
}

/// What is above the word.
#[inline(always)]
#[expect(clippy::inline_always, reason = "BPF programs call nothing on a hit")]
pub const fn above(word: u64) -> u64 {
    word >> DEPTH_SHIFT << DEPTH_SHIFT
}

/// The word below, and the depth above it, where one was read.
pub const fn split(word: u64) -> (u64, Option<u32>) {
    let below = word & ((1 << DEPTH_SHIFT) - 1);
    (below, ((word >> DEPTH_SHIFT) as u32).checked_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_between_the_real_head_and_the_tail() {
        assert_eq!(depth(0, 0), Some(0));
        assert_eq!(depth(7 << 32 | 9, 12), Some(3), "somebody steals 7 and 8");
        assert_eq!(depth(u64::from(u32::MAX), 1), Some(2), "the numbers wrap");
        assert_eq!(depth(0, 256), Some(256));
        assert_eq!(depth(0, 257), None);
        assert_eq!(depth(1, 0), None);
    }

    #[test]
    fn a_word_keeps_its_depth() {
        let address = 0x7fff_ffff_fff8;
        assert_eq!(split(address), (address, None));
        for of in [0, 1, CAPACITY] {
            assert_eq!(split(with_depth(address, of)), (address, Some(of)));
        }
    }
}
