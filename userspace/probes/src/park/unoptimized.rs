//! The timeout that a call is given, in code that was compiled without optimization.
//!
//! In: the instructions of a function as far as the call. Out: whether the timeout is
//! `None` or zero. Never: a result of another function than `Duration::from_millis`; a
//! slot that is stored to twice.
//!
//! The seconds are in `rdx`, the nanoseconds in `ecx`, 1,000,000,000 of them for `None`.
//! `park_yield` says `Duration::from_millis(0)`, which is a call here: its results pass
//! through two stack slots.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::timeout::{NO_TIMEOUT, Timeout};
use crate::code;
use crate::elf::Image;
use crate::values::stack_slot;

/// Instructions between an argument and the call that is given it.
const MAX_DISTANCE: usize = 8;
/// `MILLIS_PER_SEC` and `NANOS_PER_MILLI` (`library/core/src/time.rs`): what
/// `Duration::from_millis` multiplies by.
const FACTORS: [u64; 2] = [1_000, 1_000_000];
/// Instructions that it has at most; seen are 13.
const MAX_FACTORING: usize = 40;

/// The timeout of the call behind `before`.
pub(super) fn timeout(image: &Image<'_>, before: &[Instruction]) -> Option<Timeout> {
    let nanos = last_set(before, Register::RCX)?;
    if nanos.mnemonic() == Mnemonic::Mov && nanos.op1_kind() == OpKind::Immediate32 {
        return (u64::from(nanos.immediate32()) == NO_TIMEOUT).then_some(Timeout::None);
    }
    let secs = last_set(before, Register::RDX)?;
    let stores = [(nanos, Register::EDX), (secs, Register::RAX)].map(|(load, result)| {
        let is_load = load.mnemonic() == Mnemonic::Mov;
        let slot = is_load.then(|| stack_slot(load, 1)).flatten()?;
        only_store(before, slot).filter(|&store| before[store].op1_register() == result)
    });
    let [Some(nanos), Some(secs)] = stores else {
        return None;
    };
    // Both are results of the same call.
    let call = nanos.min(secs).checked_sub(1)?;
    let is_next = nanos.abs_diff(secs) == 1;
    (is_next && is_zero_millis(image, &before[..=call])).then_some(Timeout::Zero)
}

/// Whether the last instruction calls `Duration::from_millis` with 0.
fn is_zero_millis(image: &Image<'_>, before: &[Instruction]) -> bool {
    let Some((call, before)) = before.split_last() else {
        return false;
    };
    let is_call = matches!(
        call.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    );
    let callee = code::direct_target(image, call).filter(|_| is_call);
    callee.is_some_and(|callee| multiplies(image, callee)) && is_zero(before, Register::RDI)
}

/// Whether a register was set to 0, there or in another that it is a copy of.
fn is_zero(before: &[Instruction], register: Register) -> bool {
    let set = last_set(before, register);
    set.is_some_and(|set| {
        let is_register = set.op_count() == 2 && set.op1_kind() == OpKind::Register;
        match set.mnemonic() {
            Mnemonic::Xor => is_register && set.op0_register() == set.op1_register(),
            Mnemonic::Mov if is_register => {
                let from = set.op1_register().full_register();
                let of_that = last_set(before, from);
                of_that.is_some_and(|set| {
                    set.mnemonic() == Mnemonic::Xor && set.op0_register() == set.op1_register()
                })
            }
            _ => false,
        }
    })
}

/// Whether the function at `address` is one that multiplies by both factors.
fn multiplies(image: &Image<'_>, address: u64) -> bool {
    let range = image.function_at(address);
    range
        .filter(|range| range.start == address)
        .is_some_and(|range| {
            let mut instructions = Vec::new();
            code::decode(image, &range, &mut instructions);
            let has = |factor: &u64| {
                instructions.iter().any(|instruction| {
                    instruction.mnemonic() == Mnemonic::Imul
                        && instruction.op_count() == 3
                        && instruction.immediate(2) == *factor
                })
            };
            instructions.len() <= MAX_FACTORING && FACTORS.iter().all(has)
        })
}

/// The last instruction that sets a register, before which control does not enter.
fn last_set(before: &[Instruction], register: Register) -> Option<&Instruction> {
    let last = before.iter().rev().take(MAX_DISTANCE);
    last.take_while(|last| last.flow_control() == FlowControl::Next)
        .find(|set| {
            set.op_count() > 0
                && set.op0_kind() == OpKind::Register
                && set.op0_register().full_register() == register
        })
}

/// Index of the one instruction that stores to a stack slot.
fn only_store(before: &[Instruction], slot: u64) -> Option<usize> {
    let mut stores = before.iter().enumerate().filter(|(_, store)| {
        store.mnemonic() == Mnemonic::Mov && stack_slot(store, 0) == Some(slot)
    });
    let (store, _) = stores.next()?;
    stores.next().is_none().then_some(store)
}
