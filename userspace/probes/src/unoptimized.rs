//! Shapes of code that was compiled without optimization.
//!
//! In: the instructions of a function. Out: the call in it, if it is `RawTask::poll`; what
//! it hands a constant to; whether a function changes a word atomically by its
//! argument. Never: a symbol; a shape that control may enter in between.
//!
//! Each function of the source is one of its own there, its arguments pass through
//! stack slots, and what is atomic is a function of `core`, with one instruction for
//! each ordering. Read in what Rust 1.95 makes of Tokio 1.24 to 1.54.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::code;
use crate::elf::Image;
use crate::values::{self, stack_slot};

/// Instructions that `RawTask::poll` has at most, padding included; seen are 16.
const MAX_INSTRUCTIONS: usize = 32;
/// Instructions between the load of an argument and its use.
const MAX_DISTANCE: usize = 4;

/// A call of the first function of the vtable of a header, with this header, that the
/// function around it got from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollCall {
    /// The call.
    pub(crate) address: u64,
    /// The call of the function that the header is from, given where it is.
    header: Instruction,
}

/// The call in a function that does nothing else, as `RawTask::poll` does
/// (`runtime/task/raw.rs`).
pub(crate) fn poll_call(instructions: &[Instruction]) -> Option<PollCall> {
    if instructions.len() > MAX_INSTRUCTIONS {
        return None;
    }
    let body = body(instructions)?;
    let [save, own, header, vtable, function, argument, call] = body.as_slice() else {
        return None;
    };
    let slot = stack_slot(save, 0).filter(|_| is_from(save, Register::RDI))?;
    let is_own = own.mnemonic() == Mnemonic::Lea
        && own.op0_register() == Register::RDI
        && stack_slot(own, 1) == Some(slot);
    let (table, of) = values::loads_vtable(vtable)?;
    let (poll, from) = loads_pointee(function)?;
    let [rax, rdi] = [code::number(Register::RAX)?, code::number(Register::RDI)?];
    let goes = of == rax
        && from == table
        && poll != rdi
        && loaded(argument, Register::RDI) == Some(slot)
        && call.code() == Code::Call_rm64
        && call.op0_kind() == OpKind::Register
        && code::number(call.op0_register()) == Some(poll);
    (is_own && goes && is_call(header)).then(|| PollCall {
        address: call.ip(),
        header: *header,
    })
}

impl PollCall {
    /// Whether the header is the function's own argument: what hands it back returns the
    /// word that it is given the address of, as `RawTask::header` does.
    pub(crate) fn is_poll(&self, image: &Image<'_>) -> bool {
        let callee = code::direct_target(image, &self.header);
        callee.is_some_and(|callee| reads_word(image, callee))
    }
}

/// What a straight function does between making and leaving its frame: all but noting
/// registers in slots that nothing reads.
fn body(instructions: &[Instruction]) -> Option<Vec<Instruction>> {
    let end = instructions
        .iter()
        .position(|instruction| instruction.flow_control() == FlowControl::Return)?;
    let whole = &instructions[..end];
    let moves_frame = |instruction: &Instruction| instruction.op0_register() == Register::RSP;
    let whole = match whole {
        [first, rest @ .., last] if moves_frame(first) && moves_frame(last) => rest,
        whole => whole,
    };
    let is_plain = |instruction: &Instruction| {
        is_call(instruction)
            || instruction.flow_control() == FlowControl::Next
                && !instruction.is_stack_instruction()
                && !moves_frame(instruction)
    };
    let is_read = |slot: u64| whole.iter().any(|other| stack_slot(other, 1) == Some(slot));
    let is_note = |instruction: &Instruction| {
        instruction.code() == Code::Mov_rm64_r64
            && stack_slot(instruction, 0).is_some_and(|slot| !is_read(slot))
    };
    let body = whole.iter().filter(|instruction| !is_note(instruction));
    let is_straight = whole.iter().all(is_plain);
    is_straight.then(|| body.copied().collect())
}

/// Whether the function at `address` returns the word that its argument points to.
fn reads_word(image: &Image<'_>, address: u64) -> bool {
    let Some(range) = image.function_at(address) else {
        return false;
    };
    let mut instructions = Vec::new();
    code::decode(image, &range, &mut instructions);
    let [rax, rdi] = [Register::RAX, Register::RDI].map(code::number);
    let is_it = |body: &[Instruction]| match body {
        [read] => loads_pointee(read).map(|(to, from)| (Some(to), Some(from))) == Some((rax, rdi)),
        _ => false,
    };
    let is_short = range.start == address && instructions.len() <= MAX_INSTRUCTIONS;
    is_short && body(&instructions).is_some_and(|body| is_it(&body))
}

