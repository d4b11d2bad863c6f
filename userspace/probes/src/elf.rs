//! What a scan needs from an ELF file: segments, relocated words, function
//! ranges, symbols, build id, comment.
//!
//! In: the bytes of a file, trusted in nothing. Out: an [`Image`], addressed by
//! link-time virtual addresses. Never: a panic on hostile input, a need for
//! section headers (only symbols and the comment come from them), knowledge of Tokio.

mod debug;
mod frames;
mod parts;
mod pointers;
mod sections;
mod symbols;

use std::ops::Range;

use object::LittleEndian;
use object::elf::{
    EM_X86_64, ET_EXEC, FileHeader64, PF_W, PF_X, PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader64,
    SHT_DYNSYM, SHT_SYMTAB,
};
use object::read::elf::{FileHeader as _, NoteIterator, ProgramHeader as _};

pub(crate) use self::debug::{Debug, Section};
pub use self::debug::{DebugLink, Names, build_id_of, debug_link};
pub use self::parts::{DEBUG_FILE_STEPS, STEPS, Step};
use self::pointers::Pointers;
use self::sections::Sections;
pub(crate) use self::symbols::{Symbol, Symbols};
use crate::error::{self, ScanError};

const ENDIAN: LittleEndian = LittleEndian;
/// More program headers than any linker makes.
const MAX_SEGMENTS: u64 = 64;
/// What the largest program accepted loads of its file, bytes.
const MAX_LOADED_BYTES: u64 = 512 << 20;
/// Notes of a segment that are looked at.
const MAX_NOTES: usize = 16;
/// Longest build id, bytes; SHA-1 has 20.
const MAX_BUILD_ID_BYTES: usize = 64;
/// Entries of the dynamic table that are looked at; there are about 30.
const MAX_DYNAMIC: usize = 1 << 10;
/// How much of the comment section is looked at, bytes.
const MAX_COMMENT_BYTES: usize = 1 << 16;
/// In the mangled names of Tokio's functions, by either mangling.
const TOKIO_RUNTIME: &str = "5tokio7runtime";
/// The section's name.
const COMMENT: &[u8] = b".comment\0";
/// What [`MAX_LOADED_BYTES`] limits.
const LOADED: &str = "bytes of segments";

/// Whether functions of the file's Tokio are in another file, so that the two count
/// tasks together.
pub fn shares_tokio(elf: &[u8]) -> bool {
    imports_any(elf, TOKIO_RUNTIME)
}

/// A loadable part of the file.
#[derive(Debug)]
struct Segment<'data> {
    address: u64,
    file_offset: u64,
    data: &'data [u8],
    is_code: bool,
    is_writable: bool,
}

impl Segment<'_> {
    fn contains(&self, address: u64) -> bool {
        address
            .checked_sub(self.address)
            .is_some_and(|at| at < self.data.len() as u64)
    }
}

/// An ELF file, addressed by link-time virtual addresses.
#[derive(Debug)]
pub(crate) struct Image<'data> {
    segments: Vec<Segment<'data>>,
    pointers: Pointers,
    functions: Vec<Range<u64>>,
    symbols: Symbols<'data>,
    build_id: Option<String>,
    comment: &'data [u8],
}

impl<'data> Image<'data> {
    /// Reads the parts of `elf` that a scan needs.
    ///
    /// # Errors
    ///
    /// Every [`ScanError`] but `NotTokio`.
    pub(crate) fn parse(elf: &'data [u8]) -> Result<Self, ScanError> {
        Self::parse_with(elf, None)
    }

    /// The same, with the symbols of its debug file where it has none itself.
    ///
    /// # Errors
    ///
    /// As [`Image::parse`].
    pub(crate) fn parse_with(
        elf: &'data [u8],
        debug_file: Option<&'data [u8]>,
    ) -> Result<Self, ScanError> {
        let header = file_header(elf)?;
        let headers = program_headers(header, elf)?;
        let sections = Sections::read(header, elf)?;
        let mut image = Self {
            segments: segments(headers, elf)?,
            pointers: Pointers::default(),
            functions: Vec::new(),
            symbols: symbols(sections, debug_file)?,
            build_id: build_id(headers, elf),
            comment: comment(sections),
        };
        image.pointers = if header.e_type(ENDIAN) == ET_EXEC {
            Pointers::raw(&image)?
        } else {
            Pointers::relocated(&image, &dynamic_table(headers, elf))?
        };
        let frame_header = headers
            .iter()
            .find(|header| header.p_type(ENDIAN) == PT_GNU_EH_FRAME);
        image.functions = frame_header
            .and_then(|header| frames::read(&image, header.p_vaddr(ENDIAN)))
            .filter(|functions| !functions.is_empty())
            .unwrap_or_else(|| image.symbols.ranges());
        image.keep_code_ranges();
        Ok(image)
    }

    /// Drops ranges outside code and cuts overlaps, so that a pass over all
    /// functions is linear in the size of the code.
    fn keep_code_ranges(&mut self) {
        let mut functions = std::mem::take(&mut self.functions);
        functions.retain(|range| self.is_code(range.start));
        functions.sort_unstable_by_key(|range| (range.start, range.end));
        functions.dedup_by_key(|range| range.start);
        for index in 1..functions.len() {
            let next = functions[index].start;
            let range = &mut functions[index - 1];
            range.end = range.end.min(next);
        }
        functions.retain(|range| range.start < range.end);
        self.functions = functions;
    }

