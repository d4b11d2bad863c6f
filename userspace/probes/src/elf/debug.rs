//! What leads to debug information, in a file or to another file.
//!
//! In: section headers. Out: where the debug sections are, the name of a separate
//! file, build ids. Never: the contents of a debug section.
//!
//! `objcopy --only-keep-debug` leaves a file its headers, its symbols and notes and
//! the debug sections, at the addresses that the program has them.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{SHF_COMPRESSED, SHT_NOBITS, SHT_SYMTAB, SectionHeader64};
use object::read::elf::SectionHeader as _;

use super::sections::{self, Sections};
use super::{ENDIAN, build_id, build_id_among, file_header, program_headers};

/// The section that names a debug file.
pub(super) const DEBUG_LINK: &[u8] = b".gnu_debuglink\0";
/// The section that a file with debug information has.
const INFO: &[u8] = b".debug_info\0";

/// A debug section that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// Units and their entries.
    Info,
    /// What attributes entries have.
    Abbreviations,
    /// Addresses that units have code at.
    Ranges,
    /// Texts.
    Strings,
    /// Texts of version 5.
    LineStrings,
    /// Where texts are, by number.
    StringOffsets,
    /// Addresses, by number.
    Addresses,
}

impl Section {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Info => INFO,
            Self::Abbreviations => b".debug_abbrev\0",
            Self::Ranges => b".debug_aranges\0",
            Self::Strings => b".debug_str\0",
            Self::LineStrings => b".debug_line_str\0",
            Self::StringOffsets => b".debug_str_offsets\0",
            Self::Addresses => b".debug_addr\0",
        }
    }
}

/// The debug sections of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debug<'data>(Sections<'data>);

impl<'data> Debug<'data> {
    /// Those of `elf`; `None` where it has no debug information.
    pub(crate) fn of(elf: &'data [u8]) -> Option<Self> {
        let sections = sections_of(elf)?;
        has_bytes(sections.named(INFO)?).then_some(Self(sections))
    }

    /// Where a section is in the file; empty if it is not there.
    pub(crate) fn range(&self, section: Section) -> Range<u64> {
        self.0.named(section.name()).map_or(0..0, |header| {
            let range = sections::range(header);
            let end = self.0.elf().len() as u64;
            range.start.min(end)..range.end.min(end)
        })
    }

    /// Whether a section is compressed.
    pub(crate) fn is_compressed(&self, section: Section) -> bool {
        let header = self.0.named(section.name());
        header.is_some_and(|header| header.sh_flags(ENDIAN) & u64::from(SHF_COMPRESSED) != 0)
    }
}

/// The name of a debug file, and the CRC-32 of all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugLink<'data> {
    /// Without a directory.
    pub name: &'data str,
    /// As zlib computes it.
    pub crc: u32,
}

/// What `.gnu_debuglink` says: a name, its 0, zeros up to a multiple of 4, the CRC.
pub fn debug_link(elf: &[u8]) -> Option<DebugLink<'_>> {
    let sections = sections_of(elf)?;
    let bytes = sections.bytes(sections.named(DEBUG_LINK)?);
    let end = memchr::memchr(0, bytes)?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    let at = (end + 1).next_multiple_of(4);
    let crc = bytes.get(at..at + 4)?.try_into().ok()?;
    let is_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    is_name.then_some(DebugLink {
        name,
        crc: u32::from_le_bytes(crc),
    })
}

/// GNU build id of a program or of a debug file, lower-case hex.
pub fn build_id_of(elf: &[u8]) -> Option<String> {
    let header = file_header(elf).ok()?;
    let sections = sections_of(elf)?;
    // A debug file's segments are those of the program, and so not where they say.
    let of_section =
        |section: &SectionHeader64<LittleEndian>| build_id_among(section.notes(ENDIAN, elf).ok()??);
    sections
        .notes()
        .find_map(of_section)
        .or_else(|| build_id(program_headers(header, elf).ok()?, elf))
}

/// What of a program's names a file has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// A symbol table.
    pub symbols: bool,
    /// Debug information.
    pub debug_info: bool,
}

impl Names {
    /// Those in `elf`.
    pub fn of(elf: &[u8]) -> Self {
        let symbols = sections_of(elf).and_then(|sections| sections.symbols(SHT_SYMTAB));
        Self {
            symbols: symbols.is_some_and(|[table, _]| has_bytes(table)),
            debug_info: Debug::of(elf).is_some(),
        }
    }
}

fn sections_of(elf: &[u8]) -> Option<Sections<'_>> {
    Sections::read(file_header(elf).ok()?, elf).ok()
}

fn has_bytes(section: &SectionHeader64<LittleEndian>) -> bool {
    section.sh_type(ENDIAN) != SHT_NOBITS && section.sh_size(ENDIAN) > 0
}
