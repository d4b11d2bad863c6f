//! Functions of a scheduler, told by what they expect to be there.
//!
//! In: every function's instructions, once. Out: the functions that take the parker out
//! of a multi-thread worker's core, or the driver out of a current-thread one. Never: a
//! symbol; a function with one of the two halves: the message and Tokio's source file.
//!
//! `core.park.take().expect("park missing")` and `core.driver.take().expect("driver
//! missing")` are written so in Tokio 1.21 to 1.54, each in two functions of its file:
//! the first that it has is the park. The place that `expect` is given names the file
//! and tells the two apart by their lines. Without inlining `expect` has a copy of its
//! own, which has the message.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{FlowControl, Instruction};

use crate::code;
use crate::elf::Image;
use crate::locations::{self, Location};

/// How far from a place's load the call that is given it is, and the message's load.
const MAX_DISTANCE: usize = 8;
/// Bytes that a copy of `expect` has at most; those seen have about 40.
const MAX_EXPECT_BYTES: u64 = 256;
/// Loads of a place in these files that are looked at; a program has some dozens.
const MAX_LOADS: usize = 1 << 12;

/// What is expected, by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expected {
    /// The parker of a multi-thread worker: `Context::park_internal` (`park_timeout`
    /// before 1.49), then `Core::shutdown`.
    Parker,
    /// The driver of a current-thread scheduler: `Context::park`, then `park_yield`.
    Driver,
}

impl Expected {
    /// The file was `current_thread.rs` until 1.33.
    fn of_file(file: &str) -> Option<Self> {
        if file.ends_with("/runtime/scheduler/multi_thread/worker.rs") {
            return Some(Self::Parker);
        }
        let file = file.strip_suffix("/mod.rs").or(file.strip_suffix(".rs"))?;
        let is_it = file.ends_with("/runtime/scheduler/current_thread");
        is_it.then_some(Self::Driver)
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Parker => "park missing",
            Self::Driver => "driver missing",
        }
    }

    fn is_at(self, image: &Image<'_>, address: u64) -> bool {
        let message = self.message().as_bytes();
        image.bytes(address, message.len()) == Some(message)
    }
}

/// The functions with the first and with the second of the two places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) first: BTreeSet<u64>,
    pub(super) second: BTreeSet<u64>,
}

/// A place whose message the function called may have.
#[derive(Clone, Copy, Debug)]
struct Outside {
    expected: Expected,
    line: u32,
    function: u64,
    called: u64,
}

/// Collects them while it is shown the program's functions.
#[derive(Debug, Default)]
pub(crate) struct Expectations {
    /// Functions, by what they expect in which line.
    found: BTreeMap<(Expected, u32), BTreeSet<u64>>,
    outside: Vec<Outside>,
    loads: usize,
}

impl Expectations {
    /// Looks at one function.
    pub(crate) fn visit(
        &mut self,
        image: &Image<'_>,
        range: &Range<u64>,
        instructions: &[Instruction],
    ) {
        for (index, instruction) in instructions.iter().enumerate() {
            let place = locations::loaded_address(instruction)
                .and_then(|address| Location::at(image, address));
            let Some(place) = place else { continue };
            let Some(expected) = Expected::of_file(place.file) else {
                continue;
            };
            self.loads += 1;
            if self.loads > MAX_LOADS {
                return;
            }
            let (before, after) = around(instructions, index);
            if mentions(image, before, expected) || mentions(image, after, expected) {
                let functions = self.found.entry((expected, place.line)).or_default();
                functions.insert(range.start);
            } else if let Some(called) = after
                .last()
                .and_then(|last| code::direct_target(image, last))
            {
                self.outside.push(Outside {
                    expected,
                    line: place.line,
                    function: range.start,
                    called,
                });
            }
        }
    }

    /// The functions with one of the two places each; `None` where no function expects
    /// this.
    ///
    /// # Errors
    ///
    /// The two cannot be told apart.
    pub(super) fn pair(
        &self,
        image: &Image<'_>,
        expected: Expected,
    ) -> Option<Result<Pair, String>> {
        let mut lines: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let inside = self.found.range((expected, 0)..=(expected, u32::MAX));
        for (&(_, line), functions) in inside {
            lines.entry(line).or_default().extend(functions);
        }
        let outside = self.outside.iter().filter(|at| at.expected == expected);
        for at in outside.filter(|at| has_message(image, at.called, expected)) {
            lines.entry(at.line).or_default().insert(at.function);
        }
        if lines.is_empty() && self.loads <= MAX_LOADS {
            return None;
        }
        let found = lines.len();
        let mut lines = lines.into_values();
        Some(match (lines.next(), lines.next(), lines.next()) {
            (Some(first), Some(second), None) if self.loads <= MAX_LOADS => {
                Ok(Pair { first, second })
            }
            _ => Err(format!(
                "{found} lines of the scheduler say {:?}, not 2",
                expected.message()
            )),
        })
    }
}

/// The instructions around one that control does not leave in between, what ends them
/// behind it included.
fn around(instructions: &[Instruction], index: usize) -> (&[Instruction], &[Instruction]) {
    let is_end = |instruction: &Instruction| instruction.flow_control() != FlowControl::Next;
    let before = &instructions[index.saturating_sub(MAX_DISTANCE)..index];
    let from = before.iter().rposition(is_end).map_or(0, |end| end + 1);
    let after = &instructions[index + 1..];
    let after = &after[..after.len().min(MAX_DISTANCE)];
    let to = after.iter().position(is_end);
    (
        &before[from..],
        &after[..to.map_or(after.len(), |end| end + 1)],
    )
}

fn mentions(image: &Image<'_>, instructions: &[Instruction], expected: Expected) -> bool {
    let mut loaded = instructions.iter().filter_map(locations::loaded_address);
    loaded.any(|address| expected.is_at(image, address))
}

/// Whether a function is a copy of `expect` with this message.
fn has_message(image: &Image<'_>, function: u64, expected: Expected) -> bool {
    let range = image.function_at(function);
    let range = range.filter(|range| range.end - range.start <= MAX_EXPECT_BYTES);
    range.is_some_and(|range| {
        let mut instructions = Vec::new();
        code::decode(image, &range, &mut instructions);
        range.start == function && mentions(image, &instructions, expected)
    })
}