/// The functions that get `constant` as their second argument.
pub(crate) fn given<'code>(
    image: &'code Image<'_>,
    instructions: &'code [Instruction],
    constant: u32,
) -> impl Iterator<Item = u64> + 'code {
    let is_set = move |set: &Instruction| {
        set.code() == Code::Mov_r32_imm32
            && set.op0_register() == Register::ESI
            && set.immediate32() == constant
    };
    let sets = instructions
        .iter()
        .enumerate()
        .filter(move |(_, set)| is_set(set));
    sets.filter_map(move |(index, _)| {
        let after = instructions[index + 1..].iter().take(MAX_DISTANCE);
        let mut after = after.skip_while(|between| {
            between.flow_control() == FlowControl::Next && !sets_rsi(between)
        });
        let call = after.next().filter(|call| is_call(call))?;
        code::direct_target(image, call)
    })
}

/// Whether a function changes a word atomically by exclusive or with its second
/// argument (`fetch_xor` of `core::sync::atomic`): a compare-exchange loop.
pub(crate) fn is_fetch_xor(instructions: &[Instruction]) -> bool {
    let is_change = |change: &Instruction, by: &Instruction| {
        change.has_lock_prefix()
            && change.code() == Code::Cmpxchg_rm64_r64
            && matches!(by.code(), Code::Xor_rm64_r64 | Code::Xor_r64_rm64)
            && by.op0_register() == change.op1_register()
            && by.op1_kind() == OpKind::Register
    };
    let mut pairs = instructions.windows(2).enumerate();
    pairs.any(|(index, pair)| {
        is_change(&pair[1], &pair[0]) && holds_argument(instructions, index, pair[0].op1_register())
    })
}

/// The same by addition (`fetch_add`).
pub(crate) fn is_fetch_add(instructions: &[Instruction]) -> bool {
    let mut changes = instructions.iter().enumerate();
    changes.any(|(index, change)| {
        change.has_lock_prefix()
            && change.code() == Code::Xadd_rm64_r64
            && holds_argument(instructions, index, change.op1_register())
    })
}

/// Whether the register holds the function's second argument at this instruction: it
/// was loaded shortly before from the slot that the argument was saved to first.
fn holds_argument(instructions: &[Instruction], index: usize, register: Register) -> bool {
    let mut saves = instructions
        .iter()
        .take_while(|first| first.flow_control() == FlowControl::Next && !sets_rsi(first));
    let Some(slot) = saves
        .find(|save| is_from(save, Register::RSI))
        .and_then(|save| stack_slot(save, 0))
    else {
        return false;
    };
    let before = &instructions[index.saturating_sub(MAX_DISTANCE)..index];
    let last = before
        .iter()
        .rev()
        .take_while(|last| last.flow_control() == FlowControl::Next)
        .find(|last| {
            last.op0_kind() == OpKind::Register
                && last.op0_register().full_register() == register.full_register()
        });
    last.is_some_and(|load| loaded(load, register).is_some_and(|from| from == slot))
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

fn sets_rsi(instruction: &Instruction) -> bool {
    instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().full_register() == Register::RSI
}

/// Whether it stores this register.
fn is_from(store: &Instruction, register: Register) -> bool {
    store.code() == Code::Mov_rm64_r64 && store.op1_register() == register
}

/// The stack slot that this register is loaded from.
fn loaded(load: &Instruction, register: Register) -> Option<u64> {
    let is_load = load.code() == Code::Mov_r64_rm64 && load.op0_register() == register;
    is_load.then(|| stack_slot(load, 1)).flatten()
}

/// (register loaded, register with the address) of a load of the first word there.
fn loads_pointee(load: &Instruction) -> Option<(u8, u8)> {
    let from = code::based_memory(load, 0).filter(|_| load.op1_kind() == OpKind::Memory)?;
    let to = code::number(load.op0_register())?;
    (load.code() == Code::Mov_r64_rm64).then_some((to, from))
}

#[cfg(test)]
mod tests;
