//! Which hits count.

use dial9_bpf_abi::declared::{
    ACCEPT, CONSTANT_BYTES, DeclaredScratch, Definition, MAX_BYTES, MAX_READS, MAX_TESTS, Test,
    operator,
};

use super::words::{load_word, store_word};

/// Whether the hit counts.
#[inline(never)]
pub fn counts(definition: &Definition, scratch: &mut DeclaredScratch) -> bool {
    if definition.test_count == 0 {
        return true;
    }
    store_word(&mut scratch.next, 0);
    // Each test leads to a later one.
    for _ in 0..MAX_TESTS {
        let next = load_word(&scratch.next);
        if next >= MAX_TESTS as u64 {
            break;
        }
        let test = &definition.tests[next as usize];
        let next = if is_true(test, scratch) {
            test.on_true
        } else {
            test.on_false
        };
        store_word(&mut scratch.next, next.into());
    }
    load_word(&scratch.next) == u64::from(ACCEPT)
}

#[inline(never)]
fn is_true(test: &Test, scratch: &DeclaredScratch) -> bool {
    let value = test.value as usize & (MAX_READS - 1);
    load_word(&scratch.present) & (1 << value) != 0
        && if test.is_bytes != 0 {
            compares_bytes(test, value, scratch)
        } else {
            compares(test, load_word(&scratch.numbers[value]))
        }
}

#[inline(always)]
fn compares(test: &Test, value: u64) -> bool {
    let constant = test.number;
    let is_less = if test.is_signed != 0 {
        (value as i64) < constant as i64
    } else {
        value < constant
    };
    match test.operator {
        operator::EQUAL => value == constant,
        operator::NOT_EQUAL => value != constant,
        operator::LESS => is_less,
        operator::LESS_OR_EQUAL => is_less || value == constant,
        operator::GREATER => !is_less && value != constant,
        operator::GREATER_OR_EQUAL => !is_less,
        operator::ANY_BIT => value & constant != 0,
        _ => false,
    }
}

#[inline(always)]
fn compares_bytes(test: &Test, value: usize, scratch: &DeclaredScratch) -> bool {
    let length = load_word(&scratch.numbers[value]);
    let start = load_word(&scratch.starts[value]);
    let begins = length >= test.length.into() && begins(test, start, scratch);
    let is_equal = begins && length == test.length.into();
    match test.operator {
        operator::EQUAL => is_equal,
        operator::NOT_EQUAL => !is_equal,
        operator::STARTS => begins,
        _ => false,
    }
}

#[inline(never)]
fn begins(test: &Test, start: u64, scratch: &DeclaredScratch) -> bool {
    if start > MAX_BYTES as u64 {
        return false;
    }
    for at in 0..CONSTANT_BYTES {
        // Read each time: otherwise both bounds become one, which the verifier of Linux 6.1
        // does not see reached (it learns nothing from `!=`).
        // SAFETY: a reference is valid to read.
        let length = unsafe { core::ptr::read_volatile(&raw const test.length) };
        if at >= length.into() {
            break;
        }
        let byte = scratch.bytes[start as usize + at];
        if byte != test.bytes[at] {
            return false;
        }
    }
    true
}
