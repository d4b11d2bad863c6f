//! Which register holds a task header, and which the vtable of that header.
//!
//! In: one function's instructions, in the order of their addresses. Out:
//! whether a call goes through the vtable of the header in `rdi`. Never: a guess
//! where ways meet: what is known there is what is known on each way, and
//! nothing at the head of a loop.

use std::collections::{BTreeMap, HashMap};

use dial9_bpf_abi::cookie::Register;
use iced_x86::{Code, FlowControl, Instruction, OpKind};

use crate::code::{self, Effects};

/// Offset of the vtable pointer in the task header since Tokio 1.22, bytes
/// (`runtime/task/core.rs`).
const VTABLE_OFFSET: u64 = 16;
/// Stack slots remembered at a time.
const MAX_SPILLED: usize = 32;
/// Instructions further down that values are remembered for at a time.
const MAX_AHEAD: usize = 1 << 12;

/// (register loaded, header's register) of a load of the vtable.
pub(crate) fn loads_vtable(instruction: &Instruction) -> Option<(u8, u8)> {
    if instruction.code() != Code::Mov_r64_rm64 || instruction.op1_kind() != OpKind::Memory {
        return None;
    }
    let header = code::based_memory(instruction, VTABLE_OFFSET)?;
    Some((code::number(instruction.op0_register())?, header))
}

/// A value, by a name of its own and the name of the header it was loaded from
/// as a vtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    name: u32,
    header: Option<u32>,
}

/// Gives each value its name.
#[derive(Debug, Default)]
struct Names(u32);

impl Names {
    fn fresh(&mut self, header: Option<u32>) -> Value {
        self.0 = self.0.wrapping_add(1);
        Value {
            name: self.0,
            header,
        }
    }

    /// What is known of a value that is one or the other.
    fn meet(&mut self, one: Value, other: Value) -> Value {
        if one == other {
            return one;
        }
        let header = one.header.filter(|_| one.header == other.header);
        self.fresh(header)
    }
}

/// The values in registers and stack slots at one place.
#[derive(Clone, Debug)]
struct Values {
    registers: [Value; 16],
    spilled: BTreeMap<u64, Value>,
}

impl Values {
    fn unknown(names: &mut Names) -> Self {
        Self {
            registers: std::array::from_fn(|_| names.fresh(None)),
            spilled: BTreeMap::new(),
        }
    }

    fn of(&self, register: u8) -> Value {
        self.registers[usize::from(register & 15)]
    }

    fn set(&mut self, register: u8, value: Value) {
        self.registers[usize::from(register & 15)] = value;
    }

    fn spill(&mut self, slot: u64, value: Value) {
        if self.spilled.len() < MAX_SPILLED || self.spilled.contains_key(&slot) {
            self.spilled.insert(slot, value);
        }
    }

    fn meet(&mut self, other: &Self, names: &mut Names) {
        for (one, &other) in self.registers.iter_mut().zip(&other.registers) {
            *one = names.meet(*one, other);
        }
        self.spilled
            .retain(|slot, value| other.spilled.get(slot) == Some(value));
    }
}

/// Follows the values through a function.
#[derive(Debug)]
pub(crate) struct Flow {
    names: Names,
    /// Values at the instruction reached; `None` if only branches lead there.
    here: Option<Values>,
    /// Values that branches bring to instructions further down.
    ahead: HashMap<u64, Values>,
    /// Targets of branches back, sorted.
    loops: Vec<u64>,
    /// There were too many branches: nothing is known any more.
    is_lost: bool,
}

impl Flow {
    pub(crate) fn new(instructions: &[Instruction]) -> Self {
        let mut loops: Vec<_> = instructions
            .iter()
            .filter_map(|branch| branch_target(branch).filter(|&target| target <= branch.ip()))
            .collect();
        loops.sort_unstable();
        let mut names = Names::default();
        let here = Some(Values::unknown(&mut names));
        Self {
            names,
            here,
            ahead: HashMap::new(),
            loops,
            is_lost: false,
        }
    }

