//! What of a program's file has to be known without the helper: where its code is loaded,
//! and its build id.
//!
//! In: an open file, trusted in nothing. Out: its segments of code. Never: a mapping of
//! the file; more of it than its headers and notes.

use std::fs::File;

use object::{
    Endianness,
    elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID, PF_X, PT_LOAD, PT_NOTE},
    read::{
        ReadCache,
        elf::{FileHeader as _, ProgramHeader as _},
    },
};

/// Largest segment of notes that is looked at, bytes.
const MAX_NOTES_BYTES: u64 = 64 << 10;
/// Most program headers that are looked at.
const MAX_HEADERS: usize = 256;

/// How a program is laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Its code: offset in the file, length, address.
    code: Vec<(u64, u64, u64)>,
    /// Its GNU build id, lower-case hex.
    pub(crate) build_id: Option<String>,
}

impl Layout {
    /// Reads it; `None` where that is no program.
    pub(crate) fn read(file: &File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
        let endian = header.endian().ok()?;
        if usize::from(header.e_phnum(endian)) > MAX_HEADERS {
            return None;
        }
        let headers = header.program_headers(endian, &cache).ok()?;
        let mut layout = Self::default();
        for part in headers {
            let (offset, length) = part.file_range(endian);
            match part.p_type(endian) {
                PT_LOAD if part.p_flags(endian) & PF_X != 0 => {
                    layout.code.push((offset, length, part.p_vaddr(endian)));
                }
                PT_NOTE if length <= MAX_NOTES_BYTES && layout.build_id.is_none() => {
                    let notes = part.notes(endian, &cache).ok().flatten();
                    layout.build_id = notes.and_then(|notes| build_id(endian, notes));
                }
                _ => {}
            }
        }
        Some(layout)
    }

    pub(crate) fn code(&self) -> impl Iterator<Item = (u64, u64)> {
        self.code
            .iter()
            .map(|&(offset, length, _)| (offset, length))
    }

    /// The address, as the file has it, of the code at an offset of it.
    pub(crate) fn address_of(&self, file_offset: u64) -> Option<u64> {
        let within = |&(offset, length, address): &(u64, u64, u64)| {
            let behind = file_offset.checked_sub(offset)?;
            (behind < length).then(|| address.wrapping_add(behind))
        };
        self.code.iter().find_map(within)
    }
}

fn build_id(
    endian: Endianness,
    mut notes: object::read::elf::NoteIterator<'_, FileHeader64<Endianness>>,
) -> Option<String> {
    while let Ok(Some(note)) = notes.next() {
        if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
            let hex = note.desc().iter().map(|byte| format!("{byte:02x}"));
            return Some(hex.collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn our_own_layout() {
        let own = std::env::current_exe().expect("we run");
        let layout = Layout::read(&File::open(own).expect("there")).expect("a program");
        let (offset, length, address) = layout.code[0];
        assert_eq!(layout.address_of(offset + 5), Some(address + 5));
        assert_eq!(layout.address_of(offset + length), None);
        assert!(layout.build_id.is_some_and(|id| id.len() >= 16));
    }

    #[test]
    fn what_is_no_program_has_none() {
        let mut file = tempfile::tempfile().expect("there is room");
        assert_eq!(Layout::read(&file), None);
        file.write_all(b"\x7fELF\x02\x01\x01")
            .expect("there is room");
        file.set_len(1 << 40).expect("a hole");
        assert!(Layout::read(&file).is_none_or(|layout| layout.code.is_empty()));
    }
}
