//! Parks of the multi-thread scheduler's workers.
//!
//! In: every function's instructions, once. Out: the calls of
//! `Context::park_internal` (`park_timeout` before 1.49) that really park, and
//! the instruction after each. Never: parks of the current-thread scheduler, which
//! `current` has.
//!
//! `runtime/scheduler/multi_thread/worker.rs`: the duration is an
//! `Option<Duration>` whose nanoseconds are 1,000,000,000 for `None` (a park)
//! and 0 for the zero timeout of `park_yield`, which only polls for events. The
//! one function that one caller (`Context::run`) calls with both is it, be
//! `park_yield` inlined or a function of its own; drivers are parked with both
//! too, but by callers that do not know each other, or by that function.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use dial9_bpf_abi::cookie::Cookie;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::calls;
use crate::code;
use crate::elf::Image;
use crate::names;
use crate::plan::{Miss, Probe, Site};

pub(crate) use current::{CURRENT_THREAD_PARK, CurrentThreadParks};

mod current;

/// The niche of `Option<Duration>`: one more than the most nanoseconds of a
/// `Duration`.
const NO_TIMEOUT: u64 = 1_000_000_000;
/// The worker's functions by their symbols.
const CONTEXT: &str = "tokio::runtime::scheduler::multi_thread::worker::Context::";
const PARKS: [&str; 2] = ["park_internal", "park_timeout"];
/// How far before a call its argument is set.
const MAX_DISTANCE: usize = 8;
/// Calls without a timeout that are looked at; a program has some dozens.
const MAX_PARKS: usize = 1 << 10;
/// Calls with a 0 there that are looked at; they are about 700 in a MiB of code.
const MAX_YIELDS: usize = 1 << 19;

#[derive(Clone, Copy, Debug)]
struct Call {
    address: u64,
    caller: u64,
    target: u64,
}

/// Collects park calls while it is shown the program's functions.
#[derive(Debug, Default)]
pub(crate) struct ParkCalls {
    /// Calls without a timeout.
    parks: Vec<Call>,
    /// (caller, function called or jumped to) with a timeout of 0 ns.
    yields: BTreeSet<(u64, u64)>,
}

impl ParkCalls {
    /// Looks at one function.
    pub(crate) fn visit(&mut self, range: &Range<u64>, instructions: &[Instruction]) {
        if self.is_too_much() {
            return;
        }
        let caller = range.start;
        for (index, call) in instructions.iter().enumerate() {
            let is_jump = call.flow_control() == FlowControl::UnconditionalBranch;
            if !is_jump && call.flow_control() != FlowControl::Call {
                continue;
            }
            let before = &instructions[index.saturating_sub(MAX_DISTANCE)..index];
            let (Some(target), Some(value)) = (code::near_target(call), third_argument(before))
            else {
                continue;
            };
            match value {
                NO_TIMEOUT if !is_jump => self.parks.push(Call {
                    address: call.ip(),
                    caller,
                    target,
                }),
                0 => _ = self.yields.insert((caller, target)),
                _ => {}
            }
        }
    }

    fn is_too_much(&self) -> bool {
        self.parks.len() > MAX_PARKS || self.yields.len() > MAX_YIELDS
    }

    /// Adds the sites for parks, both of each pair or neither.
    pub(crate) fn finish(self, image: &Image<'_>, sites: &mut Vec<Site>, misses: &mut Vec<Miss>) {
        match pairs(image, &self).or_else(|reason| named_pairs(image).ok_or(reason)) {
            Ok(pairs) => sites.extend(pairs.into_iter().flatten()),
            Err(reason) => {
                for probe in [Probe::Park, Probe::Unpark] {
                    misses.push(Miss {
                        probe,
                        reason: reason.clone(),
                    });
                }
            }
        }
    }
}

