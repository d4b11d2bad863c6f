//! The timeout that a call is given as its third argument, an `Option<Duration>`.
//!
//! In: the instructions before the call. Out: whether it is `None` or zero. Never: a
//! value that a branch or another call may have changed.
//!
//! From Rust 1.64 on it is in registers, the nanoseconds in `edx`: 1,000,000,000 of
//! them for `None`, one more than a `Duration` has. Before that it is in memory behind
//! `rdx`, and begins with a word that is 0 for `None` and 1 else. Without optimization
//! [`unoptimized`] tells.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::unoptimized;
use crate::code;
use crate::elf::Image;

/// The niche of `Option<Duration>`.
pub(super) const NO_TIMEOUT: u64 = 1_000_000_000;
/// How far before a call its argument is set.
const MAX_DISTANCE: usize = 8;

/// What the callee waits for at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// For ever.
    None,
    /// It does not wait.
    Zero,
}

/// A place on the stack: base register and displacement.
type Slot = (Register, u64);

/// The timeout of the call at `call` in the function at `function`.
pub(super) fn of_call(image: &Image<'_>, function: u64, call: u64) -> Option<Timeout> {
    let mut instructions = Vec::new();
    code::decode(image, &(function..call), &mut instructions);
    let before = straight(&instructions);
    in_register(before)
        .or_else(|| in_memory(image, before))
        .or_else(|| unoptimized::timeout(image, &instructions))
}

/// The last instructions that control does not leave in between.
fn straight(instructions: &[Instruction]) -> &[Instruction] {
    let last = &instructions[instructions.len().saturating_sub(MAX_DISTANCE)..];
    let end = last.iter().rposition(|last| !is_plain(last));
    &last[end.map_or(0, |end| end + 1)..]
}

fn is_plain(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Next
}

/// The timeout if the nanoseconds are in `edx`.
pub(super) fn in_register(before: &[Instruction]) -> Option<Timeout> {
    let last = before.iter().rev().take(MAX_DISTANCE);
    let set = last
        .take_while(|last| is_plain(last))
        .find(|set| sets_rdx(set))?;
    match (set.mnemonic(), set.op1_kind()) {
        (Mnemonic::Mov, OpKind::Immediate32) if set.op0_register() == Register::EDX => {
            (u64::from(set.immediate32()) == NO_TIMEOUT).then_some(Timeout::None)
        }
        (Mnemonic::Xor, OpKind::Register) if set.op1_register() == set.op0_register() => {
            Some(Timeout::Zero)
        }
        _ => None,
    }
}

fn sets_rdx(instruction: &Instruction) -> bool {
    instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().full_register() == Register::RDX
}

/// The timeout if `rdx` is the address of a place on the stack.
fn in_memory(image: &Image<'_>, before: &[Instruction]) -> Option<Timeout> {
    let set = before.iter().rev().find(|set| sets_rdx(set))?;
    let mut stores = before.iter().rev().filter(|store| {
        store.op0_kind() == OpKind::Memory
            && (store.mnemonic() == Mnemonic::Mov || is_vector_move(store))
    });
    match set.mnemonic() {
        Mnemonic::Lea => {
            let place = slot(set)?;
            let last = stores.find(|store| slot(store) == Some(place))?;
            value(image, before, last)
        }
        // The address was made before, for several calls.
        Mnemonic::Mov if set.op1_kind() == OpKind::Register => {
            let mut on_stack = stores.filter(|store| slot(store).is_some());
            let is_zero = on_stack.any(|store| value(image, before, store) == Some(Timeout::Zero));
            is_zero.then_some(Timeout::Zero)
        }
        _ => None,
    }
}

/// The timeout that a store begins or is.
fn value(image: &Image<'_>, before: &[Instruction], store: &Instruction) -> Option<Timeout> {
    if store.mnemonic() == Mnemonic::Mov && store.op1_kind() == OpKind::Immediate32to64 {
        return (store.immediate32to64() == 0).then_some(Timeout::None);
    }
    let is_whole = is_vector_move(store) && store.op1_kind() == OpKind::Register;
    let value = is_whole.then(|| constant(image, before, store.op1_register()))??;
    (value == [1, 0]).then_some(Timeout::Zero)
}

fn is_vector_move(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Movaps | Mnemonic::Movups | Mnemonic::Movapd | Mnemonic::Movupd
    )
}

fn slot(instruction: &Instruction) -> Option<Slot> {
    let is_on_stack = instruction.memory_index() == Register::None
        && matches!(instruction.memory_base(), Register::RSP | Register::RBP);
    is_on_stack.then(|| {
        (
            instruction.memory_base(),
            instruction.memory_displacement64(),
        )
    })
}

/// The two words of a constant that was loaded into this register.
fn constant(image: &Image<'_>, before: &[Instruction], register: Register) -> Option<[u64; 2]> {
    let load = before.iter().rev().find(|load| {
        load.op_count() > 0
            && load.op0_kind() == OpKind::Register
            && load.op0_register() == register
    })?;
    let is_load = is_vector_move(load) && load.is_ip_rel_memory_operand();
    let address = is_load.then(|| load.ip_rel_memory_address())?;
    Some([image.word(address)?, image.word(address.checked_add(8)?)?])
}
