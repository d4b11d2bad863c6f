//! Words that the verifier knows nothing of.

/// What loops carry along is in the scratch rather than in registers: a word that
/// was read back is any word to the verifier, so that all ways through an iteration are one
/// to it. Otherwise it follows each of them to the end, and gives up.
#[inline(always)]
pub fn load_word(word: &u64) -> u64 {
    // SAFETY: a reference is valid to read.
    unsafe { core::ptr::read_volatile(word) }
}

#[inline(always)]
pub fn store_word(word: &mut u64, value: u64) {
    // SAFETY: a reference is valid to write.
    unsafe { core::ptr::write_volatile(word, value) }
}
