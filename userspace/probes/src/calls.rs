//! Calls of poll functions through a task's vtable.
//!
//! In: every function's instructions, once. Out: the calls `[[header+0x10]]`
//! with the header in `rdi`, which are few and not generic: workers, the
//! current-thread scheduler, `LocalSet`, the blocking pool. Never: calls of the
//! vtable's other functions, which have other slots.
//!
//! The vtable is at 16 in the header since Tokio 1.22 (`runtime/task/core.rs`).
//! Where a function does nothing but jump through the vtable
//! (`RawTask::poll` compiled on its own), its callers are the calls.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use dial9_bpf_abi::cookie::{Cookie, Register};
use iced_x86::{Code, FlowControl, Instruction, OpKind};

use crate::code::{self, Effects};
use crate::elf::Image;
use crate::plan::{InstructionClass, Probe, Site};

/// Offset of the vtable pointer in the task header, bytes.
const VTABLE_OFFSET: u64 = 16;
/// Instructions after a call among which its end is looked for.
const MAX_DISTANCE: usize = 16;
/// Bytes that the call and they have at most.
const MAX_END_BYTES: u64 = 15 * (MAX_DISTANCE as u64 + 1);
/// How often a jump to a jump to the vtable is followed.
const MAX_THUNK_DEPTH: usize = 3;

/// A direct call or jump to another function.
#[derive(Clone, Copy, Debug)]
struct DirectCall {
    address: u64,
    function: u64,
    /// The function called, or the pointer-table slot that names it.
    target: u64,
    is_jump: bool,
}

/// Collects poll calls while it is shown the program's functions.
#[derive(Debug)]
pub(crate) struct PollCalls {
    effects: Effects,
    calls: BTreeSet<u64>,
    thunks: BTreeSet<u64>,
    direct: Vec<DirectCall>,
}

impl PollCalls {
    pub(crate) fn new() -> Self {
        Self {
            effects: Effects::new(),
            calls: BTreeSet::new(),
            thunks: BTreeSet::new(),
            direct: Vec::new(),
        }
    }

    /// Looks at one function.
    pub(crate) fn visit(&mut self, range: &Range<u64>, instructions: &[Instruction]) {
        let mut is_candidate = [false; 2];
        for instruction in instructions {
            self.direct.extend(direct_call(range, instruction));
            is_candidate[0] |= is_slot_zero(instruction);
            is_candidate[1] |= loads_vtable(instruction).is_some();
        }
        if is_candidate == [true; 2] {
            self.follow(range, instructions);
        }
    }

    fn follow(&mut self, range: &Range<u64>, instructions: &[Instruction]) {
        let mut labels: Vec<_> = code::branch_targets(instructions).collect();
        labels.sort_unstable();
        let mut values = Values::new();
        for instruction in instructions {
            if labels.binary_search(&instruction.ip()).is_ok() {
                values.forget();
            }
            if is_slot_zero(instruction) && values.is_poll(instruction) {
                match instruction.flow_control() {
                    FlowControl::IndirectCall => self.calls.insert(instruction.ip()),
                    _ => self.thunks.insert(range.start),
                };
            }
            values.step(&mut self.effects, instruction);
        }
    }

    /// Addresses of the poll calls.
    pub(crate) fn finish(mut self, image: &Image<'_>) -> Vec<u64> {
        let mut thunks = self.thunks;
        for _ in 0..MAX_THUNK_DEPTH {
            let names: BTreeSet<_> = thunks
                .iter()
                .flat_map(|&thunk| image.pointers_to(thunk).chain([thunk]))
                .collect();
            let mut next = BTreeSet::new();
            for call in self
                .direct
                .iter()
                .filter(|call| names.contains(&call.target))
            {
                if call.is_jump {
                    next.insert(call.function);
                } else {
                    self.calls.insert(call.address);
                }
            }
            thunks = next;
        }
        self.calls.into_iter().collect()
    }
}

fn direct_call(range: &Range<u64>, instruction: &Instruction) -> Option<DirectCall> {
    let (target, is_jump) = match instruction.flow_control() {
        FlowControl::Call => (code::near_target(instruction)?, false),
        FlowControl::UnconditionalBranch => (code::near_target(instruction)?, true),
        FlowControl::IndirectCall if instruction.is_ip_rel_memory_operand() => {
            (instruction.ip_rel_memory_address(), false)
        }
        FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
            (instruction.ip_rel_memory_address(), true)
        }
        _ => return None,
    };
    let is_inside = is_jump && range.contains(&target);
    let call = DirectCall {
        address: instruction.ip(),
        function: range.start,
        target,
        is_jump,
    };
    (!is_inside).then_some(call)
}

/// `call [register]` or `jmp [register]`.
fn is_slot_zero(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Call_rm64 | Code::Jmp_rm64)
        && instruction.op0_kind() == OpKind::Memory
        && code::based_memory(instruction, 0).is_some()
}

