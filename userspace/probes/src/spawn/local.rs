//! Spawns on a `LocalSet`: where a new task is first scheduled.
//!
//! In: the symbol table, then every function's instructions, once. Out: a site for each
//! call of `Shared::schedule` by code that has just made a task. Never: a stripped
//! file; the calls that schedule a task again, by its waker or at its poll's end.
//!
//! `task/local.rs`: `Context::spawn` binds the task by `LocalOwnedTasks::bind`, which
//! is generic and inlined, and hands it to `Shared::schedule(&self, Notified)`, which
//! is neither (Tokio 1.20 to 1.54); `Notified` is a pointer to the header, so it is in
//! `rsi`. Who makes a task names its vtable, who schedules it again does not.

use std::collections::BTreeSet;
use std::ops::Range;

use dial9_bpf_abi::cookie::{Cookie, Register};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind};

use crate::code::{self, Effects};
use crate::elf::Image;
use crate::names;
use crate::plan::{Probe, Site};

/// Parts of the symbols, legacy or v0.
const PARTS: [&str; 4] = ["Shared8schedule", "Context5spawn", "4bind", "4task5local"];
const SCHEDULE: &str = "tokio::task::local::Shared::schedule";
const BIND: &str = "tokio::runtime::task::list::LocalOwnedTasks<";
const SPAWN: &str = "tokio::task::local::Context::spawn";
/// `rsi`, the second argument.
const RSI: Register = Register(6);
/// How far before the call its site is looked for.
const MAX_DISTANCE: usize = 24;
/// Functions that spawn; a program has one for each type of local task.
const MAX_CALLS: usize = 1 << 14;

/// Collects the calls while it is shown the program's functions.
#[derive(Debug)]
pub(crate) struct LocalSpawns {
    /// The copies of `Shared::schedule`.
    schedule: BTreeSet<u64>,
    /// The copies of `Context::spawn` that no call was found in.
    unseen: BTreeSet<u64>,
    /// The copies of `LocalOwnedTasks::bind` that are not inlined.
    binds: BTreeSet<u64>,
    /// The copies of what binds the tasks of runtimes.
    others: BTreeSet<u64>,
    /// Addresses of the vtables of tasks, sorted.
    vtables: Vec<u64>,
    calls: Vec<Spawning>,
    /// Functions in which a spawn cannot be told from another call.
    ambiguous: usize,
    /// Whether the program has a `LocalSet`, by its symbols.
    is_used: bool,
}

/// A call that schedules a new task.
#[derive(Clone, Copy, Debug)]
struct Spawning {
    /// Where its hit is taken, the call itself or before it.
    place: Instruction,
    /// Holds the header there.
    header: Register,
}

impl LocalSpawns {
    /// Looks for the functions.
    pub(crate) fn of(image: &Image<'_>, vtables: Vec<u64>) -> Self {
        let named = |part: &str, wanted: &str| {
            names::functions(image, part, |name| is_path(name, wanted)).unwrap_or_default()
        };
        let is_used = names::functions(image, PARTS[3], |_| true);
        Self {
            schedule: named(PARTS[0], SCHEDULE),
            unseen: named(PARTS[1], SPAWN),
            binds: names::functions(image, PARTS[2], is_bind).unwrap_or_default(),
            others: names::functions(image, super::FUNCTION, super::is_bind).unwrap_or_default(),
            vtables,
            calls: Vec::new(),
            ambiguous: 0,
            is_used: is_used.is_none_or(|functions| !functions.is_empty()),
        }
    }

    /// Looks at one function.
    pub(crate) fn visit(
        &mut self,
        image: &Image<'_>,
        range: &Range<u64>,
        instructions: &[Instruction],
    ) {
        if self.schedule.is_empty() || self.calls.len() > MAX_CALLS {
            return;
        }
        let calls: Vec<usize> = (0..instructions.len())
            .filter(|&index| is_call_of(image, &instructions[index], &self.schedule))
            .collect();
        if calls.is_empty() {
            return;
        }
        let is_spawn = self.unseen.remove(&range.start);
        let made = self.made(image, instructions);
        if !is_spawn && made == 0 {
            return;
        }
        if calls.len() > made.max(1) {
            self.ambiguous += 1;
            return;
        }
        let mut effects = Effects::new();
        self.calls.extend(
            calls
                .into_iter()
                .map(|call| spawning(&mut effects, instructions, call)),
        );
    }

    /// How many tasks these instructions make, at most; those of a runtime are none that
    /// `Shared::schedule` gets.
    fn made(&self, image: &Image<'_>, instructions: &[Instruction]) -> usize {
        let named = instructions
            .iter()
            .filter_map(|instruction| named_address(image, instruction))
            .filter(|address| self.vtables.binary_search(address).is_ok());
        let calls = |functions: &BTreeSet<u64>| {
            let calls = instructions.iter();
            calls
                .filter(|call| is_call_of(image, call, functions))
                .count()
        };
        let named = named.collect::<BTreeSet<_>>().len();
        named.saturating_sub(calls(&self.others)) + calls(&self.binds)
    }

