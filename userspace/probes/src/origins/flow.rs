//! What the registers of one function hold where it calls another.
//!
//! In: a function's instructions, and which calls do not come back. Out: at each
//! call, which of its arguments are constants, and which are the function's own.
//! Never: a value where two ways bring different ones; the ways of an unwinding.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::code::{self, Effects};
use crate::elf::Image;
use crate::locations::{self, Location};

/// Instructions of the largest function looked at.
const MAX_INSTRUCTIONS: usize = 1 << 15;
/// Stack slots remembered at a time.
const MAX_SLOTS: usize = 16;
/// What one instruction writes at most, bytes.
const WIDEST_STORE: u64 = 64;

/// Registers of arguments, in their order, by encoding: `rdi`, `rsi`, `rdx`, `rcx`,
/// `r8`, `r9` (x86-64 psABI, figure 3.4).
const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];

/// Arguments of a call that comes back, as `Handle::current` does: it may have its
/// result's place before the location.
const MAX_OF_CURRENT: usize = 2;

/// What is known of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    Constant(u64),
    /// The function's argument of this number.
    Argument(u8),
}

/// The values at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Values {
    registers: [Value; 16],
    slots: BTreeMap<u64, Value>,
}

impl Values {
    fn unknown() -> Self {
        Self {
            registers: [Value::Unknown; 16],
            slots: BTreeMap::new(),
        }
    }

    fn at_entry() -> Self {
        let mut values = Self::unknown();
        for (number, register) in (0..).zip(ARGUMENTS) {
            values.registers[usize::from(register)] = Value::Argument(number);
        }
        values
    }

    fn of(&self, register: Register) -> Value {
        code::number(register).map_or(Value::Unknown, |number| {
            self.registers[usize::from(number & 15)]
        })
    }

    /// Keeps what both agree on; whether that is less.
    fn meet(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (one, other) in self.registers.iter_mut().zip(&other.registers) {
            if one != other && *one != Value::Unknown {
                *one = Value::Unknown;
                changed = true;
            }
        }
        let before = self.slots.len();
        self.slots
            .retain(|slot, value| other.slots.get(slot) == Some(value));
        changed || self.slots.len() < before
    }

    fn step(&mut self, image: &Image<'_>, effects: &mut Effects, instruction: &Instruction) {
        let value = self.written(image, instruction);
        let written = effects.written(instruction);
        for (number, register) in (0..16u8).zip(&mut self.registers) {
            if written.contains(number) {
                *register = Value::Unknown;
            }
        }
        if let Some((register, value)) = value {
            self.registers[usize::from(register & 15)] = value;
        }
        if effects.moves_stack(instruction) && instruction.flow_control() == FlowControl::Next {
            self.slots.clear();
        } else if let Some(slot) = stack_slot(instruction, 0) {
            self.store(slot, instruction);
        }
    }

    fn store(&mut self, slot: u64, instruction: &Instruction) {
        let around = slot.saturating_sub(7)..slot.saturating_add(WIDEST_STORE);
        self.slots.retain(|other, _| !around.contains(other));
        if instruction.code() == Code::Mov_rm64_r64 && self.slots.len() < MAX_SLOTS {
            let value = self.of(instruction.op1_register());
            if value != Value::Unknown {
                self.slots.insert(slot, value);
            }
        }
    }

    /// The register that the instruction sets to a known value.
    fn written(&self, image: &Image<'_>, instruction: &Instruction) -> Option<(u8, Value)> {
        if let Some((to, from)) = code::register_copy(instruction) {
            return Some((to, self.registers[usize::from(from & 15)]));
        }
        let to = code::number(instruction.op0_register())?;
        if let Some(address) = locations::loaded_address(instruction) {
            return Some((to, Value::Constant(address)));
        }
        if instruction.code() != Code::Mov_r64_rm64 {
            return None;
        }
        if instruction.is_ip_rel_memory_operand() {
            let address = image.pointer(instruction.ip_rel_memory_address())?;
            return Some((to, Value::Constant(address)));
        }
        let slot = stack_slot(instruction, 1)?;
        Some((to, *self.slots.get(&slot)?))
    }
}

/// Displacement of a stack slot `[rsp+displacement]` in this operand.
fn stack_slot(instruction: &Instruction, operand: u32) -> Option<u64> {
    let is_slot = operand < instruction.op_count()
        && instruction.op_kind(operand) == OpKind::Memory
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None;
    is_slot.then(|| instruction.memory_displacement64())
}

