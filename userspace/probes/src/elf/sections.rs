//! Section headers, where a file still has them.
//!
//! In: the header's table of them. Out: the symbol tables and what is in the section
//! of a name. Never: a need for them, a search through a name's bytes.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{FileHeader64, SHN_XINDEX, SHT_NOTE, SectionHeader64};
use object::read::ReadRef as _;
use object::read::elf::{FileHeader as _, SectionHeader as _};

use super::ENDIAN;
use crate::error::{self, ScanError};

/// Far more than an executable has: about 40.
const MAX_SECTIONS: u64 = 1 << 12;

/// The section headers of a file; none in one that has none or damaged ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sections<'data> {
    headers: &'data [SectionHeader64<LittleEndian>],
    elf: &'data [u8],
    names: u16,
}

impl<'data> Sections<'data> {
    /// Where the table is in the file; `None` where there is none. (The count of a
    /// file with more than 65,279 is in the table itself: no linker makes such an
    /// executable.)
    pub(super) fn table(header: &FileHeader64<LittleEndian>) -> Option<Range<u64>> {
        let start = header.e_shoff(ENDIAN);
        let bytes =
            u64::from(header.e_shnum(ENDIAN)) * size_of::<SectionHeader64<LittleEndian>>() as u64;
        let end = start.checked_add(bytes)?;
        (start < end).then_some(start..end)
    }

    /// # Errors
    ///
    /// `TooBig`.
    pub(super) fn read(
        header: &FileHeader64<LittleEndian>,
        elf: &'data [u8],
    ) -> Result<Self, ScanError> {
        let count = header.e_shnum(ENDIAN);
        error::limit("sections", count.into(), MAX_SECTIONS)?;
        let headers = Self::table(header)
            .and_then(|table| elf.read_slice_at(table.start, count.into()).ok())
            .unwrap_or_default();
        Ok(Self {
            headers,
            elf,
            names: header.e_shstrndx(ENDIAN),
        })
    }

    /// A table of symbols and its strings.
    pub(super) fn symbols(&self, kind: u32) -> Option<[&'data SectionHeader64<LittleEndian>; 2]> {
        let is_it = |section: &&SectionHeader64<_>| section.sh_type(ENDIAN) == kind;
        let table = self.headers.iter().find(is_it)?;
        let strings = self.headers.get(table.sh_link(ENDIAN) as usize)?;
        Some([table, strings])
    }

    /// What holds the sections' names.
    pub(super) fn names(&self) -> Option<&'data SectionHeader64<LittleEndian>> {
        let is_one = self.names != 0 && self.names != SHN_XINDEX;
        is_one.then(|| self.headers.get(usize::from(self.names)))?
    }

    /// Sections of notes.
    pub(super) fn notes(&self) -> impl Iterator<Item = &'data SectionHeader64<LittleEndian>> {
        let is_note = |section: &&SectionHeader64<_>| section.sh_type(ENDIAN) == SHT_NOTE;
        self.headers.iter().filter(is_note)
    }

    /// The whole file, as far as it is there.
    pub(super) fn elf(&self) -> &'data [u8] {
        self.elf
    }

    /// The section with this name, which ends with its 0.
    pub(super) fn named(&self, name: &[u8]) -> Option<&'data SectionHeader64<LittleEndian>> {
        let names = self.bytes(self.names()?);
        self.headers.iter().find(|section| {
            let rest = names.get(section.sh_name(ENDIAN) as usize..);
            rest.is_some_and(|rest| rest.starts_with(name))
        })
    }

    /// What is in a section; nothing if it is not in the file.
    pub(super) fn bytes(&self, section: &SectionHeader64<LittleEndian>) -> &'data [u8] {
        section.data(ENDIAN, self.elf).unwrap_or_default()
    }
}

/// Where a section is in the file; empty where it is not.
pub(super) fn range(section: &SectionHeader64<LittleEndian>) -> Range<u64> {
    let (start, bytes) = section.file_range(ENDIAN).unwrap_or_default();
    start..start.saturating_add(bytes)
}
