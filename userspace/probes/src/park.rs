//! Parks of the multi-thread scheduler's workers, and with [`current`] of the
//! current-thread one's threads.
//!
//! In: every function's instructions, once. Out: the calls of
//! `Context::park_internal` (`park_timeout` before 1.49) that really park, and
//! the instruction after each. Never: a park without its end.
//!
//! `runtime/scheduler/multi_thread/worker.rs`: the duration is an
//! `Option<Duration>`, `None` for a park and zero for `park_yield`, which only polls
//! for events. The function is told by what it expects, where the places of panics are
//! left in the file; else by its shape, and last by its symbol.

use std::collections::BTreeSet;

use dial9_bpf_abi::cookie::{Cookie, Register};

use crate::calls;
use crate::code;
use crate::elf::Image;
use crate::names;
use crate::plan::{Miss, Probe, Scheduler, Site};
use crate::uses::{self, Kind, Use};

pub(crate) use expected::Expectations;
pub(crate) use shape::ParkCalls;

use current::Current;
use expected::{Expected, Pair};
use timeout::Timeout;

mod current;
mod expected;
mod shape;
mod timeout;
mod unoptimized;

/// The worker's functions by their symbols.
const CONTEXT: &str = "tokio::runtime::scheduler::multi_thread::worker::Context::";
const PARKS: [&str; 2] = ["park_internal", "park_timeout"];
/// Uses of parks that are looked at; a program has three for its workers, and a few for
/// each future that a current-thread runtime blocks on.
const MAX_USES: usize = 1 << 14;

/// Adds the sites for parks, for each scheduler those of both probes or none.
pub(crate) fn find(
    image: &Image<'_>,
    expectations: &Expectations,
    shapes: &ParkCalls,
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    let worker = expectations.pair(image, Expected::Parker);
    let current = Current::of(image, expectations);
    let of_worker = worker.iter().flatten().flat_map(|told| &told.first);
    let of_current = current.iter().flat_map(Current::functions);
    let functions = of_worker.chain(of_current).copied().collect();
    let uses = uses::find(image, &functions, MAX_USES);

    let calls = worker.map_or_else(
        || shapes.calls(image),
        |told| told.and_then(|told| told_calls(image, &told, &uses)),
    );
    let pairs = calls.and_then(|calls| pairs(image, &calls));
    match pairs.or_else(|reason| named_pairs(image).ok_or(reason)) {
        Ok(pairs) => sites.extend(pairs.into_iter().flatten()),
        Err(reason) => add_misses(misses, &reason),
    }
    match current.and_then(|current| current.sites(image, &uses)) {
        Ok(found) => sites.extend(found),
        Err(reason) => add_misses(misses, &format!("of current-thread runtimes: {reason}")),
    }
}

/// One miss a probe: a second reason is added to the first.
fn add_misses(misses: &mut Vec<Miss>, reason: &str) {
    for probe in [Probe::Park, Probe::Unpark] {
        match misses.iter_mut().find(|miss| miss.probe == probe) {
            Some(miss) => miss.reason = format!("{}; {reason}", miss.reason),
            None => misses.push(Miss {
                probe,
                reason: reason.to_owned(),
            }),
        }
    }
}

/// The calls without a timeout of the function that takes the parker; each other use
/// must be a call with one of 0 ns.
fn told_calls(image: &Image<'_>, told: &Pair, uses: &[Use]) -> Result<Vec<u64>, String> {
    if !told.first.is_disjoint(&told.second) {
        return Err("the worker's park is a part of other functions".to_owned());
    }
    let unclear = || "the calls of the worker's park cannot be told from its yields".to_owned();
    let mut parks = Vec::new();
    let mut yields = 0;
    for found in uses.iter().filter(|found| told.first.contains(&found.of)) {
        match (
            found.kind,
            timeout::of_call(image, found.user, found.address),
        ) {
            (Kind::Call, Some(Timeout::None)) => parks.push(found.address),
            (Kind::Call | Kind::Jump, Some(Timeout::Zero)) => yields += 1,
            _ => return Err(unclear()),
        }
    }
    (yields > 0 && !parks.is_empty() && uses.len() <= MAX_USES)
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
    let cookie = Cookie {
        header: Register::RSI,
        ..Cookie::EMPTY
    };
    let park = code::site(image, Probe::Park, &instruction, cookie)?;
    let unpark = calls::site_after(image, Probe::Unpark, call)?;
    let scheduler = Some(Scheduler::MultiThread);
    Some([park, unpark].map(|site| Site { scheduler, ..site }))
}

#[cfg(test)]
mod tests;