    /// The sites, and what of it is absent.
    pub(crate) fn sites(&self, image: &Image<'_>, id_offset: u16) -> (Vec<Site>, Option<String>) {
        let site = |spawning: &Spawning| {
            let cookie = Cookie {
                id_offset,
                header: spawning.header,
                shared: true,
                ..Cookie::EMPTY
            };
            code::site(image, Probe::Spawn, &spawning.place, cookie)
        };
        let found: Vec<Site> = self.calls.iter().filter_map(site).collect();
        let reason = self.reason(found.len());
        (found, reason)
    }

    fn reason(&self, usable: usize) -> Option<String> {
        let absent = self.calls.len() - usable + self.unseen.len() + self.ambiguous;
        let what = if !self.is_used {
            return None;
        } else if self.schedule.is_empty() {
            "no symbol Shared::schedule".to_owned()
        } else if self.calls.len() > MAX_CALLS {
            "too many calls of Shared::schedule".to_owned()
        } else if absent > 0 {
            format!("{absent} functions that spawn have no usable call of Shared::schedule")
        } else {
            return None;
        };
        Some(format!("of LocalSets: {what}"))
    }
}

/// Legacy symbols spell the path, v0 symbols put the type in angle brackets and add
/// the arguments.
fn is_path(name: &str, wanted: &str) -> bool {
    let plain = name.replace(['<', '>'], "");
    plain
        .strip_prefix(wanted)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        && !name.ends_with('}')
}

/// An address that the instruction puts into a register, from the code or the
/// pointer table.
fn named_address(image: &Image<'_>, instruction: &Instruction) -> Option<u64> {
    let is_load = instruction.mnemonic() == Mnemonic::Mov;
    if instruction.is_ip_rel_memory_operand() {
        let address = instruction.ip_rel_memory_address();
        return match instruction.mnemonic() {
            Mnemonic::Lea => Some(address),
            _ if is_load => image.pointer(address),
            _ => None,
        };
    }
    let immediates = [
        OpKind::Immediate32,
        OpKind::Immediate32to64,
        OpKind::Immediate64,
    ];
    let is_constant = is_load && immediates.contains(&instruction.op1_kind());
    is_constant.then(|| instruction.immediate(1))
}

/// Where the hit of the call with the index `call` is taken: the nearest emulated
/// instruction before it from which every way leads to the call, and from which alone
/// one does; else the call itself.
fn spawning(effects: &mut Effects, instructions: &[Instruction], call: usize) -> Spawning {
    let mut register = RSI;
    for at in (call.saturating_sub(MAX_DISTANCE)..call).rev() {
        let instruction = &instructions[at];
        match code::register_copy(instruction) {
            Some((to, from)) if to == register.0 => register = Register(from),
            _ if effects.written(instruction).contains(register.0) => break,
            _ => {}
        }
        if is_call(instruction) {
            break;
        }
        let is_branch = instruction.flow_control() == FlowControl::ConditionalBranch;
        if is_branch && is_one_way(instructions, at, call) {
            return Spawning {
                place: *instruction,
                header: register,
            };
        }
    }
    Spawning {
        place: instructions[call],
        header: RSI,
    }
}

/// Whether all that runs from `first` comes to `last`, once, and nothing else does.
fn is_one_way(instructions: &[Instruction], first: usize, last: usize) -> bool {
    let inside = instructions[first].next_ip()..=instructions[last].ip();
    let stays = |instruction: &Instruction| match instruction.flow_control() {
        FlowControl::Next => true,
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            code::near_target(instruction)
                .is_some_and(|target| target > instruction.ip() && inside.contains(&target))
        }
        _ => false,
    };
    let comes_in = |(index, instruction): (usize, &Instruction)| {
        instruction.flow_control() == FlowControl::IndirectBranch
            || !(first..last).contains(&index)
                && code::branch_targets(std::slice::from_ref(instruction))
                    .any(|target| inside.contains(&target))
    };
    instructions[first..last].iter().all(stays) && !instructions.iter().enumerate().any(comes_in)
}

fn is_call_of(image: &Image<'_>, instruction: &Instruction, functions: &BTreeSet<u64>) -> bool {
    is_call(instruction)
        && code::direct_target(image, instruction).is_some_and(|target| functions.contains(&target))
}

/// Legacy symbols spell the path, v0 symbols put it in angle brackets and add the
/// arguments.
fn is_bind(name: &str) -> bool {
    let rest = name.trim_start_matches('<').strip_prefix(BIND);
    rest.is_some_and(|rest| rest.ends_with("::bind") || rest.contains(">>::bind::<"))
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

#[cfg(test)]
mod tests;