/// A function and the values at the heads of its blocks.
#[derive(Debug)]
pub(super) struct Flow<'a, 'data> {
    image: &'a Image<'data>,
    instructions: &'a [Instruction],
    /// Whether control goes from each instruction to the next.
    goes_on: Vec<bool>,
    /// Values at the head of each block, by its first instruction.
    heads: BTreeMap<usize, Option<Values>>,
    /// Steps that were taken.
    pub(super) steps: usize,
}

/// What calls are given on the ways from one place to others.
#[derive(Debug, Default)]
pub(super) struct Between {
    /// Addresses of the locations among them.
    pub(super) locations: Vec<u64>,
    /// The function's own arguments, one bit each.
    pub(super) arguments: u8,
    /// Those of them that are given to a call that does not come back.
    pub(super) last_arguments: u8,
    /// The places where the ways end, of those asked for.
    pub(super) reached: Vec<u64>,
    /// A way goes where only data says.
    pub(super) is_lost: bool,
}

impl<'a, 'data> Flow<'a, 'data> {
    /// Follows the values through a function; `None` for one that is too long.
    pub(super) fn through(
        image: &'a Image<'data>,
        instructions: &'a [Instruction],
        diverges: impl Fn(&Instruction) -> bool,
    ) -> Option<Self> {
        if instructions.is_empty() || instructions.len() > MAX_INSTRUCTIONS {
            return None;
        }
        let goes_on = |instruction: &Instruction| match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => true,
            FlowControl::Call | FlowControl::IndirectCall => !diverges(instruction),
            _ => false,
        };
        let goes_on: Vec<_> = instructions.iter().map(goes_on).collect();
        let mut flow = Self {
            image,
            instructions,
            goes_on,
            heads: BTreeMap::new(),
            steps: 0,
        };
        flow.find_heads();
        flow.solve();
        Some(flow)
    }

    fn find_heads(&mut self) {
        self.heads.insert(0, None);
        for (index, instruction) in self.instructions.iter().enumerate() {
            if let Some(target) = self.target(instruction) {
                self.heads.insert(target, None);
            }
            let is_block_end = !self.goes_on[index]
                || instruction.flow_control() == FlowControl::ConditionalBranch;
            if is_block_end && index + 1 < self.instructions.len() {
                self.heads.insert(index + 1, None);
            }
        }
    }

    /// Where a branch goes in the function.
    fn target(&self, branch: &Instruction) -> Option<usize> {
        let is_branch = matches!(
            branch.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        let target = code::near_target(branch).filter(|_| is_branch)?;
        let found = self
            .instructions
            .binary_search_by_key(&target, Instruction::ip);
        found.ok()
    }

    /// From the entry, then from wherever only the unwinder or a table leads to.
    fn solve(&mut self) {
        let mut effects = Effects::new();
        let heads: Vec<_> = self.heads.keys().copied().collect();
        for head in heads {
            // What nobody goes to and does nothing aligns what follows.
            let is_padding = self.instructions[head].mnemonic() == Mnemonic::Nop;
            if self.heads[&head].is_some() || is_padding {
                continue;
            }
            let first = match head {
                0 => Values::at_entry(),
                _ => Values::unknown(),
            };
            self.heads.insert(head, Some(first));
            let mut queue = BTreeSet::from([head]);
            while let Some(head) = queue.pop_first() {
                self.follow(&mut effects, head, &mut queue);
            }
        }
    }

    fn follow(&mut self, effects: &mut Effects, head: usize, queue: &mut BTreeSet<usize>) {
        let Some(Some(mut values)) = self.heads.get(&head).cloned() else {
            return;
        };
        for index in head..self.instructions.len() {
            if index > head && self.heads.contains_key(&index) {
                self.bring(&values, index, queue);
                return;
            }
            self.steps += 1;
            let instruction = &self.instructions[index];
            values.step(self.image, effects, instruction);
            if let Some(target) = self.target(instruction) {
                self.bring(&values, target, queue);
            }
            if !self.goes_on[index] {
                return;
            }
        }
    }

    fn bring(&mut self, values: &Values, head: usize, queue: &mut BTreeSet<usize>) {
        let Some(there) = self.heads.get_mut(&head) else {
            return;
        };
        let changed = if let Some(there) = there {
            there.meet(values)
        } else {
            *there = Some(values.clone());
            true
        };
        if changed {
            queue.insert(head);
        }
    }

    /// Shows every instruction with the values before it.
    fn replay(&self, mut show: impl FnMut(usize, &Instruction, &Values)) {
        let mut effects = Effects::new();
        let mut values = Values::unknown();
        for (index, instruction) in self.instructions.iter().enumerate() {
            if let Some(head) = self.heads.get(&index) {
                values = head.clone().unwrap_or_else(Values::unknown);
            }
            show(index, instruction, &values);
            values.step(self.image, &mut effects, instruction);
        }
    }

    /// Shows every call and jump out of the function, with its arguments.
    pub(super) fn each_call(&self, mut show: impl FnMut(&Instruction, [Value; 6])) {
        self.replay(|_, instruction, values| {
            if is_call(instruction) || self.is_tail_call(instruction) {
                show(instruction, arguments(values));
            }
        });
    }

    fn is_tail_call(&self, instruction: &Instruction) -> bool {
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch => self.target(instruction).is_none(),
            FlowControl::IndirectBranch => instruction.is_ip_rel_memory_operand(),
            _ => false,
        }
    }

    /// Every atomic addition with a result, and the word in memory that it adds to,
    /// where that has a fixed address.
    pub(super) fn each_addition(&self, mut show: impl FnMut(u64, Option<u64>)) {
        self.replay(|_, instruction, values| {
            if is_addition(instruction) {
                show(instruction.ip(), word_of(instruction, values));
            }
        });
    }

    /// What calls are given behind the instruction at `from`, before `ends`, sorted.
    pub(super) fn between(&self, from: u64, ends: &[u64]) -> Between {
        let mut between = Between::default();
        let seen = self.ways(from, ends, &mut between);
        let read = self.arguments_read();
        self.replay(|index, instruction, values| {
            if !seen[index] || !is_call(instruction) {
                return;
            }
            let goes_on = self.goes_on[index];
            let given = if goes_on {
                MAX_OF_CURRENT
            } else {
                ARGUMENTS.len()
            };
            let (mut own, mut locations) = (0, 0);
            for value in arguments(values).into_iter().take(given) {
                match value {
                    Value::Argument(number) => own |= 1 << number,
                    Value::Constant(address) if Location::at(self.image, address).is_some() => {
                        between.locations.push(address);
                        locations += 1;
                    }
                    Value::Constant(_) | Value::Unknown => {}
                }
            }
            // What it does not take may still be where the caller left it.
            if locations == 0 {
                between.arguments |= own & read;
            }
            if locations == 0 && !goes_on {
                between.last_arguments |= own & read;
            }
        });
        between
    }

    /// The arguments that the function has: a register that it never reads may hold
    /// whatever the caller left there.
    fn arguments_read(&self) -> u8 {
        let (mut read, mut effects) = (0, Effects::new());
        self.replay(|_, instruction, values| {
            for (number, value) in (0..).zip(values.registers) {
                if let Value::Argument(argument) = value
                    && effects.reads(instruction, number)
                {
                    read |= 1 << argument;
                }
            }
        });
        read
    }

    /// The instructions on the ways.
    fn ways(&self, from: u64, ends: &[u64], between: &mut Between) -> Vec<bool> {
        let mut seen = vec![false; self.instructions.len()];
        let place = |ip: u64| self.instructions.binary_search_by_key(&ip, Instruction::ip);
        let mut queue: Vec<_> = match place(from) {
            Ok(index) => self.after(index).collect(),
            Err(_) => Vec::new(),
        };
        while let Some(index) = queue.pop() {
            let instruction = &self.instructions[index];
            if ends.binary_search(&instruction.ip()).is_ok() {
                between.reached.push(instruction.ip());
                continue;
            }
            if std::mem::replace(&mut seen[index], true) {
                continue;
            }
            let goes_astray = instruction.flow_control() == FlowControl::IndirectBranch
                && !self.is_tail_call(instruction);
            between.is_lost |= goes_astray;
            queue.extend(self.after(index));
        }
        seen
    }

    fn after(&self, index: usize) -> impl Iterator<Item = usize> {
        let next =
            (self.goes_on[index] && index + 1 < self.instructions.len()).then_some(index + 1);
        next.into_iter()
            .chain(self.target(&self.instructions[index]))
    }
}

fn word_of(instruction: &Instruction, values: &Values) -> Option<u64> {
    let displacement = instruction.memory_displacement64();
    if instruction.memory_index() != Register::None {
        return None;
    }
    match instruction.memory_base() {
        // iced-x86 has made the address of it.
        Register::RIP | Register::None => Some(displacement),
        base => match values.of(base) {
            Value::Constant(base) => Some(base.wrapping_add(displacement)),
            _ => None,
        },
    }
}

fn arguments(values: &Values) -> [Value; 6] {
    ARGUMENTS.map(|register| values.registers[usize::from(register)])
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

/// `lock xadd` of a word.
pub(super) fn is_addition(instruction: &Instruction) -> bool {
    instruction.code() == Code::Xadd_rm64_r64
        && instruction.has_lock_prefix()
        && instruction.op0_kind() == OpKind::Memory
}
