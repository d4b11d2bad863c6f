//! Which of the target's objects a record is of, and numbers that are unique in spite
//! of several.
//!
//! In: a record's header, and numbers that the Tokio of one object counts from 1. Out:
//! numbers that are unique in the target, below 2^53 as readers in JavaScript want
//! them. Never: another number than Tokio's where there is one object only.

use dial9_bpf_abi::record::{OBJECT_SHIFT, RecordHeader};

/// Bits of a unique number that are Tokio's; the object's number is above them. A copy
/// of Tokio that gives a million a second needs a year for as many.
const NUMBER_BITS: u32 = 45;

/// Number of the object that a record about a task is of.
#[inline]
pub(crate) fn of(header: RecordHeader) -> u8 {
    const { assert!(OBJECT_SHIFT == 8) };
    let [object, _] = header.flags.to_be_bytes();
    object
}

/// A task's id or a list's number, unique in the target; 0 stays 0.
#[inline]
pub(crate) fn unique(object: u8, number: u64) -> u64 {
    if object == 0 || number == 0 {
        return number;
    }
    u64::from(object) << NUMBER_BITS | number & ((1 << NUMBER_BITS) - 1)
}

/// The object of a unique number.
pub(crate) fn object_of(unique: u64) -> u64 {
    unique >> NUMBER_BITS
}

/// What Tokio counted.
pub(crate) fn number_of(unique: u64) -> u64 {
    unique & ((1 << NUMBER_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use dial9_bpf_abi::record::{FLAG_BLOCKING, RecordKind};

    use super::*;

    #[test]
    fn numbers_of_several_objects_are_apart() {
        assert_eq!(unique(0, 7), 7);
        assert_eq!(unique(3, 0), 0);
        let numbers = [unique(0, 7), unique(1, 7), unique(1, 8), unique(255, 7)];
        for (at, number) in numbers.iter().enumerate() {
            assert!(*number < 1 << 53);
            assert!(!numbers[..at].contains(number));
        }
        assert_eq!((object_of(numbers[3]), number_of(numbers[3])), (255, 7));
    }

    #[test]
    fn the_object_is_beside_the_flags() {
        let header = RecordHeader {
            kind: RecordKind::TERMINATE,
            flags: 0xfe << OBJECT_SHIFT | FLAG_BLOCKING,
            tid: 1,
            ts_ns: 1,
        };
        assert_eq!(of(header), 0xfe);
    }
}
