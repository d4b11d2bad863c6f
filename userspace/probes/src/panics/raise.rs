//! The function that begins to unwind, in an executable that has it without its symbol.
//!
//! In: the code. Out: the one function that is called with an exception of Rust's class.
//! Never: an answer where there are several; a call that control may come to otherwise.
//!
//! `library/panic_unwind/src/gcc.rs`: `panic` makes an exception, whose first word is
//! `RUST_EXCEPTION_CLASS`, `MOZ\0RUST`, and hands it to `_Unwind_RaiseException`. That
//! part of std is compiled with optimization, whatever the program is.

use std::collections::BTreeSet;

use dial9_bpf_abi::cookie::Register;
use iced_x86::{Code, FlowControl, Instruction};

use crate::code::{self, Effects, RegisterSet};
use crate::elf::Image;

/// By the bytes in memory, as in what Rust 1.85 and 1.95 make; by the number, as in 1.63.
const CLASSES: [u64; 2] = [
    u64::from_le_bytes(*b"MOZ\0RUST"),
    u64::from_be_bytes(*b"MOZ\0RUST"),
];

/// Address of the function.
pub(super) fn find(image: &Image<'_>) -> Option<u64> {
    let mut found = BTreeSet::new();
    let mut instructions = Vec::new();
    for range in image.functions() {
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let code = image.bytes(range.start, length).unwrap_or_default();
        if code.windows(8).any(is_class) {
            code::decode(image, range, &mut instructions);
            found.extend(raised(image, &instructions));
        }
    }
    let function = found.pop_first()?;
    found.is_empty().then_some(function)
}

fn is_class(bytes: &[u8]) -> bool {
    bytes
        .try_into()
        .is_ok_and(|bytes| CLASSES.contains(&u64::from_le_bytes(bytes)))
}

/// What a function calls, or ends with, right after it has made an exception.
fn raised(image: &Image<'_>, instructions: &[Instruction]) -> Vec<u64> {
    let mut effects = Effects::new();
    let classes = instructions
        .windows(2)
        .enumerate()
        .filter_map(|(at, pair)| {
            let [class, store] = pair else { return None };
            let is_store = class.code() == Code::Mov_r64_imm64
                && CLASSES.contains(&class.immediate64())
                && store.code() == Code::Mov_rm64_r64
                && store.op1_register() == class.op0_register();
            let exception = code::based_memory(store, 0).filter(|_| is_store)?;
            Some((&instructions[at + 2..], exception))
        });
    let called = classes.filter_map(|(rest, exception)| {
        let mut holders = RegisterSet::only(Register(exception));
        for instruction in rest {
            if instruction.flow_control() != FlowControl::Next {
                let is_conditional = instruction.flow_control() == FlowControl::ConditionalBranch;
                let is_given = holders.contains(Register::RDI.0) && !is_conditional;
                return code::direct_target(image, instruction).filter(|_| is_given);
            }
            holders = effects.step(instruction, holders);
        }
        None
    });
    called.collect()
}
