//! Probes that probe files declare: what the kernel side reads at a hit, which hits it
//! takes, and how values travel.
//!
//! A definition is data, not code: one program serves all of them.

use crate::record::RecordHeader;

/// Entries of the array of definitions: one for each moment of a probe.
pub const MAX_DEFINITIONS: u32 = 256;
/// Values of a definition, those that are only lengths of others included; a power of two.
pub const MAX_READS: usize = 16;
/// Values that become fields.
pub const MAX_FIELDS: usize = 8;
/// Pointers that are followed for a value.
pub const MAX_STEPS: usize = 4;
/// Comparisons; a power of two.
pub const MAX_TESTS: usize = 8;
/// Bytes of a constant that a value is compared with; a power of two.
pub const CONSTANT_BYTES: usize = 32;
/// Most bytes of one value.
pub const MAX_VALUE_BYTES: u32 = 256;
/// Most bytes of all values of a hit that are bytes.
pub const MAX_BYTES: usize = 1024;
/// Calls that a thread has open at once; a power of two.
pub const MAX_OPEN: usize = 8;

/// Flag of a call whose return will not be seen: the thread has too many open ones.
pub const FLAG_UNPAIRED: u16 = 4096;

/// The cookie of a declared probe's site.
///
/// | bits | field |
/// |---|---|
/// | 0..16 | index of the definition |
/// | 16..32 | bytes that the stack has grown since the function's begin |
pub const fn cookie(definition: u16, pushed: u16) -> u64 {
    definition as u64 | (pushed as u64) << 16
}

/// The index of the definition.
pub const fn definition_of(cookie: u64) -> u32 {
    (cookie & 0xffff) as u32
}

/// The bytes that the stack has grown.
pub const fn pushed_of(cookie: u64) -> u64 {
    cookie >> 16 & 0xffff
}

/// [`Read::what`]: a number.
pub const NUMBER: u8 = 0;
/// The same: bytes at an address.
pub const BYTES: u8 = 1;
/// The same: bytes at an address, up to the first 0.
pub const TO_ZERO: u8 = 2;

/// [`Read::register`]: the thread's id.
pub const THREAD: u8 = 16;
/// The same: [`Read::constant`].
pub const CONSTANT: u8 = 17;
/// The same, of [`Read::index`]: none.
pub const NO_REGISTER: u8 = 18;
/// [`Read::length`]: as many bytes as [`Read::max`] says.
pub const NO_LENGTH: u8 = u8::MAX;

/// Where a value is, and what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Read {
    /// What it begins with, where `register` says so.
    pub constant: u64,
    /// What is added before each pointer is followed; behind the last one, at the end.
    pub offsets: [i32; MAX_STEPS + 1],
    /// Bytes that each step reads: 1, 2, 4 or 8; more of them are 0.
    pub sizes: [u8; MAX_STEPS],
    /// [`NUMBER`], [`BYTES`] or [`TO_ZERO`].
    pub what: u8,
    /// What it begins with: a register by its number in x86-64 instruction encoding, or one
    /// of the constants here.
    pub register: u8,
    /// How many pointers are followed.
    pub steps: u8,
    /// Bytes of a number: 1, 2, 4 or 8.
    pub size: u8,
    /// Whether the number is signed: 1, or 0.
    pub is_signed: u8,
    /// Which number is the length in bytes.
    pub length: u8,
    /// A register that is added to the first one.
    pub index: u8,
    /// By how many bits that is shifted to the left, at most 3.
    pub shift: u8,
    /// Most bytes, of what is no number.
    pub max: u32,
}

/// [`Test::operator`]s; a test that does not compare is false.
pub mod operator {
    /// `==`
    pub const EQUAL: u8 = 0;
    /// `!=`
    pub const NOT_EQUAL: u8 = 1;
    /// `<`
    pub const LESS: u8 = 2;
    /// `<=`
    pub const LESS_OR_EQUAL: u8 = 3;
    /// `>`
    pub const GREATER: u8 = 4;
    /// `>=`
    pub const GREATER_OR_EQUAL: u8 = 5;
    /// A common bit.
    pub const ANY_BIT: u8 = 6;
    /// The constant is the begin of the value.
    pub const STARTS: u8 = 7;
}

/// [`Test::on_true`] and [`Test::on_false`]: the hit counts.
pub const ACCEPT: u8 = 254;
/// The same: it does not.
pub const REJECT: u8 = 255;