/// (register loaded, header's register) of a load of the vtable.
fn loads_vtable(instruction: &Instruction) -> Option<(u8, u8)> {
    if instruction.code() != Code::Mov_r64_rm64 || instruction.op1_kind() != OpKind::Memory {
        return None;
    }
    let header = code::based_memory(instruction, VTABLE_OFFSET)?;
    Some((code::number(instruction.op0_register())?, header))
}

/// What a register holds: a name for the value, and the name of the header it
/// was loaded from as a vtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    name: u32,
    header: Option<u32>,
}

/// Names of the values in the registers, valid along a straight line.
#[derive(Debug)]
struct Values {
    registers: [Value; 16],
    spilled: HashMap<u64, Value>,
    next: u32,
}

impl Values {
    fn new() -> Self {
        let unknown = Value {
            name: 0,
            header: None,
        };
        let mut values = Self {
            registers: [unknown; 16],
            spilled: HashMap::new(),
            next: 0,
        };
        values.forget();
        values
    }

    fn fresh(&mut self) -> Value {
        self.next = self.next.wrapping_add(1);
        Value {
            name: self.next,
            header: None,
        }
    }

    fn forget(&mut self) {
        for register in 0..self.registers.len() {
            self.registers[register] = self.fresh();
        }
        self.spilled.clear();
    }

    fn of(&self, register: u8) -> Value {
        self.registers[usize::from(register & 15)]
    }

    /// Whether the call goes through the vtable of the header in `rdi`.
    fn is_poll(&self, call: &Instruction) -> bool {
        let header = self.of(Register::RDI.0).name;
        code::based_memory(call, 0).is_some_and(|base| self.of(base).header == Some(header))
    }

    fn step(&mut self, effects: &mut Effects, instruction: &Instruction) {
        let flow = instruction.flow_control();
        if matches!(flow, FlowControl::UnconditionalBranch | FlowControl::Return) {
            return self.forget();
        }
        let value = self.written_value(instruction);
        let written = effects.written(instruction);
        for register in (0..16u8).filter(|&register| written.contains(register)) {
            self.registers[usize::from(register)] = self.fresh();
        }
        if let Some((register, value)) = value {
            self.registers[usize::from(register & 15)] = value;
        }
        if effects.moves_stack(instruction) && flow == FlowControl::Next {
            self.spilled.clear();
        }
        if let Some(slot) = stack_slot(instruction, 0) {
            let stored = code::number(instruction.op1_register())
                .filter(|_| instruction.code() == Code::Mov_rm64_r64)
                .map(|register| self.of(register));
            match stored {
                Some(value) => self.spilled.insert(slot, value),
                None => self.spilled.remove(&slot),
            };
        }
    }

    /// The register that a `mov` sets to a value known by name.
    fn written_value(&mut self, instruction: &Instruction) -> Option<(u8, Value)> {
        if let Some((to, from)) = code::register_copy(instruction) {
            return Some((to, self.of(from)));
        }
        if let Some((to, header)) = loads_vtable(instruction) {
            let header = Some(self.of(header).name);
            return Some((
                to,
                Value {
                    header,
                    ..self.fresh()
                },
            ));
        }
        let slot =
            stack_slot(instruction, 1).filter(|_| instruction.code() == Code::Mov_r64_rm64)?;
        let to = code::number(instruction.op0_register())?;
        if !self.spilled.contains_key(&slot) {
            let value = self.fresh();
            self.spilled.insert(slot, value);
        }
        Some((to, *self.spilled.get(&slot)?))
    }
}

/// Displacement of a stack slot `[rsp+displacement]` in this operand.
fn stack_slot(instruction: &Instruction, operand: u32) -> Option<u64> {
    let is_slot = operand < instruction.op_count()
        && instruction.op_kind(operand) == OpKind::Memory
        && instruction.memory_base() == iced_x86::Register::RSP
        && instruction.memory_index() == iced_x86::Register::None;
    is_slot.then(|| instruction.memory_displacement64())
}

/// The site for the end of the poll called at `call`: the first emulated
/// instruction after it, before the stack pointer changes or control goes
/// elsewhere; else the next instruction.
pub(crate) fn site_after(image: &Image<'_>, probe: Probe, call: u64) -> Option<Site> {
    let function = image.function_at(call)?;
    let mut instructions = Vec::new();
    let end = function.end.min(call.saturating_add(MAX_END_BYTES));
    code::decode(image, &(call..end), &mut instructions);
    let after = instructions.get(1..)?;
    let mut effects = Effects::new();
    let mut chosen = after.first()?;
    for instruction in after.iter().take(MAX_DISTANCE) {
        let class = code::class(image, instruction);
        if class.is_some_and(|class| class != InstructionClass::SingleStepped) {
            chosen = instruction;
            break;
        }
        if instruction.flow_control() != FlowControl::Next || effects.moves_stack(instruction) {
            break;
        }
    }
    code::site(image, probe, chosen, Cookie::EMPTY)
}

#[cfg(test)]
mod tests;
