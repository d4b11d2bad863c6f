//! Wakes that the compiler has copied out of the waker's functions.
//!
//! In: every function's instructions, once. Out: for each copy of
//! `State::transition_to_notified_by_ref` or `_by_val` the branches by which its
//! compare-exchange loop is left: a wake leaves it once. Never: a copy in the
//! waker's own functions, which count there.
//!
//! Where a future that is written by hand wakes itself, LTO sees which waker it
//! is. `runtime/task/state.rs`: the loop looks at `RUNNING`, `COMPLETE` and
//! `NOTIFIED`, and adds `NOTIFIED` and one reference to the state of an idle task;
//! so does no other change of the state but the one that cancels.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use dial9_bpf_abi::cookie::{Branch, Cookie, Register};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};

use crate::code::{self, Effects};
use crate::elf::Image;
use crate::plan::{Probe, Site};

const NOTIFIED: u64 = 4;
const CANCELLED: u64 = 0x20;
const ONE_REFERENCE: u64 = 0x40;
const SUBMITTED: u64 = NOTIFIED | ONE_REFERENCE;
/// `RUNNING | COMPLETE | NOTIFIED`.
const LIFECYCLE: u64 = 7;
/// Instructions of the longest loop looked at.
const MAX_LOOP: usize = 96;
/// Exchanges of one function, and copies of a program, that are looked at; a program
/// has some dozens.
const MAX_EXCHANGES: usize = 1 << 10;
const MAX_COPIES: usize = 1 << 12;
/// Instructions from the exchange to the branch that tells whether it won.
const MAX_DISTANCE: usize = 3;
/// Calls from the waker's functions to the transition.
const MAX_DEPTH: usize = 2;
/// The condition of `js`: the count of references overflows, and the program
/// ends.
const SIGN: u8 = 8;

/// One way out of the loop.
#[derive(Clone, Copy, Debug)]
struct Exit {
    branch: Instruction,
    /// Whether the loop is left by the taken direction; `None` if by both.
    taken: Option<bool>,
}

/// A compare-exchange loop.
#[derive(Debug)]
struct Loop {
    header: Register,
    exchanges: BTreeSet<usize>,
    body: BTreeSet<usize>,
}

/// A copy of the transition.
#[derive(Clone, Debug)]
struct Copied {
    /// Entry of the function that has it.
    function: u64,
    header: Register,
    /// `None` where a way out is no branch.
    exits: Option<Vec<Exit>>,
}

/// Collects copies while it is shown the program's functions.
#[derive(Debug)]
pub(crate) struct InlinedWakes {
    effects: Effects,
    copies: Vec<Copied>,
    /// Copies that may be there beyond what is looked at.
    beyond: usize,
}

impl InlinedWakes {
    pub(crate) fn new() -> Self {
        Self {
            effects: Effects::new(),
            copies: Vec::new(),
            beyond: 0,
        }
    }

    /// Looks at one function.
    pub(crate) fn visit(&mut self, range: &Range<u64>, instructions: &[Instruction]) {
        let submits = |it| adds(it, SUBMITTED) || adds(it, ONE_REFERENCE);
        if !instructions.iter().any(submits) {
            return;
        }
        let exchanges = instructions.iter().enumerate();
        let exchanges = exchanges.filter_map(|(index, it)| Some((index, exchanged_header(it)?)));
        let exchanges: Vec<_> = exchanges.take(MAX_EXCHANGES + 1).collect();
        if exchanges.len() > MAX_EXCHANGES || self.copies.len() > MAX_COPIES {
            self.beyond += 1;
            return;
        }
        let branches = branches_to(instructions);
        // By head: a loop may have an exchange for each new state.
        let mut loops: BTreeMap<usize, Loop> = BTreeMap::new();
        for (index, header) in exchanges {
            let Some((head, body)) = loop_around(instructions, &branches, index) else {
                continue;
            };
            let found = loops.entry(head).or_insert_with(|| Loop {
                header,
                exchanges: BTreeSet::new(),
                body: BTreeSet::new(),
            });
            found.body.extend(body);
            if found.header == header {
                found.exchanges.insert(index);
            }
        }
        for found in loops.into_values() {
            if self.is_wake(instructions, &found) {
                self.copies.push(Copied {
                    function: range.start,
                    header: found.header,
                    exits: exits(instructions, &found.body),
                });
            }
        }
    }