    /// The bytes from `address` to the end of its segment, at most `limit`.
    pub(crate) fn bytes(&self, address: u64, limit: usize) -> Option<&'data [u8]> {
        let segment = self
            .segments
            .iter()
            .find(|segment| segment.contains(address))?;
        let start = usize::try_from(address - segment.address).ok()?;
        let rest = segment.data.get(start..)?;
        Some(&rest[..rest.len().min(limit)])
    }

    /// The little-endian word at `address`, as the file has it.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let bytes = self.bytes(address, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The address that the word at `address` will hold once loaded; `None` if
    /// it holds none.
    pub(crate) fn pointer(&self, address: u64) -> Option<u64> {
        self.pointers.get(self, address)
    }

    /// Words that will point to code: their addresses and values, sorted by
    /// address.
    pub(crate) fn code_pointers(&self) -> &[(u64, u64)] {
        self.pointers.to_code()
    }

    /// Whether `address` is file-backed and executable.
    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.is_code && segment.contains(address))
    }

    /// Offset of `address` in the file, bytes.
    pub(crate) fn file_offset(&self, address: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|segment| segment.contains(address))?;
        segment.file_offset.checked_add(address - segment.address)
    }

    /// Read-only segments; those with code, which old linkers put constants
    /// into, come last.
    pub(crate) fn constants(&self) -> impl Iterator<Item = &'data [u8]> {
        let with_code = |is_code| {
            let is_wanted =
                move |segment: &&Segment<'_>| segment.is_code == is_code && !segment.is_writable;
            self.segments
                .iter()
                .filter(is_wanted)
                .map(|segment| segment.data)
        };
        with_code(false).chain(with_code(true))
    }

    /// Ranges of all functions, sorted, without overlaps.
    pub(crate) fn functions(&self) -> &[Range<u64>] {
        &self.functions
    }

    /// The function that `address` lies in.
    pub(crate) fn function_at(&self, address: u64) -> Option<Range<u64>> {
        let after = self
            .functions
            .partition_point(|range| range.start <= address);
        let range = self.functions.get(after.checked_sub(1)?)?;
        (address < range.end).then(|| range.clone())
    }

    /// Symbols of functions; none in a stripped file.
    pub(crate) fn symbols(&self) -> &Symbols<'data> {
        &self.symbols
    }

    /// What compilers and linkers left about themselves, text after text, each
    /// ended by a 0; empty if they did not.
    pub(crate) fn comment(&self) -> &'data [u8] {
        self.comment
    }

    /// GNU build id, lower-case hex.
    pub(crate) fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }
}

/// The file's own symbols, or those of its debug file, if that is sound.
///
/// # Errors
///
/// `TooBig`.
fn symbols<'data>(
    sections: Sections<'data>,
    debug_file: Option<&'data [u8]>,
) -> Result<Symbols<'data>, ScanError> {
    let own = Symbols::read(sections, SHT_SYMTAB)?;
    let others = || {
        let elf = debug_file?;
        let sections = Sections::read(file_header(elf).ok()?, elf).ok()?;
        Symbols::read(sections, SHT_SYMTAB).ok()
    };
    Ok(if own.is_empty() {
        others().unwrap_or(own)
    } else {
        own
    })
}

/// The functions that the file exports; none where its tables are not sound.
pub(crate) fn exports(elf: &[u8]) -> Symbols<'_> {
    let sections = file_header(elf).and_then(|header| Sections::read(header, elf));
    let symbols = sections.and_then(|sections| Symbols::read(sections, SHT_DYNSYM));
    symbols.unwrap_or_default()
}

/// Address of a function that the file exports by this name.
pub(crate) fn exported(elf: &[u8], name: &str) -> Option<u64> {
    let sections = Sections::read(file_header(elf).ok()?, elf).ok()?;
    let symbols = Symbols::read(sections, SHT_DYNSYM).ok()?;
    Some(symbols.named(name)?.address)
}

/// Whether the file takes a symbol of this name from another.
pub(crate) fn imports(elf: &[u8], name: &str) -> bool {
    file_header(elf)
        .and_then(|header| Sections::read(header, elf))
        .is_ok_and(|sections| symbols::imports(sections, SHT_DYNSYM, name))
}

/// Whether the file takes a symbol from another whose name has `part` in it.
pub(crate) fn imports_any(elf: &[u8], part: &str) -> bool {
    file_header(elf)
        .and_then(|header| Sections::read(header, elf))
        .is_ok_and(|sections| symbols::imports_any(sections, SHT_DYNSYM, part))
}

fn comment(sections: Sections<'_>) -> &[u8] {
    let section = sections.named(COMMENT);
    let bytes = section.map_or(&[][..], |section| sections.bytes(section));
    &bytes[..bytes.len().min(MAX_COMMENT_BYTES)]
}

