//! Which task a header is, remembered in one word, so that most hits read no
//! memory of the target: a read of 8 bytes costs up to 190 ns.
//!
//! A header's address means one task until that task is freed. Whoever polls or
//! wakes a task holds a reference to it, and Tokio frees no polled task that has
//! not passed `Harness::complete` (Tokio 1.24 to 1.54,
//! src/runtime/task/harness.rs). There the terminate program forgets the task,
//! after its state has become complete and before the reference is given up. The
//! rules that keep a stale word out:
//!
//! 1. A hit that finds the entry vacant reads the task's id, then its state.
//!    Only when the state is not complete does it compare-exchange the very word
//!    that it found against the new one.
//! 2. Terminate exchanges the entry for a vacant word that was never there
//!    before (it holds the time), whatever the entry says. A hit that looked at
//!    the entry before fails to exchange it; one that looks later reads a state
//!    that is complete.
//! 3. An occupied entry of another task is left alone.
//! 4. The array is empty when hits begin to count. Until then nobody remembers,
//!    and an end that came too early for rule 2 had made its state complete.
//!
//! | bits | of an occupied word |
//! |---|---|
//! | 0..39 | the task's id |
//! | 39..63 | bits 23..47 of the header's address |
//! | 63 | 0; a vacant word has it set, and the rest is a time; 0 is vacant too |

use crate::limits::KNOWN_TASKS;

/// Bits of a task id.
const ID_BITS: u32 = 39;
/// A vacant word.
const VACANT: u64 = 1 << 63;
/// Address bits below the tag: 7 of alignment, 16 of the index.
const TAG_SHIFT: u32 = 7 + KNOWN_TASKS.trailing_zeros();

/// `COMPLETE` in the state word of a task (src/runtime/task/state.rs).
pub const STATE_COMPLETE: u64 = 2;

/// Whether the header can have an entry: task cells are aligned to 128 bytes on
/// x86-64 (src/runtime/task/core.rs), user addresses have 47 bits.
pub const fn is_known_form(header: u64) -> bool {
    header.is_multiple_of(128) && header >> 47 == 0
}

/// The header's entry.
#[expect(clippy::cast_possible_truncation, reason = "the index is masked")]
pub const fn index(header: u64) -> u32 {
    (header >> 7) as u32 & (KNOWN_TASKS - 1)
}

/// The task's id, if the word is the header's.
pub const fn id_of(word: u64, header: u64) -> Option<u64> {
    if word >> ID_BITS == header >> TAG_SHIFT && word != 0 {
        return Some(word & ((1 << ID_BITS) - 1));
    }
    None
}

/// Whether the word says nothing of any task.
pub const fn is_vacant(word: u64) -> bool {
    word == 0 || word & VACANT != 0
}

/// The word that says that the header is this task; `None` for an id too large.
pub const fn occupied(header: u64, task_id: u64) -> Option<u64> {
    if task_id >> ID_BITS != 0 || task_id == 0 {
        return None;
    }
    Some((header >> TAG_SHIFT) << ID_BITS | task_id)
}

/// A vacant word, of a time in ns that no other vacant word has.
pub const fn vacant(time_ns: u64) -> u64 {
    VACANT | time_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: u64 = 0x7f12_3456_7880;

    #[test]
    fn a_word_is_its_headers_only() {
        let word = occupied(HEADER, 12_345).expect("small");
        assert_eq!(id_of(word, HEADER), Some(12_345));
        assert!(!is_vacant(word));
        let neighbour = HEADER + (1 << TAG_SHIFT);
        assert_eq!(index(neighbour), index(HEADER), "they share an entry");
        assert_eq!(id_of(word, neighbour), None);
    }

    #[test]
    fn vacant_words_name_no_task() {
        for word in [0, vacant(1), vacant(u64::MAX >> 1)] {
            assert!(is_vacant(word), "{word:#x}");
            for header in [0, 128, HEADER, (1 << 47) - 128] {
                assert_eq!(id_of(word, header), None, "{word:#x} {header:#x}");
            }
        }
    }

    #[test]
    fn the_least_and_the_largest() {
        for header in [1 << TAG_SHIFT, (1 << 47) - 128] {
            for id in [1, (1 << ID_BITS) - 1] {
                let word = occupied(header, id).expect("it fits");
                assert!(!is_vacant(word));
                assert_eq!(id_of(word, header), Some(id));
            }
        }
        assert_eq!(occupied(HEADER, 0), None);
        assert_eq!(occupied(HEADER, 1 << ID_BITS), None);
        assert!(is_known_form(HEADER) && !is_known_form(HEADER + 8) && !is_known_form(1 << 47));
    }
}