    /// The sites of the copies outside `waker`, the waker's own functions, and how
    /// many copies cannot be counted.
    pub(crate) fn sites(
        &self,
        image: &Image<'_>,
        waker: &[u64],
        cookie: Cookie,
    ) -> (Vec<Site>, usize) {
        let own = reached(image, waker);
        let others = self.copies.iter();
        let others = others.filter(|copied| !own.contains(&copied.function));
        let mut sites = Vec::new();
        let mut uncounted = self.beyond;
        for copied in others {
            match sites_of(image, copied, cookie) {
                Some(of_copy) => sites.extend(of_copy),
                None => uncounted += 1,
            }
        }
        (sites, uncounted)
    }

    /// Whether a loop is the transition: it asks for each bit of the lifecycle,
    /// adds what an idle task gets, does not cancel, changes nothing else, and
    /// leaves the header where it is.
    fn is_wake(&mut self, instructions: &[Instruction], found: &Loop) -> bool {
        let mut asked = 0;
        let (mut submits, mut notifies, mut refers) = (false, false, false);
        for &node in &found.body {
            let instruction = &instructions[node];
            let stays = matches!(
                instruction.flow_control(),
                FlowControl::Next
                    | FlowControl::ConditionalBranch
                    | FlowControl::UnconditionalBranch
            );
            let exchanges = instruction.has_lock_prefix();
            let set = set_bits(instruction);
            if !stays
                || exchanges && !found.exchanges.contains(&node)
                || set & CANCELLED != 0
                || self.effects.written(instruction).contains(found.header.0)
            {
                return false;
            }
            asked |= tested_bits(instruction);
            submits |= adds(instruction, SUBMITTED);
            refers |= adds(instruction, ONE_REFERENCE);
            notifies |= set == NOTIFIED;
        }
        asked & LIFECYCLE == LIFECYCLE && (submits || notifies && refers)
    }
}

/// The register with the address, of `lock cmpxchg [register], register`.
fn exchanged_header(instruction: &Instruction) -> Option<Register> {
    let is_exchange = instruction.code() == Code::Cmpxchg_rm64_r64
        && instruction.has_lock_prefix()
        && instruction.op0_kind() == OpKind::Memory;
    is_exchange
        .then(|| code::based_memory(instruction, 0))
        .flatten()
        .map(Register)
}

/// Whether the instruction adds `amount`: `lea register, [register+amount]` or
/// `add register, amount`.
fn adds(instruction: &Instruction, amount: u64) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Lea => code::based_memory(instruction, amount).is_some(),
        Mnemonic::Add => immediate(instruction) == Some(amount),
        _ => false,
    }
}

/// The bits that an `or` sets.
fn set_bits(instruction: &Instruction) -> u64 {
    match instruction.mnemonic() {
        Mnemonic::Or => immediate(instruction).unwrap_or(0),
        _ => 0,
    }
}

/// The bits of the accumulator, which has the state, that the instruction looks
/// at.
fn tested_bits(instruction: &Instruction) -> u64 {
    let of_accumulator = instruction.op0_kind() == OpKind::Register
        && code::number(instruction.op0_register()) == Some(0);
    match instruction.mnemonic() {
        Mnemonic::Test if of_accumulator => immediate(instruction).unwrap_or(0),
        Mnemonic::Bt if of_accumulator => {
            let bit = immediate(instruction).and_then(|bit| u32::try_from(bit).ok());
            bit.and_then(|bit| 1u64.checked_shl(bit)).unwrap_or(0)
        }
        _ => 0,
    }
}

fn immediate(instruction: &Instruction) -> Option<u64> {
    let is_immediate = instruction.op_count() == 2
        && matches!(
            instruction.op1_kind(),
            OpKind::Immediate8
                | OpKind::Immediate32
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        );
    is_immediate.then(|| instruction.immediate(1))
}

