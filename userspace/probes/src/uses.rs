//! Uses of functions by code.
//!
//! In: addresses of functions. Out: the direct calls of them in the whole program, the
//! jumps to them, and the instructions that load their addresses. Never: what data
//! points to them; what becomes of an address that is loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction};

use crate::code;
use crate::elf::Image;
use crate::locations;

/// What an instruction does with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    /// The user ends with it.
    Jump,
    /// Its address goes to a register, such as for several calls of it.
    Load,
}

/// An instruction that names a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The function.
    pub(crate) of: u64,
    /// The instruction.
    pub(crate) address: u64,
    /// Where the function begins that has the instruction.
    pub(crate) user: u64,
    pub(crate) kind: Kind,
}

/// The uses of these functions, in the order of their addresses. More than `limit` of
/// them if there are too many to look at them all.
pub(crate) fn find(image: &Image<'_>, functions: &BTreeSet<u64>, limit: usize) -> Vec<Use> {
    let names_one = |word: &&(u64, u64)| functions.contains(&word.1);
    let words = image.code_pointers().iter().filter(names_one).take(limit);
    let itself = functions.iter().map(|&function| (function, function));
    let names: BTreeMap<u64, u64> = words.copied().chain(itself).collect();
    let (Some((&first, _)), Some((&last, _))) = (names.first_key_value(), names.last_key_value())
    else {
        return Vec::new();
    };
    let is_name = |name: u64| (first..=last).contains(&name) && names.contains_key(&name);
    let mut uses = Vec::new();
    let mut instructions = Vec::new();
    for range in image.functions() {
        if !mentions(image, range, is_name) {
            continue;
        }
        code::decode(image, range, &mut instructions);
        let named = instructions.iter().filter_map(|instruction| {
            let (name, kind) = name(range, instruction)?;
            names.get(&name).map(|&of| Use {
                of,
                address: instruction.ip(),
                user: range.start,
                kind,
            })
        });
        uses.extend(named);
        if uses.len() > limit {
            break;
        }
    }
    uses
}

/// Whether a function may have an instruction that names one of these addresses: in
/// its last four bytes, relative to its end or as it is.
fn mentions(image: &Image<'_>, range: &Range<u64>, is_name: impl Fn(u64) -> bool) -> bool {
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let code = image.bytes(range.start, length).unwrap_or_default();
    let ends = range.start + 4..;
    code.windows(4).zip(ends).any(|(bytes, end)| {
        let bytes = bytes.try_into().unwrap_or_default();
        let relative = end.wrapping_add_signed(i32::from_le_bytes(bytes).into());
        is_name(relative) || is_name(u32::from_le_bytes(bytes).into())
    })
}

/// The function that an instruction names, or the pointer-table slot with its address.
fn name(range: &Range<u64>, instruction: &Instruction) -> Option<(u64, Kind)> {
    let by_slot = || {
        let is_slot = instruction.is_ip_rel_memory_operand();
        is_slot.then(|| instruction.ip_rel_memory_address())
    };
    match instruction.flow_control() {
        FlowControl::Call => Some((code::near_target(instruction)?, Kind::Call)),
        FlowControl::IndirectCall => Some((by_slot()?, Kind::Call)),
        FlowControl::UnconditionalBranch => {
            let target = code::near_target(instruction)?;
            (!range.contains(&target)).then_some((target, Kind::Jump))
        }
        FlowControl::IndirectBranch => Some((by_slot()?, Kind::Jump)),
        _ if instruction.code() == Code::Mov_r64_rm64 => Some((by_slot()?, Kind::Load)),
        _ => Some((locations::loaded_address(instruction)?, Kind::Load)),
    }
}
