//! The symbol table, where a file still has one.
//!
//! In: section headers, `.symtab` and `.dynsym`. Out: functions by address. Never: an
//! error: a file without symbols, or with damaged ones, has none.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{FileHeader64, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC};
use object::read::elf::{FileHeader as _, Sym as _};

use super::ENDIAN;

/// A function's symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'data> {
    /// Link-time virtual address.
    pub(crate) address: u64,
    /// Length of the function, bytes; 0 if the symbol does not say.
    pub(crate) bytes: u64,
    /// The name, mangled.
    pub(crate) name: &'data str,
}

/// Symbols of functions, sorted by address.
pub(super) fn read<'data>(
    header: &FileHeader64<LittleEndian>,
    elf: &'data [u8],
) -> Vec<Symbol<'data>> {
    of_table(header, elf, SHT_SYMTAB)
}

/// Address of a function that the file exports.
pub(super) fn exported(header: &FileHeader64<LittleEndian>, elf: &[u8], name: &str) -> Option<u64> {
    let symbols = of_table(header, elf, SHT_DYNSYM);
    let symbol = symbols.iter().find(|symbol| symbol.name == name)?;
    Some(symbol.address)
}

/// Whether the file takes a symbol of this name from another.
pub(super) fn imports(header: &FileHeader64<LittleEndian>, elf: &[u8], name: &str) -> bool {
    let table = header
        .sections(ENDIAN, elf)
        .and_then(|sections| sections.symbols(ENDIAN, elf, SHT_DYNSYM));
    let Ok(table) = table else { return false };
    table
        .iter()
        .filter(|symbol| symbol.st_shndx(ENDIAN) == SHN_UNDEF)
        .any(|symbol| symbol.name(ENDIAN, table.strings()) == Ok(name.as_bytes()))
}

fn of_table<'data>(
    header: &FileHeader64<LittleEndian>,
    elf: &'data [u8],
    kind: u32,
) -> Vec<Symbol<'data>> {
    let table = header
        .sections(ENDIAN, elf)
        .and_then(|sections| sections.symbols(ENDIAN, elf, kind));
    let Ok(table) = table else { return Vec::new() };
    let mut symbols: Vec<_> = table
        .iter()
        .filter(|symbol| symbol.st_type() == STT_FUNC && symbol.st_shndx(ENDIAN) != SHN_UNDEF)
        .filter_map(|symbol| {
            let name = symbol.name(ENDIAN, table.strings()).ok()?;
            Some(Symbol {
                address: symbol.st_value(ENDIAN),
                bytes: symbol.st_size(ENDIAN),
                name: std::str::from_utf8(name).ok()?,
            })
        })
        .collect();
    symbols.sort_by_key(|symbol| symbol.address);
    symbols
}

/// Function ranges by symbols, for a file without unwind tables.
pub(super) fn functions(symbols: &[Symbol<'_>]) -> Vec<Range<u64>> {
    symbols
        .iter()
        .filter_map(|symbol| Some(symbol.address..symbol.address.checked_add(symbol.bytes)?))
        .collect()
}
