//! The unwind tables of one file, where a process has it.
//!
//! In: an ELF file or its image, and its mappings. Out: its tables, and which addresses
//! they cover. Never: more than [`MAX_TABLE_BYTES`] of it, nor a panic on hostile bytes.

use std::{fs::File, ops::Range, sync::Arc};

use framehop::ExplicitModuleSectionInfo;
use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection as _};
use object::{
    Object as _, ObjectSection as _, ObjectSegment as _, ReadRef, SegmentFlags,
    elf::FileHeader64,
    endian::LittleEndian as ElfEndian,
    read::{ReadCache, elf::ElfFile},
};

/// Most bytes of one file's tables.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// What the library keeps of a file's tables.
pub(crate) type Tables = Arc<[u8]>;

/// A part of a file that is mapped as code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where.
    pub addresses: Range<u64>,
    /// Offset in the file, bytes.
    pub offset: u64,
}

/// A file's code in a process.
pub struct Module {
    code: Range<u64>,
    load_bias: u64,
    /// Start and length of what each entry covers, by start, as the file has it.
    covered: Vec<(u64, u32)>,
    bytes: u64,
    tables: framehop::Module<Tables>,
}

/// Why a file has no tables for us.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// It is no ELF file for x86-64, or a broken one.
    #[error(transparent)]
    Elf(#[from] object::Error),
    /// It has none.
    #[error("it has no .eh_frame")]
    NoTable,
    /// They are too large.
    #[error("its unwind tables have {bytes} bytes")]
    TooLarge {
        /// Their size.
        bytes: u64,
    },
    /// Its mappings are no part of it.
    #[error("its code is not mapped")]
    NotMapped,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// No code that we know is there.
    NoCode,
    /// Code is there that the tables do not have.
    Code,
    /// The tables have it.
    Table,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module")
            .field("code", &self.code)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Module {
    /// Those of a file, of which no more is read than is needed: one, unless it is loaded
    /// several times.
    ///
    /// # Errors
    /// [`ModuleError`].
    pub fn of_file(file: &File, mappings: &[Mapping]) -> Result<Vec<Self>, ModuleError> {
        Self::read(&ReadCache::new(file), mappings)
    }

    /// The same of a file whose bytes are here.
    ///
    /// # Errors
    /// [`ModuleError`].
    pub fn of_bytes(bytes: &[u8], mappings: &[Mapping]) -> Result<Vec<Self>, ModuleError> {
        Self::read(bytes, mappings)
    }

    fn read<'a, R: ReadRef<'a>>(file: R, mappings: &[Mapping]) -> Result<Vec<Self>, ModuleError> {
        let elf = ElfFile::<'a, FileHeader64<ElfEndian>, R>::parse(file)?;
        let sections = Sections::of(&elf)?;
        let mut codes: Vec<(u64, Range<u64>)> = Vec::new();
        for mapping in mappings {
            let Some(bias) = load_bias(&elf, mapping) else {
                continue;
            };
            let addresses = mapping.addresses.clone();
            match codes.iter_mut().find(|(of, _)| *of == bias) {
                Some((_, code)) => {
                    *code = code.start.min(addresses.start)..code.end.max(addresses.end);
                }
                None => codes.push((bias, addresses)),
            }
        }
        if codes.is_empty() {
            return Err(ModuleError::NotMapped);
        }
        let module = |(bias, code)| sections.module(bias, code);
        Ok(codes.into_iter().map(module).collect())
    }

    /// Addresses of its code.
    pub fn code(&self) -> &Range<u64> {
        &self.code
    }

    /// Memory that it takes, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn tables(&self) -> framehop::Module<Tables> {
        self.tables.clone()
    }

    pub(crate) fn cover(&self, address: u64) -> Cover {
        if !self.code.contains(&address) {
            return Cover::NoCode;
        }
        let address = address.wrapping_sub(self.load_bias);
        let at = self.covered.partition_point(|(start, _)| *start <= address);
        let entry = at.checked_sub(1).and_then(|at| self.covered.get(at));
        match entry {
            Some((start, length)) if address - start < u64::from(*length) => Cover::Table,
            _ => Cover::Code,
        }
    }
}

/// `PF_X` (include/uapi/linux/elf.h).
const EXECUTABLE: u32 = 1;
/// Least bytes that are mapped.
const PAGE_BYTES: u64 = 4096;

