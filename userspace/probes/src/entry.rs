//! The site that stands for a function's entry.
//!
//! In: a function and the register that holds the task header at its entry.
//! Out: the first emulated instruction that every call executes exactly once
//! with the header still in a register; else the first instruction. Never: an
//! instruction that a loop inside the function comes back to.

use dial9_bpf_abi::cookie::{Cookie, Register};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic};

use crate::code::{self, Effects, RegisterSet};
use crate::elf::Image;
use crate::plan::{InstructionClass, Probe, Site};
use crate::vtables::{self, Found};

/// How many instructions are looked at.
const MAX_INSTRUCTIONS: usize = 40;

/// A place that stands for a function's entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The instruction to probe.
    pub(crate) instruction: Instruction,
    /// Where the task header is then.
    pub(crate) header: Register,
    /// Bytes on the stack since the entry.
    pub(crate) pushed: u16,
}

/// Finds the site for the entry at `address`; `None` if no instruction is
/// usable.
pub(crate) fn find(image: &Image<'_>, address: u64, header: Register) -> Option<Entry> {
    let range = image
        .function_at(address)
        .filter(|range| range.start == address)?;
    let mut instructions = Vec::new();
    code::decode(image, &range, &mut instructions);
    let first = *instructions.first()?;
    let end = code::lowest_branch_target(&instructions, &range).unwrap_or(range.end);
    let line = instructions.iter().copied().take(MAX_INSTRUCTIONS);
    let line = line.take_while(|instruction| instruction.ip() < end);
    if let Some(entry) = first_emulated(image, line, header) {
        return Some(entry);
    }
    let usable = first.ip() < end && code::class(image, &first).is_some();
    usable.then_some(Entry {
        instruction: first,
        header,
        pushed: 0,
    })
}

/// The site at the entry of a function that serves the vtables with the indices
/// `users`; `None` if some are closures of the blocking pool and some are not.
pub(crate) fn task_site(
    image: &Image<'_>,
    probe: Probe,
    entry: Entry,
    found: &[Found],
    users: &[usize],
) -> Option<Site> {
    let first = *users.first()?;
    let vtables = || users.iter().map(|&user| &found[user].vtable);
    let blocking = found[first].vtable.blocking;
    if vtables().any(|vtable| vtable.blocking != blocking) {
        return None;
    }
    let cookie = Cookie {
        object: 0,
        vtable: u32::try_from(first).ok()?,
        id_offset: vtables::common_id_offset(vtables().map(|vtable| vtable.id_offset)),
        pushed: entry.pushed,
        header: entry.header,
        shared: users.len() > 1,
        branch: None,
        blocking,
        remembers: false,
    };
    code::site(image, probe, &entry.instruction, cookie)
}

fn first_emulated(
    image: &Image<'_>,
    line: impl Iterator<Item = Instruction>,
    header: Register,
) -> Option<Entry> {
    let mut effects = Effects::new();
    let mut holders = RegisterSet::only(header);
    let mut pushed = 0i64;
    for instruction in line {
        let register = holders.first()?;
        if let Some(InstructionClass::Emulated | InstructionClass::EmulatedStack) =
            code::class(image, &instruction)
        {
            let pushed = u16::try_from(pushed).ok()?;
            return Some(Entry {
                instruction,
                header: register,
                pushed,
            });
        }
        if instruction.flow_control() != FlowControl::Next {
            return None;
        }
        pushed = pushed.checked_add(stack_growth(&mut effects, &instruction)?)?;
        holders = effects.step(&instruction, holders);
    }
    None
}

/// Bytes by which an instruction that is no branch grows the stack; `None` if
/// it sets the stack pointer to something else.
pub(crate) fn stack_growth(effects: &mut Effects, instruction: &Instruction) -> Option<i64> {
    let is_stack_pointer = instruction.op0_register() == iced_x86::Register::RSP;
    match instruction.code() {
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if is_stack_pointer => {
            Some(instruction.immediate(1).cast_signed())
        }
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if is_stack_pointer => {
            instruction.immediate(1).cast_signed().checked_neg()
        }
        _ if matches!(instruction.mnemonic(), Mnemonic::Push | Mnemonic::Pop) => {
            Some(-i64::from(instruction.stack_pointer_increment()))
        }
        _ => (!effects.moves_stack(instruction)).then_some(0),
    }
}

#[cfg(test)]
mod tests;
