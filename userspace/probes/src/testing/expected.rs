//! What Tokio's schedulers expect, for hand-assembled programs.
//!
//! In: nothing. Out: words of data with the places and messages of `expect`, and calls
//! that are given them. Never: another layout than that of `core::panic::Location`.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{DATA, Word, function};

/// A place of `expect` and its message: addresses in [`words`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expect {
    pub(crate) place: u64,
    pub(crate) message: u64,
}

const PLACE_BYTES: u64 = 24;
const TEXT_BYTES: u64 = 64;
const TEXTS: u64 = DATA + 5 * PLACE_BYTES;
const WORKER: &str = "/tokio-1.54.1/src/runtime/scheduler/multi_thread/worker.rs";
const CURRENT: &str = "/tokio-1.54.1/src/runtime/scheduler/current_thread/mod.rs";
const OTHER: &str = "/tokio-1.54.1/src/runtime/scheduler/multi_thread_alt/worker.rs";
const TEXT: [&str; 5] = [WORKER, CURRENT, OTHER, "park missing", "driver missing"];
/// Index of the file in `TEXT`, and line.
const PLACES: [(u64, u64); 5] = [(0, 878), (0, 1326), (1, 409), (1, 447), (2, 878)];

const fn expect(place: u64, message: u64) -> Expect {
    Expect {
        place: DATA + place * PLACE_BYTES,
        message: TEXTS + message * TEXT_BYTES,
    }
}

/// `multi_thread::worker::Context::park_internal` and `Core::shutdown`.
pub(crate) const PARKER: [Expect; 2] = [expect(0, 3), expect(1, 3)];
/// `current_thread::Context::park` and `park_yield`.
pub(crate) const DRIVER: [Expect; 2] = [expect(2, 4), expect(3, 4)];
/// The message of the first, of a file that is none of the two.
pub(crate) const OF_OTHER_FILE: Expect = expect(4, 3);

/// The places and texts.
pub(crate) fn words() -> Vec<Word> {
    let place = |&(file, line): &(u64, u64)| {
        let length = TEXT[usize::try_from(file).unwrap()].len() as u64;
        [
            Word::Address(TEXTS + file * TEXT_BYTES),
            Word::Plain(length),
            Word::Plain(line | 45 << 32),
        ]
    };
    let text = |text: &&str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(usize::try_from(TEXT_BYTES).unwrap(), 0);
        let words = bytes.as_chunks::<8>().0.to_vec();
        words
            .into_iter()
            .map(|word| Word::Plain(u64::from_le_bytes(word)))
    };
    let places = PLACES.iter().flat_map(place);
    places.chain(TEXT.iter().flat_map(text)).collect()
}

/// Puts an address into a register.
pub(crate) fn load(
    a: &mut CodeAssembler,
    register: AsmRegister32,
    address: u64,
) -> Result<(), IcedError> {
    a.mov(register, u32::try_from(address).unwrap())
}

/// The end of a function that expects this: the call that panics.
pub(crate) fn panic(a: &mut CodeAssembler, what: Expect, panics: u64) -> Result<(), IcedError> {
    load(a, edi, what.message)?;
    a.mov(esi, 12)?;
    load(a, edx, what.place)?;
    a.call(function(panics))
}