fn pairs(image: &Image<'_>, found: &ParkCalls) -> Result<Vec<[Site; 2]>, String> {
    if found.is_too_much() {
        return Err("too many calls look like parks".to_owned());
    }
    let ParkCalls { parks, yields } = found;
    let parked: BTreeSet<_> = parks.iter().map(|call| call.target).collect();
    let mut yielded = HashMap::new();
    let mut yields_too = |call: &&Call| {
        let targets = yielded
            .entry(call.caller)
            .or_insert_with(|| &yields_of(image, yields, call.caller) & &parked);
        targets.contains(&call.target)
    };
    let mut calls: Vec<_> = parks.iter().filter(|call| yields_too(call)).collect();
    let outer: BTreeSet<_> = calls.iter().map(|call| call.target).collect();
    calls.retain(|call| !outer.contains(&call.caller));
    let targets: BTreeSet<_> = calls.iter().map(|call| call.target).collect();
    if targets.len() != 1 {
        let found = targets.len();
        return Err(format!(
            "{found} functions look like the multi-thread worker's park, not 1"
        ));
    }
    let pairs: Vec<_> = calls
        .iter()
        .filter_map(|call| pair(image, call.address))
        .collect();
    if pairs.len() < calls.len() {
        return Err(format!(
            "{} of {} park calls have a usable end",
            pairs.len(),
            calls.len()
        ));
    }
    Ok(pairs)
}

/// The parks by symbols: without optimization arguments pass through memory.
fn named_pairs(image: &Image<'_>) -> Option<Vec<[Site; 2]>> {
    let named = |function: &str| {
        let is_it = |name: &str| name.strip_prefix(CONTEXT) == Some(function);
        names::functions(image, "park", is_it).unwrap_or_default()
    };
    let parks: BTreeSet<_> = PARKS.iter().flat_map(|name| named(name)).collect();
    let mut instructions = Vec::new();
    let mut pairs = Vec::new();
    for caller in named("park") {
        code::decode(image, &image.function_at(caller)?, &mut instructions);
        for call in &instructions {
            let target = code::direct_target(image, call);
            if target.is_some_and(|target| parks.contains(&target)) {
                pairs.push(pair(image, call.ip())?);
            }
        }
    }
    (!pairs.is_empty()).then_some(pairs)
}

/// Functions that the function at `address`, or one that it calls directly, calls
/// with a timeout of 0 ns.
fn yields_of(image: &Image<'_>, yields: &BTreeSet<(u64, u64)>, address: u64) -> BTreeSet<u64> {
    let mut callers = BTreeSet::from([address]);
    if let Some(range) = image.function_at(address) {
        let mut instructions = Vec::new();
        code::decode(image, &range, &mut instructions);
        let targets = instructions
            .iter()
            .filter_map(|instruction| code::direct_target(image, instruction));
        callers.extend(targets);
    }
    let of = |caller| yields.range((caller, 0)..=(caller, u64::MAX));
    let yields = callers.into_iter().flat_map(of);
    yields.map(|&(_, target)| target).collect()
}

fn pair(image: &Image<'_>, call: u64) -> Option<[Site; 2]> {
    let instruction = code::instruction_at(image, call)?;
    let park = code::site(image, Probe::Park, &instruction, Cookie::EMPTY)?;
    Some([park, calls::site_after(image, Probe::Unpark, call)?])
}

/// The constant that the last of these instructions to touch `edx` puts there.
fn third_argument(before: &[Instruction]) -> Option<u64> {
    let is_plain = |instruction: &&Instruction| instruction.flow_control() == FlowControl::Next;
    let sets = |instruction: &&Instruction| {
        instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().full_register() == Register::RDX
    };
    let set = before.iter().rev().take_while(is_plain).find(sets)?;
    match (set.mnemonic(), set.op1_kind()) {
        (Mnemonic::Mov, OpKind::Immediate32) if set.op0_register() == Register::EDX => {
            Some(u64::from(set.immediate32()))
        }
        (Mnemonic::Xor, OpKind::Register) if set.op1_register() == set.op0_register() => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