/// A comparison of a value with a constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Test {
    /// The constant, of a number.
    pub number: u64,
    /// The same, of bytes, with zeros behind.
    pub bytes: [u8; CONSTANT_BYTES],
    /// How many bytes the constant has.
    pub length: u8,
    /// Which value.
    pub value: u8,
    /// How.
    pub operator: u8,
    /// Which test is next when it is true: a later one, or [`ACCEPT`] or [`REJECT`].
    pub on_true: u8,
    /// The same when it is false, or the value could not be read.
    pub on_false: u8,
    /// 1 where the numbers are signed.
    pub is_signed: u8,
    /// 1 where the value is no number.
    pub is_bytes: u8,
    /// Always 0.
    pub reserved: u8,
}

/// [`Definition::role`]: a hit by itself.
pub const HIT: u8 = 0;
/// The same: a call, whose return is the next definition.
pub const CALL: u8 = 1;
/// The same: the return of a call, which is the definition before.
pub const RETURN: u8 = 2;

/// What happens at one moment of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Definition {
    /// Values: first the fields, then those for the tests, then lengths.
    pub reads: [Read; MAX_READS],
    /// Comparisons; the first is asked first.
    pub tests: [Test; MAX_TESTS],
    /// How many values are read.
    pub read_count: u8,
    /// How many of them become fields, at most [`MAX_FIELDS`].
    pub field_count: u8,
    /// How many comparisons there are; without any, every hit counts.
    pub test_count: u8,
    /// [`HIT`], [`CALL`] or [`RETURN`].
    pub role: u8,
    /// 1 where a comparison is with bytes, so that they are read before.
    pub tests_bytes: u8,
    /// 1 where the hit comes behind the function's return, as of a return probe.
    pub is_behind: u8,
    /// Always 0.
    pub reserved: [u8; 2],
}

impl Default for Definition {
    fn default() -> Self {
        Self {
            reads: [Read::default(); MAX_READS],
            tests: [Test::default(); MAX_TESTS],
            read_count: 0,
            field_count: 0,
            test_count: 0,
            role: HIT,
            tests_bytes: 0,
            is_behind: 0,
            reserved: [0; 2],
        }
    }
}

/// A declared probe was hit. Behind it are the bytes of all fields that have some, one
/// after the other, and what is there up to a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Declared {
    /// Kind `DECLARED`; flags `FLAG_UNPAIRED`.
    pub header: RecordHeader,
    /// Stack pointer at the function's entry, of calls and returns.
    pub sp: u64,
    /// Index of the definition.
    pub definition: u16,
    /// Which fields were read: bit 0 is the first.
    pub present: u16,
    /// Number of fields.
    pub field_count: u16,
    /// Bytes of all fields together.
    pub bytes: u16,
    /// Of each field its number, or the length of its bytes.
    pub fields: [u64; MAX_FIELDS],
}

/// Room for a hit's values while they are read, of each CPU.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeclaredScratch {
    /// 1 while somebody is at it.
    pub busy: u64,
    /// Which values were read, one bit each.
    pub present: u64,
    /// Bytes of those so far.
    pub used: u64,
    /// How far a loop has come.
    pub next: u64,
    /// The thread's registers, by their numbers in instruction encoding, and its id.
    pub registers: [u64; 32],
    /// Numbers, addresses and lengths that were read.
    pub numbers: [u64; MAX_READS],
    /// Where the bytes of each value begin.
    pub starts: [u64; MAX_READS],
    /// The record.
    pub record: Declared,
    /// The values' bytes; room for all and one more.
    pub bytes: [u8; 2048],
}

/// A call that a thread has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OpenCall {
    /// Stack pointer at the function's entry.
    pub sp: u64,
    /// Index of the definition.
    pub definition: u64,
}

/// Those of a thread, in an array by the low bits of the tid; the innermost is the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OpenCalls {
    /// The thread.
    pub tid: u32,
    /// How many.
    pub count: u32,
    /// The calls.
    pub calls: [OpenCall; MAX_OPEN],
}

const _: () = assert!(size_of::<Read>() == 48);
const _: () = assert!(size_of::<Test>() == 48);
const _: () = assert!(size_of::<Definition>() == 16 * 48 + 8 * 48 + 8);
const _: () = assert!(size_of::<Declared>() == 96);
const _: () = assert!(MAX_BYTES + MAX_VALUE_BYTES as usize <= 2048);
