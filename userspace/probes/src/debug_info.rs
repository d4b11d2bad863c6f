//! The types of tasks that debug information spells.
//!
//! In: the debug sections of a file, part by part, trusted in nothing; addresses of
//! functions of vtables. Out: for each, the future's types that its entries name. Never: more
//! than the units that have these functions, more than a stated amount of work, a
//! section that is compressed.
//!
//! The compiler writes one entry for each `raw::poll::<T, S>` and the like
//! (`DW_TAG_subprogram`), whose name spells the arguments, as in `poll<app::serve::{async_fn_env#0}, ...>`; read in
//! what Rust 1.95 writes. With `debug = "line-tables-only"` it has no arguments.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAranges, DebugInfo, DebugInfoOffset,
    EndianSlice, EntriesRaw, LittleEndian, UnitHeader, UnitOffset, constants,
};

use crate::elf::{Debug, Section};
use crate::names;
use crate::types::Types;

/// Debug information of one scan that is read, bytes; one unit of it is in memory.
const MAX_INFO_BYTES: u64 = 64 << 20;
/// Addresses of units that are read, bytes: a program with 500 MB of debug
/// information has about 10 MB.
const MAX_RANGES_BYTES: u64 = 64 << 20;
/// The abbreviations of one unit, bytes: a compiler has some hundred.
const MAX_ABBREVIATIONS_BYTES: u64 = 64 << 10;
/// Attributes that are read or skipped; a byte of a file may stand for thousands.
const MAX_ATTRIBUTES: usize = 32 << 20;
/// The longest name, bytes.
const MAX_NAME_BYTES: u64 = 1 << 16;
/// Names that are read.
const MAX_NAMES: usize = 1 << 16;
/// How much of a text is read at first, bytes.
const TEXT_BYTES: u64 = 1 << 10;

/// Reads a part of a file; `None` where it cannot.
pub type Read<'file> = &'file dyn Fn(Range<u64>) -> Option<Vec<u8>>;

/// A file that a scan is given.
#[derive(Clone, Copy)]
pub struct File<'file> {
    /// As long as the file, with the parts that [`crate::STEPS`] name.
    pub parts: &'file [u8],
    /// Reads the others.
    pub read: Read<'file>,
}

impl fmt::Debug for File<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.parts.len();
        f.debug_struct("File").field("bytes", &bytes).finish()
    }
}

type Slice<'data> = EndianSlice<'data, LittleEndian>;

/// Why debug information gives no types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    #[error("no debug information")]
    Absent,
    #[error("its debug information is compressed")]
    Compressed,
    #[error("its debug information is too large")]
    TooLarge,
    #[error("its debug information is damaged")]
    Damaged,
    #[error("its debug information does not spell them")]
    Unspelled,
}

impl From<gimli::Error> for Unread {
    fn from(_: gimli::Error) -> Self {
        Self::Damaged
    }
}

/// The types that the entries of `functions` spell; what is found counts also where the
/// rest cannot be read.
pub(crate) fn types(file: &File<'_>, functions: &BTreeSet<u64>) -> (Types, Option<Unread>) {
    let Some(debug) = Debug::of(file.parts) else {
        return (Types::new(), Some(Unread::Absent));
    };
    let mut reader = Reader {
        read: file.read,
        debug,
        functions,
        types: Types::new(),
        bytes_left: MAX_INFO_BYTES,
        attributes_left: MAX_ATTRIBUTES,
        names_left: MAX_NAMES,
    };
    let unread = reader.every_unit().err();
    (reader.types, unread)
}

struct Reader<'a> {
    read: Read<'a>,
    debug: Debug<'a>,
    functions: &'a BTreeSet<u64>,
    types: Types,
    bytes_left: u64,
    attributes_left: usize,
    names_left: usize,
}

/// Where a unit has what its entries give by number.
#[derive(Clone, Copy, Debug, Default)]
struct Bases {
    strings: u64,
    addresses: u64,
}

/// What of an entry is looked at.
struct Entry<'data> {
    at: Option<AttributeValue<Slice<'data>>>,
    name: Option<AttributeValue<Slice<'data>>>,
    linkage_name: Option<AttributeValue<Slice<'data>>>,
    origin: Option<UnitOffset>,
}

