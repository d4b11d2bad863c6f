//! Why a file could not be scanned.

/// A file that cannot be scanned, or has no Tokio in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The file does not begin with the ELF magic number.
    #[error("not an ELF file ({bytes} bytes)")]
    NotElf {
        /// Length of the file, bytes.
        bytes: u64,
    },
    /// A 32-bit ELF file.
    #[error("32-bit ELF file (class {class})")]
    UnsupportedClass {
        /// `e_ident[EI_CLASS]`.
        class: u8,
    },
    /// An ELF file for another processor.
    #[error("ELF file for machine {machine}, not for x86-64 (62)")]
    UnsupportedArchitecture {
        /// `e_machine`.
        machine: u16,
    },
    /// A part of the file contradicts another.
    #[error("malformed ELF file: {part}")]
    Malformed {
        /// What could not be read.
        part: &'static str,
    },
    /// More of something than any real program has.
    #[error("{count} {part}, more than {limit}")]
    TooBig {
        /// What there is too much of.
        part: &'static str,
        /// How much there is.
        count: u64,
        /// How much is accepted.
        limit: u64,
    },
    /// No task vtable of Tokio 1.24 or later.
    #[error("no Tokio task vtable among {pointers} code pointers in the file's data")]
    NotTokio {
        /// Words of the data segments that point to code.
        pointers: usize,
    },
}

/// # Errors
///
/// `TooBig` if there is more of `part` than `limit`.
pub(crate) fn limit(part: &'static str, count: u64, limit: u64) -> Result<(), ScanError> {
    if count > limit {
        return Err(ScanError::TooBig { part, count, limit });
    }
    Ok(())
}
