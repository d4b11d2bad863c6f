//! Calls of poll functions through a task's vtable.
//!
//! In: every function's instructions, once. Out: the calls `[[header+0x10]]`
//! with the header in `rdi`, which are few and not generic: workers, the
//! current-thread scheduler, `LocalSet`, the blocking pool. Never: calls of the
//! vtable's other functions, which have other slots.
//!
//! Where a function does nothing but jump through the vtable
//! (`RawTask::poll` compiled on its own), its callers are the calls. Without
//! optimization the header passes through memory and functions of its own; then
//! the one call in `RawTask::poll` is it, which its shape or its symbol tells.

use std::collections::BTreeSet;
use std::ops::Range;

use dial9_bpf_abi::cookie::Cookie;
use iced_x86::{Code, FlowControl, Instruction, OpKind};

use crate::code::{self, Effects};
use crate::elf::Image;
use crate::error::{self, ScanError};
use crate::names;
use crate::plan::{InstructionClass, Probe, Site};
use crate::unoptimized;
use crate::uses::{self, Kind};
use crate::values::{self, Flow};

/// Instructions after a call among which its end is looked for.
const MAX_DISTANCE: usize = 16;
/// Bytes that the call and they have at most.
const MAX_END_BYTES: u64 = 15 * (MAX_DISTANCE as u64 + 1);
/// How often a jump to a jump to the vtable is followed.
const MAX_THUNK_DEPTH: usize = 3;
/// Poll calls, functions that only jump to one, and uses of those; a program has about
/// 10.
const MAX_CALLS: usize = 1 << 10;

/// `runtime/task/raw.rs`.
const RAW_POLL: &str = "tokio::runtime::task::raw::RawTask::poll";

/// Collects poll calls while it is shown the program's functions.
#[derive(Debug)]
pub(crate) struct PollCalls {
    effects: Effects,
    calls: BTreeSet<u64>,
    thunks: BTreeSet<u64>,
    /// Calls that may be that of `RawTask::poll` without optimization.
    unoptimized: Vec<unoptimized::PollCall>,
}

impl PollCalls {
    pub(crate) fn new() -> Self {
        Self {
            effects: Effects::new(),
            calls: BTreeSet::new(),
            thunks: BTreeSet::new(),
            unoptimized: Vec::new(),
        }
    }

    /// Looks at one function.
    pub(crate) fn visit(&mut self, range: &Range<u64>, instructions: &[Instruction]) {
        let mut is_candidate = [false; 2];
        for instruction in instructions {
            is_candidate[0] |= is_slot_zero(instruction);
            is_candidate[1] |= values::loads_vtable(instruction).is_some();
        }
        if is_candidate == [true; 2] {
            self.follow(range, instructions);
        } else if is_candidate[1] && self.unoptimized.len() <= MAX_CALLS {
            self.unoptimized
                .extend(unoptimized::poll_call(instructions));
        }
    }

    fn follow(&mut self, range: &Range<u64>, instructions: &[Instruction]) {
        let mut flow = Flow::new(instructions);
        for instruction in instructions {
            flow.enter(instruction);
            if self.calls.len().max(self.thunks.len()) > MAX_CALLS {
                return;
            }
            if is_slot_zero(instruction) && flow.is_poll(instruction) {
                match instruction.flow_control() {
                    FlowControl::IndirectCall => self.calls.insert(instruction.ip()),
                    _ => self.thunks.insert(range.start),
                };
            }
            flow.leave(&mut self.effects, instruction);
        }
    }

