//! Probe files: text → what is declared to be probed.
//!
//! In: the text of a `*.uprobes` or a `*.usdt` file. Out: [`Spec`], checked as far as a
//! file alone can be, or the first error with its line and column. Never: a look at a
//! process or at a binary; what a pattern stands for there is not known here.
//!
//! The grammar is in `probes.pest`, and by example in the README. Two files are part of
//! the program: [`ALLOC`] and [`TOKIO`].

use std::fmt;

use dial9_bpf_abi::declared;

mod check;
mod declare;
mod filter;
mod program;
mod syntax;

#[cfg(test)]
mod tests;

pub use filter::{Constant, Filter, Operator, Test};
pub use program::{Operand, OperandPlace, Program, ProgramError};
pub use syntax::SpecError;

/// `probes/alloc.uprobes`: where programs allocate. Nothing runs on it yet.
pub const ALLOC: &str = include_str!("../../../probes/alloc.uprobes");
/// `probes/tokio.usdt`: Tokio's probes. Nothing runs on it yet.
pub const TOKIO: &str = include_str!("../../../probes/tokio.usdt");

/// Most values of a probe.
pub const MAX_VALUES: usize = declared::MAX_FIELDS;
/// Most pointers that are followed for a value.
pub const MAX_STEPS: usize = declared::MAX_STEPS;
/// Most bytes of one value.
pub const MAX_VALUE_BYTES: u32 = declared::MAX_VALUE_BYTES;
/// Most bytes of a constant that a value is compared with.
pub const MAX_CONSTANT_BYTES: usize = declared::CONSTANT_BYTES;
/// Most comparisons of a filter.
pub const MAX_TESTS: usize = declared::MAX_TESTS;

/// Which kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `*.uprobes`: places in code.
    Uprobes,
    /// `*.usdt`: notes that a binary carries, by provider and name.
    Usdt,
}

/// A probe file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// In the order of the file.
    pub probes: Vec<Probe>,
}

impl Spec {
    /// Reads a file.
    ///
    /// # Errors
    /// The first error, with its line and column and what was expected there.
    pub fn parse(text: &str, dialect: Dialect) -> Result<Self, SpecError> {
        declare::spec(text, dialect)
    }
}

impl Filter {
    /// Reads a filter that stands alone, as `tenant == 7 && len > 4096`, on these values.
    ///
    /// # Errors
    /// As [`Spec::parse`].
    pub fn parse(text: &str, values: &[Value]) -> Result<Self, SpecError> {
        declare::filter_of(text, values)
    }
}

/// A declared probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The provider's name.
    pub provider: String,
    /// Its name there.
    pub name: String,
    /// Where it may attach: everywhere where one of these is.
    pub places: Vec<Place>,
    /// At which moment.
    pub moment: Moment,
    /// What is read.
    pub values: Vec<Value>,
    /// Which hits count; all without it.
    pub filter: Option<Filter>,
    /// What becomes of a hit.
    pub emit: Emit,
    /// Line of its declaration, from 1.
    pub line: usize,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.provider, self.name)
    }
}

/// Where a probe attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a function, or behind its begin.
    Function {
        /// A pattern of demangled names with `*` and `?`, or a mangled name.
        pattern: String,
        /// Bytes behind the function's begin.
        offset: u64,
        /// In which of the process's files.
        object: Object,
    },
    /// At an address, as the file's own addresses are.
    Address {
        /// The address.
        address: u64,
        /// In which of the process's files.
        object: Object,
    },
    /// At a note of the provider and name, in whatever file has one.
    Note,
    /// At the sites that the scanner finds for this probe of Tokio's.
    Discovered(String),
}

/// A file of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// The executable.
    Exe,
    /// Every file that is mapped as code.
    Any,
    /// Those whose file name the pattern is of, as `libc.so.6` or `libssl*`.
    Named(Pattern),
}

/// A pattern of names, in which `*` and `?` stand for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Pattern {
    /// Whether a name is of it.
    pub fn matches(&self, name: &str) -> bool {
        wildmatch::WildMatch::new(&self.0).matches(name)
    }
}

/// When a probe is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the instruction.
    Entry,
    /// When the function returns.
    Return(Exit),
    /// At both, which makes a span.
    Call(Exit),
}

impl Moment {
    /// How returns are seen, where they are.
    pub fn exit(self) -> Option<Exit> {
        match self {
            Self::Entry => None,
            Self::Return(exit) | Self::Call(exit) => Some(exit),
        }
    }
}

/// How the return of a function is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// At its `ret` instructions, which the kernel single-steps.
    Instructions,
    /// By a return probe, which replaces the return address: a panic through the function
    /// aborts the process.
    Uretprobe,
}

/// A value that is read at a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its name.
    pub name: String,
    /// What it is.
    pub ty: Type,
    /// Where it is.
    pub source: Expression,
    /// Length in bytes, of a text or of bytes; as many as the type says without it.
    pub length: Option<Expression>,
    /// Whether it becomes a field of the event; otherwise it is for the filter.
    pub is_field: bool,
    /// Its unit, as `bytes` or `ns`.
    pub unit: Option<String>,
    /// `counter` or `gauge`.
    pub kind: Option<String>,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// An unsigned integer of so many bytes.
    Unsigned(u8),
    /// A signed one.
    Signed(u8),
    /// A byte that is 0 or not.
    Bool,
    /// A pointer itself.
    Address,
    /// So many bytes at an address, at most.
    Bytes(u32),
    /// The same, as UTF-8.
    Text(u32),
    /// A text up to its first zero byte, so long at most.
    CText(u32),
}

impl Type {
    /// Most bytes of what is at an address; `None` for a number.
    pub fn max_bytes(self) -> Option<u32> {
        match self {
            Self::Bytes(max) | Self::Text(max) | Self::CText(max) => Some(max),
            Self::Unsigned(_) | Self::Signed(_) | Self::Bool | Self::Address => None,
        }
    }

    /// Bytes of a number.
    pub fn size(self) -> u8 {
        match self {
            Self::Unsigned(size) | Self::Signed(size) => size,
            Self::Bool => 1,
            _ => 8,
        }
    }
}

/// Where a value is: a base, pointers that are followed, and a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// What it begins with.
    pub base: Base,
    /// For each pointer that is followed, what is added before, bytes.
    pub steps: Vec<i32>,
    /// What is added at the end.
    pub plus: i32,
}

/// What an expression begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// An argument, from 0: of a function after the System V calling convention, the first
    /// six; of a note its operand.
    Argument(u8),
    /// A register, by its number in x86-64 instruction encoding.
    Register(u8),
    /// What the function returns in `rax`.
    Result,
    /// The thread.
    Thread,
}

/// What becomes of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Emit {
    /// An event with the values as its fields.
    Event(String),
    /// The same, as a span from the call to the return.
    Span(String),
    /// What one of our own sources makes of it.
    Source(String),
}
