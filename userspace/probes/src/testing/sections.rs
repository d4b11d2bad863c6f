//! Sections for a hand-assembled program.
//!
//! In: a program without, and names of its functions. Out: the program with a symbol
//! table, the same as a dynamic one, and a comment.

use super::put_at;

/// A function's name, address and length.
pub(crate) type Named<'text> = (&'text str, u64, u64);

/// Bytes of a section header and of a symbol.
pub(crate) const HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: u64 = 24;
const NAMES: &[u8] = b"\0.symtab\0.strtab\0.shstrtab\0.comment\0.dynsym\0";
const COMMENT: &[u8] = b"rustc version 1.95.0 (59807616e 2026-04-14)\0";

/// Index of the section header of the symbols, and of their names.
pub(crate) const SYMBOLS: usize = 1;
pub(crate) const STRINGS: usize = 2;

/// Appends the sections.
pub(crate) fn with_sections(elf: Vec<u8>, functions: &[Named<'_>]) -> Vec<u8> {
    with_more_sections(elf, functions, &[])
}

/// Appends the sections, and others.
pub(crate) fn with_more_sections(
    mut elf: Vec<u8>,
    functions: &[Named<'_>],
    others: &[(&str, &[u8])],
) -> Vec<u8> {
    let mut names = NAMES.to_vec();
    for (name, _) in others {
        names.extend(name.bytes().chain([0]));
    }
    let mut strings = vec![0u8];
    let mut symbols = vec![0u8; 24];
    for &(name, address, bytes) in functions {
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend(address.to_le_bytes());
        symbols.extend(bytes.to_le_bytes());
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let mut sections: Vec<(&[u8], u32, &[u8], u64)> = vec![
        (b".symtab", 2, &symbols, SYMBOL_BYTES),
        (b".strtab", 3, &strings, 0),
        (b".shstrtab", 3, &names, 0),
        (b".comment", 1, COMMENT, 1),
        (b".dynsym", 11, &symbols, SYMBOL_BYTES),
    ];
    let others = others.iter();
    sections.extend(others.map(|&(name, bytes)| (name.as_bytes(), 1, bytes, 0)));
    let count = sections.len() as u16 + 1;
    let mut headers = vec![0; HEADER_BYTES];
    for (name, kind, bytes, entry) in sections {
        let name = names.windows(name.len()).position(|at| at == name).unwrap();
        headers.extend((name as u32).to_le_bytes());
        headers.extend(kind.to_le_bytes());
        let place = [0, 0, elf.len() as u64, bytes.len() as u64];
        headers.extend(place.iter().flat_map(|word| word.to_le_bytes()));
        headers.extend((STRINGS as u32).to_le_bytes());
        headers.extend(0u32.to_le_bytes());
        headers.extend([1, entry].iter().flat_map(|word: &u64| word.to_le_bytes()));
        elf.extend(bytes);
        elf.resize(elf.len().next_multiple_of(8), 0);
    }
    let table = elf.len() as u64;
    elf.extend(headers);
    put_at(&mut elf, 0x28, &table.to_le_bytes());
    put_at(&mut elf, 0x3c, &count.to_le_bytes());
    put_at(&mut elf, 0x3e, &3u16.to_le_bytes());
    elf
}

/// Where the header of a section is in the file.
pub(crate) fn header_of(elf: &[u8], section: usize) -> usize {
    let table = u64::from_le_bytes(elf[0x28..0x30].try_into().unwrap());
    table as usize + section * HEADER_BYTES
}