/// What a mapping's addresses are ahead of the file's.
fn load_bias<'data, R: ReadRef<'data>>(
    elf: &ElfFile<'data, FileHeader64<ElfEndian>, R>,
    mapping: &Mapping,
) -> Option<u64> {
    let is_code =
        |flags| matches!(flags, SegmentFlags::Elf { p_flags } if p_flags & EXECUTABLE != 0);
    let segment = elf.segments().find(|segment| {
        let (start, bytes) = segment.file_range();
        // A mapping begins with the page in which the segment does.
        let first_page = start & !(PAGE_BYTES - 1);
        let pages = first_page..start.saturating_add(bytes);
        is_code(segment.flags()) && pages.contains(&mapping.offset)
    })?;
    let (start, _) = segment.file_range();
    let ahead = mapping.offset.wrapping_sub(start);
    let address = segment.address().wrapping_add(ahead);
    Some(mapping.addresses.start.wrapping_sub(address))
}

/// The sections that unwinding reads.
struct Sections {
    eh_frame: (Range<u64>, Tables),
    eh_frame_hdr: Option<(Range<u64>, Tables)>,
    text: Option<Range<u64>>,
    got: Option<Range<u64>>,
    covered: Vec<(u64, u32)>,
}

impl Sections {
    fn of<'data, R: ReadRef<'data>>(
        elf: &ElfFile<'data, FileHeader64<ElfEndian>, R>,
    ) -> Result<Self, ModuleError> {
        let range = |name: &str| {
            let section = elf.section_by_name(name)?;
            let start = section.address();
            Some(start..start.checked_add(section.size())?)
        };
        let tables = |name: &str| -> Result<Option<(Range<u64>, Tables)>, ModuleError> {
            let Some(section) = elf.section_by_name(name) else {
                return Ok(None);
            };
            let bytes = section.size();
            if bytes > MAX_TABLE_BYTES {
                return Err(ModuleError::TooLarge { bytes });
            }
            let data: Tables = section.data()?.into();
            let start = section.address();
            Ok(Some((start..start.saturating_add(data.len() as u64), data)))
        };
        let eh_frame = tables(".eh_frame")?.ok_or(ModuleError::NoTable)?;
        let mut sections = Self {
            eh_frame,
            eh_frame_hdr: tables(".eh_frame_hdr")?,
            text: range(".text"),
            got: range(".got"),
            covered: Vec::new(),
        };
        sections.covered = sections.covered();
        Ok(sections)
    }

    /// What the entries cover, as far as they can be read.
    fn covered(&self) -> Vec<(u64, u32)> {
        let start = |range: Option<&Range<u64>>| range.map_or(0, |range| range.start);
        let bases = BaseAddresses::default()
            .set_eh_frame(self.eh_frame.0.start)
            .set_text(start(self.text.as_ref()))
            .set_got(start(self.got.as_ref()));
        let mut eh_frame = EhFrame::from(EndianSlice::new(&self.eh_frame.1, LittleEndian));
        eh_frame.set_address_size(8);
        let mut covered = Vec::new();
        let mut entries = eh_frame.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(entry) = entry else {
                continue;
            };
            let Ok(entry) = entry.parse(EhFrame::cie_from_offset) else {
                continue;
            };
            let length = u32::try_from(entry.len()).unwrap_or(u32::MAX);
            covered.push((entry.initial_address(), length));
        }
        covered.sort_unstable();
        covered.shrink_to_fit();
        covered
    }

    fn module(&self, load_bias: u64, code: Range<u64>) -> Module {
        let (eh_frame_svma, eh_frame) = self.eh_frame.clone();
        let (eh_frame_hdr_svma, eh_frame_hdr) = self.eh_frame_hdr.clone().unzip();
        let entry_bytes = size_of::<(u64, u32)>() * self.covered.len();
        let header_bytes = eh_frame_hdr.as_ref().map_or(0, |bytes| bytes.len());
        let info = ExplicitModuleSectionInfo {
            text_svma: self.text.clone(),
            got_svma: self.got.clone(),
            eh_frame_svma: Some(eh_frame_svma),
            eh_frame: Some(Arc::clone(&eh_frame)),
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..ExplicitModuleSectionInfo::default()
        };
        Module {
            load_bias,
            covered: self.covered.clone(),
            bytes: (eh_frame.len() + header_bytes + entry_bytes) as u64,
            tables: framehop::Module::new(String::new(), code.clone(), load_bias, info),
            code,
        }
    }
}
