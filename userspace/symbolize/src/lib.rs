//! Names for the addresses in sealed segments.
//!
//! In: a segment's file, and the files that its target had mapped. Out: what goes behind
//! the segment's last batch: functions, inlined ones too, and source lines. Never: a file
//! of the target mapped into this process; a guess; a failure that costs more than names.
//!
//! ```text
//! segment → addresses → places (file and address in it) → cache → helper → symbols → tail
//! ```
//!
//! The files are trusted in nothing, so that a process of its own reads them, the
//! helper (`child`): whatever happens to it costs the names of one file, and its memory goes
//! with it.

mod ask;
mod cache;
pub mod child;
mod elf;
mod files;
mod places;
mod segment;
mod wire;

pub use ask::Helper;
pub use files::{CodeFile, Placed};
pub use segment::{Naming, Symbolizer, Tail};

use std::fmt;

/// What is read of debug information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugInfo {
    /// What there is: inlined functions and source lines.
    #[default]
    Auto,
    /// Nothing: symbol tables only.
    Never,
}

/// A function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, demangled.
    pub name: Box<str>,
    /// Path of the source file; empty where it is not known.
    pub file: Box<str>,
    /// Line, from 1; 0 where it is not known.
    pub line: u32,
}

/// Why an address has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unnamed {
    /// No mapping that we know of has it.
    Unmapped,
    /// Two files had it, one after the other.
    Ambiguous,
    /// Its file could not be opened, or is another one by now.
    NoFile,
    /// Its file has no symbols.
    NoSymbols,
    /// No symbol covers it.
    NoSymbol,
    /// Its file could not be read as a program.
    Broken,
    /// The helper died over its file, or took too long or too much memory.
    Failed,
    /// The kernel hides its addresses, as `kernel.kptr_restrict` has it.
    KernelHidden,
    /// It is of a kernel that ran before.
    KernelGone,
    /// There were too many others.
    TooMany,
}

impl fmt::Display for Unnamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmapped => "unmapped",
            Self::Ambiguous => "ambiguous",
            Self::NoFile => "no-file",
            Self::NoSymbols => "no-symbols",
            Self::NoSymbol => "no-symbol",
            Self::Broken => "broken-file",
            Self::Failed => "failed",
            Self::KernelHidden => "kernel-hidden",
            Self::KernelGone => "kernel-gone",
            Self::TooMany => "too-many",
        })
    }
}

/// What an address turned out to be: the function whose code it is, then what was inlined
/// into that, outermost first.
pub type Answer = Result<Box<[Function]>, Unnamed>;