    /// Comes to an instruction.
    pub(crate) fn enter(&mut self, instruction: &Instruction) {
        let brought = self.ahead.remove(&instruction.ip());
        if self.loops.binary_search(&instruction.ip()).is_ok() {
            self.here = None;
        } else if let (Some(here), Some(brought)) = (&mut self.here, &brought) {
            here.meet(brought, &mut self.names);
        } else if self.here.is_none() {
            self.here = brought;
        }
        if self.here.is_none() {
            self.here = Some(Values::unknown(&mut self.names));
        }
    }

    /// Whether the call goes through the vtable of the header in `rdi`.
    pub(crate) fn is_poll(&self, call: &Instruction) -> bool {
        let (Some(here), Some(base)) = (&self.here, code::based_memory(call, 0)) else {
            return false;
        };
        !self.is_lost && here.of(base).header == Some(here.of(Register::RDI.0).name)
    }

    /// Goes on from an instruction.
    pub(crate) fn leave(&mut self, effects: &mut Effects, instruction: &Instruction) {
        if let Some(target) = branch_target(instruction).filter(|&to| to > instruction.ip()) {
            self.bring(target);
        }
        if matches!(
            instruction.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
        ) {
            self.here = None;
        } else if let Some(here) = &mut self.here {
            step(here, &mut self.names, effects, instruction);
        }
    }

    fn bring(&mut self, target: u64) {
        let Some(here) = &self.here else { return };
        let is_full = self.ahead.len() >= MAX_AHEAD;
        match self.ahead.get_mut(&target) {
            Some(values) => values.meet(here, &mut self.names),
            None if is_full => self.is_lost = true,
            None => _ = self.ahead.insert(target, here.clone()),
        }
    }
}

fn branch_target(instruction: &Instruction) -> Option<u64> {
    code::branch_targets(std::slice::from_ref(instruction)).next()
}

fn step(values: &mut Values, names: &mut Names, effects: &mut Effects, instruction: &Instruction) {
    let value = written_value(values, names, instruction);
    let written = effects.written(instruction);
    for register in (0..16u8).filter(|&register| written.contains(register)) {
        values.set(register, names.fresh(None));
    }
    if let Some((register, value)) = value {
        values.set(register, value);
    }
    if effects.moves_stack(instruction) && instruction.flow_control() == FlowControl::Next {
        values.spilled.clear();
    }
    if let Some(slot) = stack_slot(instruction, 0) {
        let stored = code::number(instruction.op1_register())
            .filter(|_| instruction.code() == Code::Mov_rm64_r64)
            .map(|register| values.of(register));
        match stored {
            Some(value) => values.spill(slot, value),
            None => _ = values.spilled.remove(&slot),
        }
    }
}

/// The register that a `mov` sets to a value known by name.
fn written_value(
    values: &mut Values,
    names: &mut Names,
    instruction: &Instruction,
) -> Option<(u8, Value)> {
    if let Some((to, from)) = code::register_copy(instruction) {
        return Some((to, values.of(from)));
    }
    if let Some((to, header)) = loads_vtable(instruction) {
        return Some((to, names.fresh(Some(values.of(header).name))));
    }
    let slot = stack_slot(instruction, 1).filter(|_| instruction.code() == Code::Mov_r64_rm64)?;
    let to = code::number(instruction.op0_register())?;
    if let Some(&value) = values.spilled.get(&slot) {
        return Some((to, value));
    }
    let value = names.fresh(None);
    values.spill(slot, value);
    Some((to, value))
}

/// Displacement of a stack slot `[rsp+displacement]` in this operand.
pub(crate) fn stack_slot(instruction: &Instruction, operand: u32) -> Option<u64> {
    let is_slot = operand < instruction.op_count()
        && instruction.op_kind(operand) == OpKind::Memory
        && instruction.memory_base() == iced_x86::Register::RSP
        && instruction.memory_index() == iced_x86::Register::None;
    is_slot.then(|| instruction.memory_displacement64())
}
