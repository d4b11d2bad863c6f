//! The symbol tables, where a file still has them.
//!
//! In: section headers, `.symtab` or `.dynsym`, its strings. Out: functions by
//! address. Never: an error but for a table that is too long: a file without symbols,
//! or with damaged ones, has none; a read of all names, which may share their bytes
//! and need not end.

use std::ops::Range;

use memchr::memmem;
use object::LittleEndian;
use object::elf::{SHN_UNDEF, STT_FUNC, Sym64};
use object::read::ReadRef as _;
use object::read::elf::Sym as _;

use super::ENDIAN;
use super::sections::Sections;
use crate::error::{self, ScanError};

/// Several times those of the largest programs.
const MAX_SYMBOLS: u64 = 1 << 22;
/// The longest name that counts as one, bytes.
const MAX_NAME_BYTES: usize = 1 << 16;
/// How often a part of a name may occur that is looked for: it names one function,
/// and what is made of it.
const MAX_MENTIONS: usize = 1 << 12;

/// A function's symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    /// Link-time virtual address.
    pub(crate) address: u64,
    /// Length of the function, bytes; 0 if the symbol does not say.
    pub(crate) bytes: u32,
    /// Where the name begins in the strings.
    name: u32,
}

/// Symbols of the functions of a file.
#[derive(Debug, Default)]
pub(crate) struct Symbols<'data> {
    /// Sorted by address.
    functions: Vec<Symbol>,
    strings: &'data [u8],
}

impl<'data> Symbols<'data> {
    /// The symbols of the table of this kind.
    ///
    /// # Errors
    ///
    /// `TooBig`.
    pub(super) fn read(sections: Sections<'data>, kind: u32) -> Result<Self, ScanError> {
        let (table, strings) = table(sections, kind)?;
        let mut functions: Vec<_> = table
            .iter()
            .filter(|symbol| symbol.st_type() == STT_FUNC && symbol.st_shndx(ENDIAN) != SHN_UNDEF)
            .map(|symbol| Symbol {
                address: symbol.st_value(ENDIAN),
                bytes: u32::try_from(symbol.st_size(ENDIAN)).unwrap_or(u32::MAX),
                name: symbol.st_name(ENDIAN),
            })
            .collect();
        functions.sort_by_key(|symbol| symbol.address);
        Ok(Self { functions, strings })
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The symbols, sorted by address.
    pub(crate) fn functions(&self) -> &[Symbol] {
        &self.functions
    }

    /// The name, mangled; `None` for one that is no text or does not end.
    pub(crate) fn name(&self, symbol: &Symbol) -> Option<&'data str> {
        let rest = self.strings.get(symbol.name as usize..)?;
        let end = memchr::memchr(0, &rest[..rest.len().min(MAX_NAME_BYTES)])?;
        std::str::from_utf8(&rest[..end]).ok()
    }

    /// The first symbol with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Symbol> {
        let mut symbols = self.functions.iter();
        symbols.find(|symbol| is_called(self.strings, symbol.name, name))
    }

    /// Symbols with `part` in their names; `None` if there are too many.
    pub(crate) fn mentioning(&self, part: &str) -> Option<Vec<&Symbol>> {
        let places = mentions(self.strings, part)?;
        let mentions = |symbol: &&Symbol| {
            let at = places.partition_point(|place| place.end <= symbol.name);
            places
                .get(at)
                .is_some_and(|place| place.contains(&symbol.name))
        };
        let found = self.functions.iter().filter(mentions);
        let found: Vec<_> = found.take(MAX_MENTIONS + 1).collect();
        (found.len() <= MAX_MENTIONS).then_some(found)
    }

    /// Function ranges by symbols, for a file without unwind tables.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        let range = |symbol: &Symbol| {
            let end = symbol.address.checked_add(symbol.bytes.into())?;
            Some(symbol.address..end)
        };
        self.functions.iter().filter_map(range).collect()
    }
}

/// Whether the file takes a symbol of this name from another.
pub(super) fn imports(sections: Sections<'_>, kind: u32, name: &str) -> bool {
    let Ok((table, strings)) = table(sections, kind) else {
        return false;
    };
    table
        .iter()
        .filter(|symbol| symbol.st_shndx(ENDIAN) == SHN_UNDEF)
        .any(|symbol| is_called(strings, symbol.st_name(ENDIAN), name))
}

/// Whether the file takes a symbol from another whose name has `part` in it, also where
/// the part occurs too often to be sure.
pub(super) fn imports_any(sections: Sections<'_>, kind: u32, part: &str) -> bool {
    let Ok((table, strings)) = table(sections, kind) else {
        return false;
    };
    let Some(places) = mentions(strings, part) else {
        return true;
    };
    table
        .iter()
        .filter(|symbol| symbol.st_shndx(ENDIAN) == SHN_UNDEF)
        .any(|symbol| {
            let name = symbol.st_name(ENDIAN);
            let after = places.partition_point(|place| place.end <= name);
            places.get(after).is_some_and(|place| place.contains(&name))
        })
}

/// The symbols of a table, and what their names are in.
fn table(sections: Sections<'_>, kind: u32) -> Result<(&[Sym64<LittleEndian>], &[u8]), ScanError> {
    let Some(tables) = sections.symbols(kind) else {
        return Ok(Default::default());
    };
    let [table, strings] = tables.map(|section| sections.bytes(section));
    let count = (table.len() / size_of::<Sym64<LittleEndian>>()) as u64;
    error::limit("symbols", count, MAX_SYMBOLS)?;
    let symbols = table.read_slice_at(0, usize::try_from(count).unwrap_or(0));
    Ok((symbols.unwrap_or_default(), strings))
}

fn is_called(strings: &[u8], at: u32, name: &str) -> bool {
    let rest = strings.get(at as usize..).unwrap_or_default();
    rest.strip_prefix(name.as_bytes())
        .is_some_and(|rest| rest.first() == Some(&0))
}

/// Where a name may begin that has `part` in it, in ascending order; `None` if the
/// part occurs too often.
fn mentions(strings: &[u8], part: &str) -> Option<Vec<Range<u32>>> {
    let mut places: Vec<Range<u32>> = Vec::new();
    let mut after = 0;
    for at in memmem::find_iter(strings, part) {
        let zero = memchr::memrchr(0, &strings[after..at]);
        let start = zero.map_or(after, |zero| after + zero + 1);
        after = at + 1;
        places.push(u32::try_from(start).ok()?..u32::try_from(after).ok()?);
        if places.len() > MAX_MENTIONS {
            return None;
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::mentions;

    #[test]
    fn names_begin_between_the_last_end_and_the_part() {
        let places = mentions(b"\0no\0one here\0a one one\0", "one");
        assert_eq!(places, Some(vec![4..5, 13..16, 16..20]));
        assert_eq!(mentions(b"no end end", "end"), Some(vec![0..4, 4..8]));
        assert_eq!(mentions(&b"ab".repeat(5000), "ab"), None);
    }
}