/// Head and instructions of the loop that the exchange at `exchange` is an end
/// of; `None` if it is entered elsewhere than at its head.
fn loop_around(
    instructions: &[Instruction],
    branches: &HashMap<u64, Vec<usize>>,
    exchange: usize,
) -> Option<(usize, BTreeSet<usize>)> {
    let after = instructions.iter().enumerate().skip(exchange + 1);
    let (end, branch) = after
        .take(MAX_DISTANCE)
        .find(|(_, it)| it.flow_control() != FlowControl::Next)?;
    let head = match branch.mnemonic() {
        Mnemonic::Jne => index_of(instructions, code::near_target(branch)?)?,
        Mnemonic::Je => end + 1,
        _ => return None,
    };
    let mut body = BTreeSet::from([head]);
    let mut queue = vec![end];
    while let Some(node) = queue.pop() {
        if !body.insert(node) {
            continue;
        }
        let previous = node.checked_sub(1);
        let previous = previous.filter(|&previous| falls_through(&instructions[previous]));
        let jumps = branches.get(&instructions[node].ip());
        if jumps.is_some_and(|jumps| jumps.len() > MAX_LOOP) {
            return None;
        }
        let is_reached = previous.is_some() || jumps.is_some();
        let is_padding = !is_reached && instructions[node].mnemonic() == Mnemonic::Nop;
        // Nothing that is known leads there, or far too much.
        if (!is_reached && !is_padding) || node == 0 || body.len() > MAX_LOOP {
            return None;
        }
        queue.extend(previous.iter().chain(jumps.into_iter().flatten()));
    }
    Some((head, body))
}

/// Branches to each address.
fn branches_to(instructions: &[Instruction]) -> HashMap<u64, Vec<usize>> {
    let mut found: HashMap<u64, Vec<usize>> = HashMap::new();
    for (index, instruction) in instructions.iter().enumerate() {
        for target in code::branch_targets(std::slice::from_ref(instruction)) {
            found.entry(target).or_default().push(index);
        }
    }
    found
}

fn falls_through(instruction: &Instruction) -> bool {
    !matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
    )
}

/// The branches that leave the loop; `None` if it is left otherwise.
fn exits(instructions: &[Instruction], body: &BTreeSet<usize>) -> Option<Vec<Exit>> {
    let mut exits = Vec::new();
    for &node in body {
        let branch = instructions[node];
        let stays = |target: Option<usize>| target.is_some_and(|target| body.contains(&target));
        let target = code::near_target(&branch).map(|to| index_of(instructions, to));
        let leaves_taken = target.is_some_and(|target| !stays(target));
        let leaves_next = falls_through(&branch) && !stays(Some(node + 1));
        if !leaves_taken && !leaves_next {
            continue;
        }
        if branch.flow_control() == FlowControl::Next {
            return None;
        }
        let taken = (leaves_taken != leaves_next).then_some(leaves_taken);
        let is_jump = branch.flow_control() == FlowControl::UnconditionalBranch;
        exits.push(Exit {
            branch,
            taken: taken.filter(|_| !is_jump),
        });
    }
    (!exits.is_empty()).then_some(exits)
}

fn sites_of(image: &Image<'_>, copied: &Copied, cookie: Cookie) -> Option<Vec<Site>> {
    let mut sites = Vec::new();
    for exit in copied.exits.as_ref()? {
        let condition = code::condition(image, &exit.branch);
        if condition == Some(SIGN) && exit.taken == Some(true) {
            continue;
        }
        let branch = match exit.taken {
            None => None,
            Some(taken) => Some(Branch {
                code: condition?,
                taken,
            }),
        };
        let cookie = Cookie {
            header: copied.header,
            branch,
            ..cookie
        };
        sites.push(code::site(image, Probe::Wake, &exit.branch, cookie)?);
    }
    Some(sites)
}

/// The functions, and those that they call or jump to, directly or by another.
fn reached(image: &Image<'_>, functions: &[u64]) -> BTreeSet<u64> {
    let mut found: BTreeSet<u64> = functions.iter().copied().collect();
    let mut level = found.clone();
    for _ in 0..MAX_DEPTH {
        let called = level.iter().flat_map(|&function| called(image, function));
        level = called.filter(|function| found.insert(*function)).collect();
    }
    found
}

fn called(image: &Image<'_>, address: u64) -> Vec<u64> {
    let Some(range) = image.function_at(address) else {
        return Vec::new();
    };
    let mut instructions = Vec::new();
    code::decode(image, &range, &mut instructions);
    let targets = instructions.iter();
    let targets = targets.filter_map(|instruction| code::direct_target(image, instruction));
    targets.filter(|target| !range.contains(target)).collect()
}

fn index_of(instructions: &[Instruction], address: u64) -> Option<usize> {
    let index = instructions.binary_search_by_key(&address, Instruction::ip);
    index.ok()
}

#[cfg(test)]
mod tests;
