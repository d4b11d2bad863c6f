//! Hand-assembled programs for tests.
//!
//! In: functions as assembler calls, words of data. Out: the bytes of an ELF
//! file with unwind tables, without sections. Never: a real linker.

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of a fixture are small"
)]

pub(crate) mod expected;
pub(crate) mod sections;
pub(crate) mod tokio;

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;

/// Where code, data, unwind table and dynamic table are, both in memory and
/// (less `BASE`) in the file.
pub(crate) const BASE: u64 = 0x40_0000;
pub(crate) const CODE: u64 = 0x40_1000;
pub(crate) const DATA: u64 = 0x40_2000;
pub(crate) const UNWIND: u64 = 0x40_3000;
pub(crate) const DYNAMIC: u64 = 0x40_4000;
const END: u64 = 0x40_5000;
/// Distance between functions.
pub(crate) const FUNCTION_BYTES: u64 = 0x100;

/// Assembles a function.
pub(crate) type Assemble<'code> =
    &'code (dyn Fn(&mut CodeAssembler) -> Result<(), IcedError> + 'code);

/// How addresses in the data are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linking {
    /// As they are, in a file linked to a fixed address.
    Fixed,
    /// `R_X86_64_RELATIVE` relocations.
    Rela,
    /// A `DT_RELR` table.
    Relr,
}

/// A word of data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    Plain(u64),
    Address(u64),
}

/// Address of the function with this index.
pub(crate) const fn function(index: u64) -> u64 {
    CODE + index * FUNCTION_BYTES
}

/// The bytes of a function at this address.
pub(crate) fn assemble(address: u64, code: Assemble<'_>) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(64).unwrap();
    code(&mut assembler).unwrap();
    assembler.assemble(address).unwrap()
}

/// An ELF file with these functions and words.
pub(crate) fn elf(functions: &[Assemble<'_>], words: &[Word], linking: Linking) -> Vec<u8> {
    let mut file = vec![0u8; (END - BASE) as usize];
    let mut ranges = Vec::new();
    for (index, code) in functions.iter().enumerate() {
        let address = function(index as u64);
        let bytes = assemble(address, code);
        assert!(bytes.len() as u64 <= FUNCTION_BYTES && address < DATA);
        put(&mut file, address, &bytes);
        ranges.push((address, bytes.len() as u32));
    }
    let mut relocated = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let address = DATA + 8 * index as u64;
        match *word {
            Word::Plain(value) => put(&mut file, address, &value.to_le_bytes()),
            Word::Address(value) => {
                relocated.push((address, value));
                if linking != Linking::Rela {
                    put(&mut file, address, &value.to_le_bytes());
                }
            }
        }
    }
    put(&mut file, UNWIND, &unwind(&ranges));
    put(&mut file, DYNAMIC, &dynamic(&relocated, linking));
    put(&mut file, BASE, &headers(linking));
    file
}

fn put(file: &mut [u8], address: u64, bytes: &[u8]) {
    put_at(file, (address - BASE) as usize, bytes);
}

/// Writes bytes at a place in the file.
pub(crate) fn put_at(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

fn headers(linking: Linking) -> Vec<u8> {
    const RX: u32 = 5;
    const RW: u32 = 6;
    const R: u32 = 4;
    let segments = [
        (1u32, R, BASE, CODE - BASE),
        (1, RX, CODE, DATA - CODE),
        (1, RW, DATA, UNWIND - DATA),
        (1, R, UNWIND, END - UNWIND),
        (2, R, DYNAMIC, 0x50),
        (0x6474_e550, R, UNWIND, 0x100),
    ];
    let kind: u16 = if linking == Linking::Fixed { 2 } else { 3 };
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend(kind.to_le_bytes());
    bytes.extend(62u16.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    for word in [CODE, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [64u16, 56, segments.len() as u16, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    for (kind, flags, address, length) in segments {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        for word in [address - BASE, address, address, length, length, 0x1000] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

/// `.eh_frame_hdr`, then one common entry and one description a function.
fn unwind(ranges: &[(u64, u32)]) -> Vec<u8> {
    let common = UNWIND + 12 + 8 * ranges.len() as u64;
    let first = common + 24;
    let mut bytes = vec![1, 0x1b, 0x03, 0x3b];
    bytes.extend(0u32.to_le_bytes());
    bytes.extend((ranges.len() as u32).to_le_bytes());
    for (index, &(address, _)) in ranges.iter().enumerate() {
        let description = first + 20 * index as u64;
        for at in [address, description] {
            bytes.extend((at.wrapping_sub(UNWIND) as u32).to_le_bytes());
        }
    }
    bytes.extend(20u32.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(b"\x01zR\0\x01\x78\x10\x01\x1b\0\0\0\0\0\0\0");
    for (index, &(address, length)) in ranges.iter().enumerate() {
        let description = first + 20 * index as u64;
        let relative = address.wrapping_sub(description + 8) as u32;
        for word in [16, (description + 4 - common) as u32, relative, length, 0] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

/// The dynamic table and the relocations behind it.
fn dynamic(relocated: &[(u64, u64)], linking: Linking) -> Vec<u8> {
    let mut relocations: Vec<u64> = Vec::new();
    match linking {
        Linking::Fixed => {}
        Linking::Rela => {
            for &(address, value) in relocated {
                relocations.extend([address, 8, value]);
            }
        }
        Linking::Relr => {
            let mut rest = relocated.iter().map(|word| word.0).peekable();
            while let Some(first) = rest.next() {
                let mut bits = 1;
                while let Some(next) = rest.next_if(|next| next - first <= 63 * 8) {
                    bits |= 1 << ((next - first) / 8);
                }
                relocations.extend([first, bits]);
            }
        }
    }
    let tags = if linking == Linking::Relr {
        [36, 35]
    } else {
        [7, 8]
    };
    let mut words = vec![
        tags[0],
        DYNAMIC + 0x50,
        tags[1],
        8 * relocations.len() as u64,
        0,
        0,
    ];
    words.resize(10, 0);
    words.extend(relocations);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