impl Reader<'_> {
    fn every_unit(&mut self) -> Result<(), Unread> {
        for section in [Section::Info, Section::Abbreviations, Section::Strings] {
            if self.debug.is_compressed(section) {
                return Err(Unread::Compressed);
            }
        }
        let mut first_unread = None;
        for unit in self.units()? {
            match self.unit(unit) {
                Ok(()) => {}
                Err(Unread::TooLarge) => return Err(Unread::TooLarge),
                Err(unread) => first_unread = first_unread.or(Some(unread)),
            }
        }
        first_unread.map_or(Ok(()), Err)
    }

    /// Where the units are that have one of the functions.
    fn units(&self) -> Result<BTreeSet<u64>, Unread> {
        let range = self.debug.range(Section::Ranges);
        if range.end - range.start > MAX_RANGES_BYTES {
            return Err(Unread::TooLarge);
        }
        let bytes = self.bytes(Section::Ranges, 0, MAX_RANGES_BYTES)?;
        if bytes.is_empty() || self.debug.is_compressed(Section::Ranges) {
            return self.every_one();
        }
        let mut units = BTreeSet::new();
        let mut headers = DebugAranges::new(&bytes, LittleEndian).headers();
        while let Some(header) = headers.next()? {
            let mut entries = header.entries();
            while let Some(entry) = entries.next()? {
                let range = entry.range();
                if range.begin < range.end
                    && self
                        .functions
                        .range(range.begin..range.end)
                        .next()
                        .is_some()
                {
                    units.insert(header.debug_info_offset().0 as u64);
                    break;
                }
            }
        }
        Ok(units)
    }

    /// All units, where nothing says which of them have code where.
    fn every_one(&self) -> Result<BTreeSet<u64>, Unread> {
        let range = self.debug.range(Section::Info);
        if range.end - range.start > MAX_INFO_BYTES {
            return Err(Unread::TooLarge);
        }
        let mut units = BTreeSet::new();
        let mut at = 0;
        while at < range.end - range.start {
            units.insert(at);
            if units.len() as u64 * MAX_ABBREVIATIONS_BYTES > MAX_INFO_BYTES {
                return Err(Unread::TooLarge);
            }
            at = at.saturating_add(self.unit_bytes(at)?);
        }
        Ok(units)
    }

    /// The length of the unit at `at`, with what says it.
    fn unit_bytes(&self, at: u64) -> Result<u64, Unread> {
        // DWARF 5, section 7.4: the 64-bit format has its length after this word.
        let length = match self.number(Section::Info, at, 4) {
            Some(0xffff_ffff) => self.number(Section::Info, at.saturating_add(4), 8),
            word => return word.map(|length| length + 4).ok_or(Unread::Damaged),
        };
        length
            .and_then(|length| length.checked_add(12))
            .ok_or(Unread::Damaged)
    }

    fn unit(&mut self, at: u64) -> Result<(), Unread> {
        let length = self.unit_bytes(at)?;
        let cost = length.saturating_add(MAX_ABBREVIATIONS_BYTES);
        let left = self.bytes_left.checked_sub(cost);
        self.bytes_left = left.ok_or(Unread::TooLarge)?;
        let info = self.bytes(Section::Info, at, length)?;
        let info = DebugInfo::new(&info, LittleEndian);
        let header = info.header_from_offset(DebugInfoOffset(0))?;
        let abbreviations = header.debug_abbrev_offset().0 as u64;
        let bytes = self.bytes(
            Section::Abbreviations,
            abbreviations,
            MAX_ABBREVIATIONS_BYTES,
        )?;
        let abbreviations =
            DebugAbbrev::new(&bytes, LittleEndian).abbreviations(gimli::DebugAbbrevOffset(0))?;
        self.entries(&header, &abbreviations)
    }

    fn entries(
        &mut self,
        header: &UnitHeader<Slice<'_>>,
        abbreviations: &Abbreviations,
    ) -> Result<(), Unread> {
        let mut bases = Bases::default();
        let mut entries = header.entries_raw(abbreviations, None)?;
        while !entries.is_empty() {
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            let attributes = abbreviation.attributes();
            let left = self.attributes_left.checked_sub(attributes.len() + 1);
            self.attributes_left = left.ok_or(Unread::TooLarge)?;
            let is_function = abbreviation.tag() == constants::DW_TAG_subprogram
                && attributes
                    .iter()
                    .any(|attribute| attribute.name() == constants::DW_AT_low_pc);
            if is_function {
                let entry = Entry::read(&mut entries, attributes)?;
                self.function(header, abbreviations, bases, &entry)?;
            } else if abbreviation.tag() == constants::DW_TAG_compile_unit {
                bases = Bases::read(&mut entries, attributes)?;
            } else {
                entries.skip_attributes(attributes)?;
            }
        }
        Ok(())
    }

    fn function(
        &mut self,
        header: &UnitHeader<Slice<'_>>,
        abbreviations: &Abbreviations,
        bases: Bases,
        entry: &Entry<'_>,
    ) -> Result<(), Unread> {
        let Some(address) = self.address(entry.at, bases) else {
            return Ok(());
        };
        if !self.functions.contains(&address) {
            return Ok(());
        }
        let left = self.names_left.checked_sub(1);
        self.names_left = left.ok_or(Unread::TooLarge)?;
        let found = match entry.origin {
            Some(origin) if entry.name.is_none() => {
                let mut entries = header.entries_raw(abbreviations, Some(origin))?;
                let abbreviation = entries.read_abbreviation()?.ok_or(Unread::Damaged)?;
                let origin = Entry::read(&mut entries, abbreviation.attributes())?;
                self.future(header, bases, &origin)
            }
            _ => self.future(header, bases, entry),
        };
        if let Some(found) = found {
            self.types.entry(address).or_default().insert(found);
        }
        Ok(())
    }

    /// The future's type, if the entry is that of a vtable's function.
    fn future(
        &self,
        header: &UnitHeader<Slice<'_>>,
        bases: Bases,
        entry: &Entry<'_>,
    ) -> Option<String> {
        let mangled = self.text(header, bases, entry.linkage_name?)?;
        let name = self.text(header, bases, entry.name?)?;
        names::debug_type(&mangled, &name)
    }

    fn address(&self, value: Option<AttributeValue<Slice<'_>>>, bases: Bases) -> Option<u64> {
        match value? {
            AttributeValue::Addr(address) => Some(address),
            AttributeValue::DebugAddrIndex(index) => {
                let at = (index.0 as u64)
                    .checked_mul(8)?
                    .checked_add(bases.addresses)?;
                self.number(Section::Addresses, at, 8)
            }
            _ => None,
        }
    }

    fn text(
        &self,
        header: &UnitHeader<Slice<'_>>,
        bases: Bases,
        value: AttributeValue<Slice<'_>>,
    ) -> Option<String> {
        match value {
            AttributeValue::String(text) => text.to_string().ok().map(str::to_owned),
            AttributeValue::DebugStrRef(at) => self.text_at(Section::Strings, at.0 as u64),
            AttributeValue::DebugLineStrRef(at) => self.text_at(Section::LineStrings, at.0 as u64),
            AttributeValue::DebugStrOffsetsIndex(index) => {
                let bytes = u64::from(header.format().word_size());
                let at = (index.0 as u64)
                    .checked_mul(bytes)?
                    .checked_add(bases.strings)?;
                let at = self.number(Section::StringOffsets, at, bytes)?;
                self.text_at(Section::Strings, at)
            }
            _ => None,
        }
    }

    fn text_at(&self, section: Section, at: u64) -> Option<String> {
        let mut limit = TEXT_BYTES;
        loop {
            let mut bytes = self.bytes(section, at, limit).ok()?;
            if let Some(end) = memchr::memchr(0, &bytes) {
                bytes.truncate(end);
                return String::from_utf8(bytes).ok();
            }
            if limit >= MAX_NAME_BYTES || (bytes.len() as u64) < limit {
                return None;
            }
            limit = MAX_NAME_BYTES;
        }
    }

    fn number(&self, section: Section, at: u64, bytes: u64) -> Option<u64> {
        let found = self.bytes(section, at, bytes).ok()?;
        let mut word = [0; 8];
        if found.len() as u64 != bytes {
            return None;
        }
        word.get_mut(..found.len())?.copy_from_slice(&found);
        Some(u64::from_le_bytes(word))
    }

    /// At most `limit` bytes of a section.
    fn bytes(&self, section: Section, at: u64, limit: u64) -> Result<Vec<u8>, Unread> {
        let range = self.debug.range(section);
        let start = range.start.saturating_add(at).min(range.end);
        let end = start.saturating_add(limit).min(range.end);
        (self.read)(start..end).ok_or(Unread::Damaged)
    }
}

