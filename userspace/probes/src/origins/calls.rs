//! Who calls whom, as far as the code says it.
//!
//! In: every function's instructions, once. Out: the places that call a function,
//! or that they are not all known: its address is taken, or there are too many of
//! them. Never: an entry for each call of a function that everybody calls.

use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction};

use crate::code;
use crate::elf::Image;
use crate::locations;

/// Places that call one function. More are never needed: a task type spawned at so
/// many has no label.
const MAX_CALLERS: u8 = 128;
/// Calls of all functions, and slots of pointer tables that calls go through.
const MAX_CALLS: usize = 1 << 21;

/// What is told of one function.
#[derive(Clone, Copy, Debug, Default)]
struct Callee {
    calls: u8,
    /// It may be called from elsewhere.
    is_taken: bool,
    /// It does not come back.
    diverges: bool,
}

/// The calls of a program. Functions are numbers, in the order of
/// [`Image::functions`].
#[derive(Debug)]
pub(super) struct Calls {
    callees: Vec<Callee>,
    /// (callee, place of the call from the first function on).
    edges: Vec<(u32, u32)>,
    slots: BTreeSet<u64>,
    base: u64,
    is_full: bool,
    /// The last callee, which is often the next one.
    last: (u64, Option<u32>),
}

impl Calls {
    pub(super) fn of(image: &Image<'_>) -> Self {
        let functions = image.functions();
        Self {
            callees: vec![Callee::default(); functions.len()],
            edges: Vec::new(),
            slots: BTreeSet::new(),
            base: functions.first().map_or(0, |first| first.start),
            is_full: u32::try_from(functions.len()).is_err(),
            last: (0, None),
        }
    }

    /// Looks at one instruction, with the one that follows it in its function.
    #[inline]
    pub(super) fn visit(
        &mut self,
        image: &Image<'_>,
        range: &Range<u64>,
        instruction: &Instruction,
        next: Option<&Instruction>,
    ) {
        match instruction.code() {
            Code::Call_rel32_64 => {
                let target = instruction.near_branch64();
                let diverges = is_end(range, instruction, next);
                self.add(image, instruction, target, diverges);
            }
            Code::Jmp_rel32_64 | Code::Jmp_rel8_64 => {
                let target = instruction.near_branch64();
                if !range.contains(&target) {
                    self.add(image, instruction, target, false);
                }
            }
            Code::Call_rm64 | Code::Jmp_rm64 if instruction.is_ip_rel_memory_operand() => {
                let slot = instruction.ip_rel_memory_address();
                let Some(target) = image.pointer(slot) else {
                    return;
                };
                self.is_full |= self.slots.len() >= MAX_CALLS;
                if !self.is_full {
                    self.slots.insert(slot);
                }
                let is_call = instruction.code() == Code::Call_rm64;
                let diverges = is_call && is_end(range, instruction, next);
                self.add(image, instruction, target, diverges);
            }
            Code::Lea_r64_m | Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 => {
                let address = locations::loaded_address(instruction);
                self.take(image, address.filter(|&address| image.is_code(address)));
            }
            Code::Mov_r64_rm64 if instruction.is_ip_rel_memory_operand() => {
                let slot = instruction.ip_rel_memory_address();
                let is_code = image
                    .code_pointers()
                    .binary_search_by_key(&slot, |word| word.0);
                self.take(image, is_code.ok().map(|at| image.code_pointers()[at].1));
            }
            _ => {}
        }
    }

    fn add(&mut self, image: &Image<'_>, call: &Instruction, target: u64, diverges: bool) {
        if self.last.0 != target {
            self.last = (target, number(image, target));
        }
        let (Some(index), Ok(place)) = (self.last.1, u32::try_from(call.ip() - self.base)) else {
            return;
        };
        let callee = &mut self.callees[index as usize];
        callee.diverges |= diverges;
        callee.calls = callee.calls.saturating_add(1);
        self.is_full |= self.edges.len() >= MAX_CALLS;
        if callee.calls <= MAX_CALLERS && !self.is_full {
            self.edges.push((index, place));
        }
    }

    fn take(&mut self, image: &Image<'_>, address: Option<u64>) {
        if let Some(index) = address.and_then(|address| number(image, address)) {
            self.callees[index as usize].is_taken = true;
        }
    }

    /// Nothing is added any more. Words of the data that calls do not go through may
    /// be called by whoever reads them.
    pub(super) fn finish(&mut self, image: &Image<'_>) {
        self.edges.sort_unstable();
        for &(slot, target) in image.code_pointers() {
            if !self.slots.contains(&slot) {
                self.take(image, Some(target));
            }
        }
    }

    /// The places that call a function; `None` if they are not all known, or none is.
    pub(super) fn callers(&self, function: u32) -> Option<impl Iterator<Item = u64>> {
        let callee = self.callees.get(function as usize)?;
        let first = self.edges.partition_point(|edge| edge.0 < function);
        let edges = self.edges[first..].iter();
        let edges = edges.take_while(move |edge| edge.0 == function);
        let is_known = (1..=MAX_CALLERS).contains(&callee.calls) && !callee.is_taken;
        (is_known && !self.is_full).then(|| edges.map(|edge| self.base + u64::from(edge.1)))
    }

    /// Whether control does not come back from a call.
    pub(super) fn diverges(&self, image: &Image<'_>, call: &Instruction) -> bool {
        let function = code::direct_target(image, call).and_then(|target| number(image, target));
        function.is_some_and(|function| self.callees[function as usize].diverges)
    }
}

/// Whether what follows a call is not meant to be reached.
fn is_end(range: &Range<u64>, call: &Instruction, next: Option<&Instruction>) -> bool {
    match next.map(Instruction::flow_control) {
        None => call.next_ip() == range.end,
        Some(flow) => matches!(flow, FlowControl::Exception | FlowControl::Interrupt),
    }
}

/// The function that begins at `address`.
pub(super) fn number(image: &Image<'_>, address: u64) -> Option<u32> {
    let functions = image.functions();
    let found = functions.binary_search_by_key(&address, |range| range.start);
    u32::try_from(found.ok()?).ok()
}

/// The function around `address`.
pub(super) fn number_around(image: &Image<'_>, address: u64) -> Option<u32> {
    number(image, image.function_at(address)?.start)
}
