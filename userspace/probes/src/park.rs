//! Parks of the multi-thread scheduler's workers.
//!
//! In: every function's instructions, once. Out: the calls of
//! `Context::park_internal` (`park_timeout` before 1.49) that really park, and
//! the instruction after each. Never: parks of the current-thread scheduler, which
//! `current` has.
//!
//! `runtime/scheduler/multi_thread/worker.rs`: the duration is an
//! `Option<Duration>`, `None` for a park and zero for `park_yield`, which only polls
//! for events. The function is told by what it expects, where the places of panics are
//! left in the file; else by its shape, and last by its symbol.

use std::collections::BTreeSet;

use dial9_bpf_abi::cookie::Cookie;

use crate::calls;
use crate::code;
use crate::elf::Image;
use crate::names;
use crate::plan::{Miss, Probe, Scheduler, Site};
use crate::uses::{self, Kind};

pub(crate) use current::find as find_current_thread;
pub(crate) use expected::Expectations;
pub(crate) use shape::ParkCalls;

use expected::{Expected, Pair};
use timeout::Timeout;

mod current;
mod expected;
mod shape;
mod timeout;

/// The worker's functions by their symbols.
const CONTEXT: &str = "tokio::runtime::scheduler::multi_thread::worker::Context::";
const PARKS: [&str; 2] = ["park_internal", "park_timeout"];
/// Uses of the park that are looked at; a program has three.
const MAX_USES: usize = 64;

/// Adds the sites for parks, both of each pair or neither.
pub(crate) fn find(
    image: &Image<'_>,
    expectations: &Expectations,
    shapes: &ParkCalls,
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    let told = expectations.pair(image, Expected::Parker);
    let calls = told.map_or_else(
        || shapes.calls(image),
        |told| told.and_then(|told| told_calls(image, &told)),
    );
    let pairs = calls.and_then(|calls| pairs(image, &calls));
    match pairs.or_else(|reason| named_pairs(image).ok_or(reason)) {
        Ok(pairs) => sites.extend(pairs.into_iter().flatten()),
        Err(reason) => misses.extend([Probe::Park, Probe::Unpark].map(|probe| Miss {
            probe,
            reason: reason.clone(),
        })),
    }
}

/// The calls without a timeout of the function that takes the parker; each other must
/// have one of 0 ns.
fn told_calls(image: &Image<'_>, told: &Pair) -> Result<Vec<u64>, String> {
    if !told.first.is_disjoint(&told.second) {
        return Err("the worker's park is a part of other functions".to_owned());
    }
    let unclear = || "the calls of the worker's park cannot be told from its yields".to_owned();
    let uses = uses::find(image, &told.first, MAX_USES);
    let mut parks = Vec::new();
    for found in &uses {
        match (
            found.kind,
            timeout::of_call(image, found.user, found.address),
        ) {
            (Kind::Call, Some(Timeout::None)) => parks.push(found.address),
            (Kind::Call | Kind::Jump, Some(Timeout::Zero)) => {}
            _ => return Err(unclear()),
        }
    }
    let has_both = !parks.is_empty() && parks.len() < uses.len();
    (has_both && uses.len() <= MAX_USES)
        .then_some(parks)
        .ok_or_else(unclear)
}

fn pairs(image: &Image<'_>, calls: &[u64]) -> Result<Vec<[Site; 2]>, String> {
    let pairs: Vec<_> = calls.iter().filter_map(|&call| pair(image, call)).collect();
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

fn pair(image: &Image<'_>, call: u64) -> Option<[Site; 2]> {
    let instruction = code::instruction_at(image, call)?;
    let park = code::site(image, Probe::Park, &instruction, Cookie::EMPTY)?;
    let unpark = calls::site_after(image, Probe::Unpark, call)?;
    let scheduler = Some(Scheduler::MultiThread);
    Some([park, unpark].map(|site| Site { scheduler, ..site }))
}

#[cfg(test)]
mod tests;
