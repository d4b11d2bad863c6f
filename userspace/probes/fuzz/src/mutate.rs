//! Damages a program where its tables are.
//!
//! In: an input of libFuzzer. Out: the same with a few fields changed to what such
//! fields hold, or what libFuzzer makes of it.

use libfuzzer_sys::fuzzer_mutate;

/// Changes `data[..size]`; the value is its new size.
pub(crate) fn mutate(data: &mut [u8], size: usize, room: usize, seed: u32) -> usize {
    let mut random = Random(u64::from(seed) | 1 << 32);
    if size < 64 || random.below(2) == 0 {
        return fuzzer_mutate(data, size, room);
    }
    for _ in 0..=random.below(4) {
        change(&mut data[..size], &mut random);
    }
    size
}

/// Changes one field that is not amid zeros, of which a small program has many.
fn change(data: &mut [u8], random: &mut Random) {
    let width = [1, 2, 4, 8][random.below(4)];
    let mut at = 0;
    for _ in 0..8 {
        at = random.below(data.len() / width) * width;
        let end = data.len().min(at + 16);
        if data[at..end].iter().any(|byte| *byte != 0) {
            break;
        }
    }
    let value = match random.below(6) {
        0 => word(data, random.below(data.len())),
        1 => word(data, at)
            .wrapping_add(random.below(65) as u64)
            .wrapping_sub(32),
        2 => (data.len() as u64)
            .wrapping_add(random.below(17) as u64)
            .wrapping_sub(8),
        3 => 1 << random.below(64),
        4 => u64::MAX << random.below(64),
        _ => random.next(),
    };
    let end = data.len().min(at + width);
    data[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
}

/// The word at or before `at`.
fn word(data: &[u8], at: usize) -> u64 {
    let at = at & !7;
    let bytes = data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}
