//! Where functions that users name can be probed.
//!
//! In: the bytes of an ELF file, and a name or an address. Out: the places of a function's
//! begin and of its returns, with what a hit there costs. Never: a place that the kernel
//! refuses; a place behind the begin at which a register that is to be read has changed.

use std::ops::Range;

use iced_x86::{FlowControl, Instruction};
use wildmatch::WildMatch;

use crate::ScanError;
use crate::code::{self, Effects};
use crate::elf::{self, Image, Symbol, Symbols};
use crate::entry::stack_growth;
use crate::names::demangle;
use crate::plan::InstructionClass;

/// Instructions of a function's begin among which the cheapest is taken.
const MAX_BEGIN: usize = 12;
/// `rsp`'s number in instruction encoding.
const RSP: u8 = 4;

/// The code of a file.
#[derive(Debug)]
pub struct Code<'data> {
    image: Image<'data>,
    /// What the file exports, where it has no other symbols.
    exports: Symbols<'data>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Link-time virtual address.
    pub address: u64,
    /// Length, bytes; 0 where that is not known.
    pub bytes: u64,
    /// Its demangled name, without a hash.
    pub name: String,
    /// Its name in the symbol table.
    pub symbol: String,
}

/// A place to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Link-time virtual address.
    pub address: u64,
    /// Offset in the file as the kernel counts it, bytes.
    pub file_offset: u64,
    /// How the kernel executes the instruction.
    pub class: InstructionClass,
    /// The instruction in Intel syntax.
    pub instruction: String,
    /// By how much the stack has grown since the function's begin, bytes.
    pub pushed: u16,
}

/// Where a function returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Its `ret` instructions.
    pub places: Vec<Place>,
    /// Jumps out of it, behind which another function returns in its place.
    pub jumps: usize,
    /// Whether the whole function could be decoded.
    pub is_whole: bool,
}

impl<'data> Code<'data> {
    /// Reads what is needed of a file, with the symbols of its debug file where it has none.
    ///
    /// # Errors
    /// Every [`ScanError`] but `NotTokio`.
    pub fn parse(elf: &'data [u8], debug_file: Option<&'data [u8]>) -> Result<Self, ScanError> {
        let image = Image::parse_with(elf, debug_file)?;
        let exports = if image.symbols().is_empty() {
            elf::exports(elf)
        } else {
            Symbols::default()
        };
        Ok(Self { image, exports })
    }

    /// Whether functions have names: all of them, or those that are exported.
    pub fn has_symbols(&self) -> bool {
        !self.symbols().is_empty()
    }

    fn symbols(&self) -> &Symbols<'data> {
        if self.image.symbols().is_empty() {
            &self.exports
        } else {
            self.image.symbols()
        }
    }

    /// The functions of a name: that of the symbol itself, or a pattern of demangled names
    /// in which `*` and `?` stand for others. Sorted by address, none twice.
    pub fn functions(&self, pattern: &str) -> Vec<Function> {
        let symbols = self.symbols();
        let is_pattern = pattern.contains(['*', '?']);
        let exact = (!is_pattern)
            .then(|| symbols.named(pattern))
            .flatten()
            .and_then(|symbol| self.function(symbol));
        if let Some(function) = exact {
            return vec![function];
        }
        let matcher = WildMatch::new(pattern);
        let all = symbols.functions().iter();
        let mut functions: Vec<Function> = all
            .filter_map(|symbol| self.function(symbol))
            .filter(|function| matcher.matches(&function.name))
            .collect();
        functions.dedup_by_key(|function| function.address);
        functions
    }

    fn function(&self, symbol: &Symbol) -> Option<Function> {
        let mangled = self.symbols().name(symbol)?;
        self.image.is_code(symbol.address).then(|| Function {
            address: symbol.address,
            bytes: symbol.bytes.into(),
            name: demangle(mangled).unwrap_or_else(|| mangled.to_owned()),
            symbol: mangled.to_owned(),
        })
    }

    /// The place of one instruction; `None` where there is no code, or none that the kernel
    /// lets be probed.
    pub fn place(&self, address: u64) -> Option<Place> {
        self.place_of(&code::instruction_at(&self.image, address)?, 0)
    }

    /// The place at a function's begin, as cheap as there is one: a little behind the first
    /// instruction where that has to be single-stepped, and neither memory nor any of
    /// `registers` (bits by instruction encoding) has changed before, nor can a jump lead
    /// there.
    pub fn entry(&self, function: &Function, registers: u32) -> Option<Place> {
        let first = self.place(function.address)?;
        if first.class != InstructionClass::SingleStepped {
            return Some(first);
        }
        let cheaper = self.cheaper(function, registers);
        Some(cheaper.unwrap_or(first))
    }

    fn cheaper(&self, function: &Function, registers: u32) -> Option<Place> {
        let mut instructions = Vec::new();
        let range = self.range(function);
        if !code::decode(&self.image, &range, &mut instructions) {
            return None;
        }
        let again = code::lowest_branch_target(&instructions, &range);
        let mut effects = Effects::new();
        let mut pushed = 0_i64;
        for instruction in instructions.iter().take(MAX_BEGIN) {
            if again.is_some_and(|target| target <= instruction.ip()) {
                return None;
            }
            let place = self.place_of(instruction, u16::try_from(pushed).ok()?)?;
            if place.class != InstructionClass::SingleStepped {
                return Some(place);
            }
            if instruction.flow_control() != FlowControl::Next {
                return None;
            }
            let written = effects.written(instruction);
            let changes = |register: u8| {
                register != RSP && registers >> register & 1 == 1 && written.contains(register)
            };
            if (0..16).any(changes) || effects.writes_memory(instruction) {
                return None;
            }
            pushed = pushed.checked_add(stack_growth(&mut effects, instruction)?)?;
        }
        None
    }

    /// Where a function returns.
    pub fn exits(&self, function: &Function) -> Exits {
        let mut instructions = Vec::new();
        let range = self.range(function);
        let is_whole = !range.is_empty() && code::decode(&self.image, &range, &mut instructions);
        let leaves = |instruction: &&Instruction| {
            let is_jump = matches!(
                instruction.flow_control(),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            );
            is_jump && code::near_target(instruction).is_some_and(|to| !range.contains(&to))
        };
        let returns = instructions
            .iter()
            .filter(|instruction| instruction.flow_control() == FlowControl::Return);
        let places: Option<Vec<Place>> = returns.map(|ret| self.place_of(ret, 0)).collect();
        Exits {
            is_whole: is_whole && places.is_some(),
            places: places.unwrap_or_default(),
            jumps: instructions.iter().filter(leaves).count(),
        }
    }

    /// The function's addresses, as its symbol or the unwind table has them.
    fn range(&self, function: &Function) -> Range<u64> {
        let start = function.address;
        if function.bytes > 0 {
            return start..start.saturating_add(function.bytes);
        }
        let around = self.image.function_at(start);
        around.map_or(start..start, |around| start..around.end)
    }

    fn place_of(&self, instruction: &Instruction, pushed: u16) -> Option<Place> {
        Some(Place {
            address: instruction.ip(),
            file_offset: self.image.file_offset(instruction.ip())?,
            class: code::class(&self.image, instruction)?,
            instruction: code::text(instruction),
            pushed,
        })
    }
}

#[cfg(test)]
mod tests;
