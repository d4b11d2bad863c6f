//! Which parts of a file a scan reads, so that the rest need not be.
//!
//! In: a file of which only some parts are there, the others zero. Out: the parts to
//! read next. Never: more than a stated number of bytes, whatever the headers say.

use std::ops::Range;

use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD, ProgramHeader64, SHT_DYNSYM, SHT_SYMTAB};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::debug::DEBUG_LINK;
use super::sections::{self, Sections};
use super::{
    COMMENT, ENDIAN, LOADED, MAX_COMMENT_BYTES, MAX_LOADED_BYTES, file_header, program_headers,
};
use crate::error::{self, ScanError};

/// Symbols, their names, comment: bytes of the largest program accepted.
const MAX_SYMBOL_BYTES: u64 = 512 << 20;

/// Tells parts of a file that are to be read, given those of the steps before.
pub type Step = fn(&[u8]) -> Result<Vec<Range<u64>>, ScanError>;

/// One step after the other; what none of them names, [`crate::scan()`] does not read.
pub const STEPS: [Step; 4] = [beginning, tables, contents, small_sections];
/// The same for the debug file of a program, which has nothing that is loaded.
pub const DEBUG_FILE_STEPS: [Step; 3] = [beginning, tables, symbols];

fn beginning(elf: &[u8]) -> Result<Vec<Range<u64>>, ScanError> {
    let header = 0..size_of::<FileHeader64<LittleEndian>>() as u64;
    limited(elf, [header], "bytes", u64::MAX)
}

/// The headers of segments and sections.
fn tables(elf: &[u8]) -> Result<Vec<Range<u64>>, ScanError> {
    let header = file_header(elf)?;
    let count = u64::from(header.e_phnum(ENDIAN));
    let start = header.e_phoff(ENDIAN);
    let bytes = count * size_of::<ProgramHeader64<LittleEndian>>() as u64;
    let segments = start..start.saturating_add(bytes);
    let tables = [segments].into_iter().chain(Sections::table(header));
    limited(elf, tables, "bytes of headers", u64::MAX)
}

/// What is loaded, and the symbols.
fn contents(elf: &[u8]) -> Result<Vec<Range<u64>>, ScanError> {
    let header = file_header(elf)?;
    let headers = program_headers(header, elf)?;
    let loadable = |header: &&ProgramHeader64<_>| header.p_type(ENDIAN) == PT_LOAD;
    let segment = |header: &ProgramHeader64<LittleEndian>| {
        let (start, bytes) = header.file_range(ENDIAN);
        start..start.saturating_add(bytes)
    };
    let segments = headers.iter().filter(loadable).map(segment);
    let mut parts = limited(elf, segments, LOADED, MAX_LOADED_BYTES)?;
    parts.extend(symbols(elf)?);
    Ok(parts)
}

/// The symbols, the names of sections, and notes.
fn symbols(elf: &[u8]) -> Result<Vec<Range<u64>>, ScanError> {
    let sections = Sections::read(file_header(elf)?, elf)?;
    let symbols = [SHT_SYMTAB, SHT_DYNSYM].map(|kind| sections.symbols(kind));
    let others = symbols.into_iter().flatten().flatten();
    let others = others.chain(sections.names()).chain(sections.notes());
    let others = others.map(sections::range);
    limited(elf, others, "bytes of symbols", MAX_SYMBOL_BYTES)
}

/// The sections that say the compiler and the debug file, which are found by their
/// names.
fn small_sections(elf: &[u8]) -> Result<Vec<Range<u64>>, ScanError> {
    let sections = Sections::read(file_header(elf)?, elf)?;
    let found = [COMMENT, DEBUG_LINK].map(|name| sections.named(name));
    let beginnings = found
        .into_iter()
        .flatten()
        .map(sections::range)
        .map(|part| {
            let end = part.start.saturating_add(MAX_COMMENT_BYTES as u64);
            part.start..part.end.min(end)
        });
    limited(elf, beginnings, "bytes", u64::MAX)
}

/// The parts, as far as they are in the file.
fn limited(
    elf: &[u8],
    parts: impl IntoIterator<Item = Range<u64>>,
    part: &'static str,
    limit: u64,
) -> Result<Vec<Range<u64>>, ScanError> {
    let end = elf.len() as u64;
    let within = |part: Range<u64>| part.start.min(end)..part.end.min(end);
    let parts: Vec<_> = parts.into_iter().map(within).collect();
    let bytes = parts.iter().map(|part| part.end - part.start).sum();
    error::limit(part, bytes, limit)?;
    Ok(parts)
}
