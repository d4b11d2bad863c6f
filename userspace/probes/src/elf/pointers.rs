//! Which words of the data segments will hold addresses once the file is
//! loaded.
//!
//! In: `R_X86_64_RELATIVE` relocations and `DT_RELR` of a relocatable file; the
//! words themselves of one linked to a fixed address. Out: address and value of
//! each word. Never: a relocation against a symbol (an executable has none
//! against its own code).

use super::Image;
use crate::error::{self, ScanError};

/// Words of the largest program accepted, several times those of any known one.
const MAX_WORDS: usize = 1 << 22;
const RELA_BYTES: usize = 24;

// ELF gABI, dynamic table; DT_RELR since gABI draft of 2018.
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELRSZ: u64 = 35;
const DT_RELR: u64 = 36;
/// x86-64 psABI, table 4.9; `IRELATIVE` names a resolver, never a vtable's slot.
const R_X86_64_RELATIVE: u64 = 8;

/// Words that hold addresses.
#[derive(Debug, Default)]
pub(super) struct Pointers {
    /// (address, value) of each relocated word, sorted; `None` in a file linked
    /// to a fixed address.
    relocated: Option<Vec<(u64, u64)>>,
    /// Those of them that point to code.
    to_code: Vec<(u64, u64)>,
}

impl Pointers {
    /// Pointers of a position-independent file.
    pub(super) fn relocated(image: &Image<'_>, dynamic: &[(u64, u64)]) -> Result<Self, ScanError> {
        let value = |tag| {
            dynamic
                .iter()
                .find(|entry| entry.0 == tag)
                .map(|entry| entry.1)
        };
        let table = |address, size| {
            let (address, size) = (value(address)?, usize::try_from(value(size)?).ok()?);
            image.bytes(address, size)
        };
        let relocations = table(DT_RELA, DT_RELASZ).unwrap_or_default();
        limit(relocations.len() / RELA_BYTES)?;
        let mut words = Vec::with_capacity(relocations.len() / RELA_BYTES);
        for entry in relocations.chunks_exact(RELA_BYTES) {
            let field = |at| {
                entry
                    .get(at..at + 8)
                    .and_then(|bytes| bytes.try_into().ok())
            };
            let [Some(address), Some(kind), Some(addend)] = [0, 8, 16].map(field) else {
                break;
            };
            if u64::from_le_bytes(kind) & 0xffff_ffff == R_X86_64_RELATIVE {
                words.push((u64::from_le_bytes(address), u64::from_le_bytes(addend)));
            }
        }
        read_relr(
            image,
            table(DT_RELR, DT_RELRSZ).unwrap_or_default(),
            &mut words,
        );
        limit(words.len())?;
        words.sort_unstable();
        words.dedup_by_key(|word| word.0);
        let to_code = words
            .iter()
            .copied()
            .filter(|word| image.is_code(word.1))
            .collect();
        Ok(Self {
            relocated: Some(words),
            to_code,
        })
    }

    /// Pointers of a file linked to a fixed address; its constants may be in one
    /// segment with the code.
    pub(super) fn raw(image: &Image<'_>) -> Result<Self, ScanError> {
        let mut to_code = Vec::new();
        for segment in &image.segments {
            let padding = segment.address.wrapping_neg() % 8;
            let words = segment
                .data
                .get(padding as usize..)
                .unwrap_or_default()
                .chunks_exact(8);
            let addresses = (segment.address + padding..).step_by(8);
            for (address, word) in addresses.zip(words) {
                let value = word.try_into().map(u64::from_le_bytes).unwrap_or_default();
                if image.is_code(value) {
                    to_code.push((address, value));
                    limit(to_code.len())?;
                }
            }
        }
        to_code.sort_unstable();
        Ok(Self {
            relocated: None,
            to_code,
        })
    }

    /// The address that the word at `address` will hold.
    pub(super) fn get(&self, image: &Image<'_>, address: u64) -> Option<u64> {
        match &self.relocated {
            Some(words) => {
                let index = words.binary_search_by_key(&address, |word| word.0).ok()?;
                Some(words[index].1)
            }
            None => image.word(address),
        }
    }

    pub(super) fn to_code(&self) -> &[(u64, u64)] {
        &self.to_code
    }
}

fn limit(words: usize) -> Result<(), ScanError> {
    error::limit("words that are addresses", words as u64, MAX_WORDS as u64)
}

/// `DT_RELR`: an even entry is the address of a word; an odd one a bitmap of
/// the 63 words that follow.
fn read_relr(image: &Image<'_>, table: &[u8], words: &mut Vec<(u64, u64)>) {
    let mut base = 0u64;
    for entry in table.chunks_exact(8) {
        let entry = entry.try_into().map(u64::from_le_bytes).unwrap_or_default();
        if entry & 1 == 0 {
            words.extend(image.word(entry).map(|value| (entry, value)));
            base = entry.wrapping_add(8);
            continue;
        }
        for bit in (1..64).filter(|bit| entry >> bit & 1 == 1) {
            let address = base.wrapping_add((bit - 1) * 8);
            words.extend(image.word(address).map(|value| (address, value)));
        }
        base = base.wrapping_add(63 * 8);
        if words.len() > MAX_WORDS {
            return;
        }
    }
}
