//! Places in source code that the code itself carries: `core::panic::Location`.
//!
//! In: an address, or a function's instructions. Out: file, line and column of the
//! constant there. Never: a word that only looks like one: the file is text, its
//! pointer relocated, the numbers in range.
//!
//! `library/core/src/panic/location.rs`: the file's address and length, line and
//! column, in this order on every compiler since 1.63 at least; 24 bytes. Functions
//! with `#[track_caller]` are given one, panics load one. They are in stripped files
//! too; `-Z location-detail=none` leaves them without a file.

use std::collections::BTreeSet;
use std::fmt;

use iced_x86::{Code, Instruction};

use crate::elf::Image;

/// Bytes of the constant.
const BYTES: usize = 24;
/// The longest path that is taken for one, bytes.
const MAX_FILE_BYTES: usize = 4096;

/// A place in source code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Location<'data> {
    /// Path of the file as the compiler was told it.
    pub(crate) file: &'data str,
    /// Line, from 1.
    pub(crate) line: u32,
    /// Column, from 1.
    pub(crate) column: u32,
}

impl<'data> Location<'data> {
    /// The constant at `address`.
    pub(crate) fn at(image: &Image<'data>, address: u64) -> Option<Self> {
        let words = image.bytes(address, BYTES)?;
        let number = |at: usize| -> Option<u32> {
            let bytes = words.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let length = usize::try_from(image.word(address.checked_add(8)?)?).ok()?;
        let [line, column] = [number(16)?, number(20)?];
        if line == 0 || column == 0 || length == 0 || length > MAX_FILE_BYTES {
            return None;
        }
        let file = image.bytes(image.pointer(address)?, length)?;
        let file = std::str::from_utf8(file).ok()?;
        let is_path = file.len() == length && !file.contains(char::is_control);
        is_path.then_some(Self { file, line, column })
    }

    /// Those of both sets, if both are known.
    pub(crate) fn union(
        one: Option<BTreeSet<Self>>,
        other: Option<BTreeSet<Self>>,
    ) -> Option<BTreeSet<Self>> {
        Some(one?.into_iter().chain(other?).collect())
    }

    /// Whether the file is Tokio's or the standard library's, however they got there:
    /// from the registry, from git, vendored, or with the compiler.
    pub(crate) fn is_of_runtime(&self) -> bool {
        let parts: Vec<_> = self.file.split('/').collect();
        let is_tokio = |part: &str| {
            let rest = part.strip_prefix("tokio");
            rest.is_some_and(|rest| {
                let version = rest.strip_prefix('-').unwrap_or("0");
                rest.is_empty() || version.starts_with(|first: char| first.is_ascii_digit())
            })
        };
        let is_std = |window: &[&str]| {
            matches!(
                window,
                [
                    "library",
                    "std" | "core" | "alloc" | "proc_macro" | "test",
                    "src"
                ]
            )
        };
        self.file.starts_with("/rustc/")
            || parts.windows(3).any(is_std)
            || parts
                .windows(2)
                .any(|pair| is_tokio(pair[0]) && pair[1] == "src")
    }
}

impl fmt::Display for Location<'_> {
    /// As `core::panic::Location` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column } = self;
        write!(f, "{file}:{line}:{column}")
    }
}

/// The address that an instruction loads as a constant.
pub(crate) fn loaded_address(instruction: &Instruction) -> Option<u64> {
    match instruction.code() {
        Code::Lea_r64_m if instruction.is_ip_rel_memory_operand() => {
            Some(instruction.ip_rel_memory_address())
        }
        Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 => Some(u64::from(instruction.immediate32())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, DATA, Linking, Word};

    const FILE: &[u8; 16] = b"tokio/worker.rs\n";

    fn words(file: u64, length: u64, line: u64, column: u64) -> [Word; 5] {
        let text = |at: usize| {
            let bytes = FILE[at..at + 8].try_into().unwrap();
            Word::Plain(u64::from_le_bytes(bytes))
        };
        [
            Word::Address(file),
            Word::Plain(length),
            Word::Plain(line | column << 32),
            text(0),
            text(8),
        ]
    }

    #[track_caller]
    fn check(words: &[Word], expected: Option<(&str, u32, u32)>) {
        for linking in [Linking::Fixed, Linking::Rela, Linking::Relr] {
            let elf = testing::elf(&[&|a| a.ret()], words, linking);
            let image = Image::parse(&elf).unwrap();
            let found = Location::at(&image, DATA);
            let found = found.map(|found| (found.file, found.line, found.column));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_location_has_a_path_a_line_and_a_column() {
        let text = DATA + 24;
        check(&words(text, 15, 7, 9), Some(("tokio/worker.rs", 7, 9)));
        check(&words(text, 16, 7, 9), None);
        check(&words(text, 15, 0, 9), None);
        check(&words(text, 15, 7, 0), None);
        check(&words(text, 0, 7, 9), None);
        check(&words(text, 1 << 20, 7, 9), None);
        check(&words(1, 15, 7, 9), None);
    }

    #[test]
    fn files_of_tokio_and_std_are_of_the_runtime_wherever_they_are() {
        let of_runtime = |file: &str| {
            let location = Location {
                file,
                line: 1,
                column: 1,
            };
            location.is_of_runtime()
        };
        for file in [
            "/root/.cargo/registry/src/index.crates.io-1/tokio-1.54.1/src/task/spawn.rs",
            "/root/.cargo/git/checkouts/tokio-0f1e/ab12/tokio/src/task/spawn.rs",
            "vendor/tokio/src/task/spawn.rs",
            "/rustc/59807616/library/core/src/ops/function.rs",
            "/usr/src/rustc-1.63.0/library/std/src/thread/local.rs",
            "library/alloc/src/vec/mod.rs",
        ] {
            assert!(of_runtime(file), "{file}");
        }
        for file in [
            "src/main.rs",
            "/root/.cargo/registry/src/index.crates.io-1/tokio-util-0.7.1/src/task/spawn_pinned.rs",
            "/root/.cargo/registry/src/index.crates.io-1/hyper-util-0.1.9/src/rt/tokio.rs",
            "library/src/main.rs",
            "tokio/examples/chat.rs",
        ] {
            assert!(!of_runtime(file), "{file}");
        }
    }
}