fn file_header(elf: &[u8]) -> Result<&FileHeader64<LittleEndian>, ScanError> {
    if !elf.starts_with(&object::elf::ELFMAG) {
        return Err(ScanError::NotElf {
            bytes: elf.len() as u64,
        });
    }
    let (Some(&class), Some(&data)) = (elf.get(4), elf.get(5)) else {
        return Err(ScanError::Malformed {
            part: "identification",
        });
    };
    if class == object::elf::ELFCLASS32 {
        return Err(ScanError::UnsupportedClass { class });
    }
    if data != object::elf::ELFDATA2LSB {
        return Err(ScanError::Malformed { part: "byte order" });
    }
    let header = FileHeader64::<LittleEndian>::parse(elf).map_err(|_| ScanError::Malformed {
        part: "file header",
    })?;
    match header.e_machine(ENDIAN) {
        EM_X86_64 => Ok(header),
        machine => Err(ScanError::UnsupportedArchitecture { machine }),
    }
}

/// # Errors
///
/// `Malformed`, `TooBig`.
fn program_headers<'data>(
    header: &FileHeader64<LittleEndian>,
    elf: &'data [u8],
) -> Result<&'data [ProgramHeader64<LittleEndian>], ScanError> {
    let count = header.e_phnum(ENDIAN);
    error::limit("program headers", count.into(), MAX_SEGMENTS)?;
    header
        .program_headers(ENDIAN, elf)
        .map_err(|_| ScanError::Malformed {
            part: "program headers",
        })
}

/// The loadable segments, sorted by address.
fn segments<'data>(
    headers: &[ProgramHeader64<LittleEndian>],
    elf: &'data [u8],
) -> Result<Vec<Segment<'data>>, ScanError> {
    let loadable = |header: &&ProgramHeader64<_>| header.p_type(ENDIAN) == PT_LOAD;
    let segments: Result<Vec<_>, _> = headers
        .iter()
        .filter(loadable)
        .map(|header| segment(header, elf))
        .collect();
    let mut segments = segments?;
    let bytes = segments.iter().map(|segment| segment.data.len() as u64);
    error::limit(LOADED, bytes.sum(), MAX_LOADED_BYTES)?;
    segments.sort_by_key(|segment| segment.address);
    // The kernel would put one over the other.
    let is_apart = |pair: &[Segment<'_>]| !pair[0].contains(pair[1].address);
    if !segments.windows(2).all(is_apart) {
        let part = "overlapping segments";
        return Err(ScanError::Malformed { part });
    }
    Ok(segments)
}

fn segment<'data>(
    header: &ProgramHeader64<LittleEndian>,
    elf: &'data [u8],
) -> Result<Segment<'data>, ScanError> {
    let malformed = |part| ScanError::Malformed { part };
    let data = header.data(ENDIAN, elf);
    let data = data.map_err(|()| malformed("segment"))?;
    let address = header.p_vaddr(ENDIAN);
    let end = address.checked_add(data.len() as u64);
    end.ok_or(malformed("segment address"))?;
    let flags = header.p_flags(ENDIAN);
    Ok(Segment {
        address,
        file_offset: header.p_offset(ENDIAN),
        data,
        is_code: flags & PF_X != 0,
        is_writable: flags & PF_W != 0,
    })
}

/// The dynamic table's (tag, value) pairs.
fn dynamic_table(headers: &[ProgramHeader64<LittleEndian>], elf: &[u8]) -> Vec<(u64, u64)> {
    headers
        .iter()
        .find_map(|header| header.dynamic(ENDIAN, elf).ok().flatten())
        .map(|entries| {
            let pair = |entry: &object::elf::Dyn64<LittleEndian>| {
                (
                    entry.d_tag.get(ENDIAN).cast_unsigned(),
                    entry.d_val.get(ENDIAN),
                )
            };
            entries.iter().take(MAX_DYNAMIC).map(pair).collect()
        })
        .unwrap_or_default()
}

fn build_id(headers: &[ProgramHeader64<LittleEndian>], elf: &[u8]) -> Option<String> {
    let of_segment = |header: &ProgramHeader64<_>| build_id_among(header.notes(ENDIAN, elf).ok()??);
    headers.iter().find_map(of_segment)
}

fn build_id_among(mut notes: NoteIterator<'_, FileHeader64<LittleEndian>>) -> Option<String> {
    for _ in 0..MAX_NOTES {
        let note = notes.next().ok().flatten()?;
        if note.name() == object::elf::ELF_NOTE_GNU
            && note.n_type(ENDIAN) == object::elf::NT_GNU_BUILD_ID
            && note.desc().len() <= MAX_BUILD_ID_BYTES
        {
            return Some(hex(note.desc()));
        }
    }
    None
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 0x0f] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_takes_from_others() {
        let own = std::env::current_exe().and_then(std::fs::read);
        let own = own.expect("we run");
        for (part, is_imported) in [
            ("_Unwind_Raise", true),
            ("nwind_RaiseExcepti", true),
            ("what_a_file_takes_from_others", false),
        ] {
            assert_eq!(imports_any(&own, part), is_imported, "{part}");
        }
        assert!(!shares_tokio(&own));
    }
}