impl<'data> Entry<'data> {
    fn read(
        entries: &mut EntriesRaw<'_, Slice<'data>>,
        attributes: &[gimli::AttributeSpecification],
    ) -> Result<Self, Unread> {
        let mut entry = Self {
            at: None,
            name: None,
            linkage_name: None,
            origin: None,
        };
        for attribute in attributes {
            let attribute = entries.read_attribute(*attribute)?;
            let value = attribute.raw_value();
            match attribute.name() {
                constants::DW_AT_low_pc => entry.at = Some(value),
                constants::DW_AT_name => entry.name = Some(value),
                constants::DW_AT_linkage_name => entry.linkage_name = Some(value),
                constants::DW_AT_abstract_origin | constants::DW_AT_specification => {
                    if let AttributeValue::UnitRef(origin) = value {
                        entry.origin = Some(origin);
                    }
                }
                _ => {}
            }
        }
        Ok(entry)
    }
}

impl Bases {
    fn read(
        entries: &mut EntriesRaw<'_, Slice<'_>>,
        attributes: &[gimli::AttributeSpecification],
    ) -> Result<Self, Unread> {
        let mut bases = Self::default();
        for attribute in attributes {
            let attribute = entries.read_attribute(*attribute)?;
            let AttributeValue::SecOffset(at) = attribute.raw_value() else {
                continue;
            };
            match attribute.name() {
                constants::DW_AT_str_offsets_base => bases.strings = at as u64,
                constants::DW_AT_addr_base => bases.addresses = at as u64,
                _ => {}
            }
        }
        Ok(bases)
    }
}

#[cfg(test)]
mod tests;
