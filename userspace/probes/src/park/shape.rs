//! The multi-thread worker's park by its shape.
//!
//! In: every function's instructions, once. Out: the calls that really park. Never: a
//! look at names; an answer where several functions look like it.
//!
//! The one function that one caller (`Context::run`) calls with both timeouts is it,
//! be `park_yield` inlined or a function of its own; drivers are parked with both
//! too, but by callers that do not know each other, or by that function. For files in
//! which the places of panics are not left.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use iced_x86::{FlowControl, Instruction};

use super::timeout::{self, Timeout};
use crate::code;
use crate::elf::Image;

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
            let Some(target) = code::near_target(call) else {
                continue;
            };
            match timeout::in_register(&instructions[..index]) {
                Some(Timeout::None) if !is_jump => self.parks.push(Call {
                    address: call.ip(),
                    caller,
                    target,
                }),
                Some(Timeout::Zero) => _ = self.yields.insert((caller, target)),
                _ => {}
            }
        }
    }

    fn is_too_much(&self) -> bool {
        self.parks.len() > MAX_PARKS || self.yields.len() > MAX_YIELDS
    }

    /// Addresses of the calls.
    ///
    /// # Errors
    ///
    /// No function looks like the park, or several do.
    pub(super) fn calls(&self, image: &Image<'_>) -> Result<Vec<u64>, String> {
        if self.is_too_much() {
            return Err("too many calls look like parks".to_owned());
        }
        let calls = both(image, &self.parks, &self.yields);
        let targets: BTreeSet<_> = calls.iter().map(|call| call.target).collect();
        if targets.len() != 1 {
            let found = targets.len();
            return Err(format!(
                "{found} functions look like the multi-thread worker's park, not 1"
            ));
        }
        Ok(calls.iter().map(|call| call.address).collect())
    }
}

/// The calls whose caller yields to the same function, less those by such a function.
fn both<'calls>(
    image: &Image<'_>,
    parks: &'calls [Call],
    yields: &BTreeSet<(u64, u64)>,
) -> Vec<&'calls Call> {
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
    calls
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