    /// Addresses of the poll calls.
    ///
    /// # Errors
    ///
    /// `TooBig`.
    pub(crate) fn finish(mut self, image: &Image<'_>) -> Result<Vec<u64>, ScanError> {
        let mut thunks = std::mem::take(&mut self.thunks);
        for _ in 0..MAX_THUNK_DEPTH {
            limit(self.calls.len().max(thunks.len()))?;
            if thunks.is_empty() {
                break;
            }
            let mut next = BTreeSet::new();
            let uses = uses::find(image, &thunks, MAX_CALLS);
            limit(uses.len())?;
            for found in uses {
                match found.kind {
                    Kind::Call => _ = self.calls.insert(found.address),
                    Kind::Jump => _ = next.insert(found.user),
                    Kind::Load => {}
                }
            }
            thunks = next;
        }
        if self.calls.is_empty() {
            self.calls.extend(self.unoptimized_call(image));
        }
        if self.calls.is_empty() {
            self.calls.extend(named_call(image));
        }
        limit(self.calls.len())?;
        Ok(self.calls.into_iter().collect())
    }

    /// The call in `RawTask::poll`, if one function alone has its shape.
    fn unoptimized_call(&self, image: &Image<'_>) -> Option<u64> {
        let mut calls = self.unoptimized.iter().filter(|call| call.is_poll(image));
        let call = calls.next()?.address;
        let is_whole = self.unoptimized.len() <= MAX_CALLS;
        (is_whole && calls.next().is_none()).then_some(call)
    }
}

fn limit(calls: usize) -> Result<(), ScanError> {
    error::limit("poll calls", calls as u64, MAX_CALLS as u64)
}

/// The call through a register in `RawTask::poll`.
fn named_call(image: &Image<'_>) -> Option<u64> {
    let functions = names::functions(image, "RawTask4poll", |name| name == RAW_POLL)?;
    let mut found = functions.iter().filter_map(|&function| {
        let mut instructions = Vec::new();
        code::decode(image, &image.function_at(function)?, &mut instructions);
        let mut calls = instructions.iter().filter(|instruction| {
            instruction.flow_control() == FlowControl::IndirectCall
                && instruction.op0_kind() == OpKind::Register
        });
        calls.next_back().map(Instruction::ip)
    });
    let call = found.next()?;
    found.next().is_none().then_some(call)
}

/// `call [register]` or `jmp [register]`.
fn is_slot_zero(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Call_rm64 | Code::Jmp_rm64)
        && instruction.op0_kind() == OpKind::Memory
        && code::based_memory(instruction, 0).is_some()
}

/// The site for the end of the call at `call`: the first emulated instruction after
/// it, before the stack pointer changes or control goes elsewhere; else the next
/// instruction.
pub(crate) fn site_after(image: &Image<'_>, probe: Probe, call: u64) -> Option<Site> {
    let mut effects = Effects::new();
    let goes_on = |instruction: &Instruction| {
        instruction.flow_control() == FlowControl::Next && !effects.moves_stack(instruction)
    };
    first_emulated(image, probe, call, goes_on)
}

/// The same, wherever the stack pointer is then, and also behind the calls that
/// follow.
pub(crate) fn site_behind(image: &Image<'_>, probe: Probe, call: u64) -> Option<Site> {
    let goes_on = |instruction: &Instruction| {
        let flow = instruction.flow_control();
        matches!(
            flow,
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall
        )
    };
    first_emulated(image, probe, call, goes_on)
}

fn first_emulated(
    image: &Image<'_>,
    probe: Probe,
    call: u64,
    mut goes_on: impl FnMut(&Instruction) -> bool,
) -> Option<Site> {
    let function = image.function_at(call)?;
    let mut instructions = Vec::new();
    let end = function.end.min(call.saturating_add(MAX_END_BYTES));
    code::decode(image, &(call..end), &mut instructions);
    let after = instructions.get(1..)?;
    let mut chosen = after.first()?;
    for instruction in after.iter().take(MAX_DISTANCE) {
        let class = code::class(image, instruction);
        if class.is_some_and(|class| class != InstructionClass::SingleStepped) {
            chosen = instruction;
            break;
        }
        if !goes_on(instruction) {
            break;
        }
    }
    code::site(image, probe, chosen, Cookie::EMPTY)
}

#[cfg(test)]
mod tests;
