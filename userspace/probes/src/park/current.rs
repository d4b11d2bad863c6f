//! Parks of the current-thread scheduler's threads.
//!
//! In: the symbol table, what functions expect. Out: the entry of
//! `current_thread::Context::park`, and the instruction after each call of it. Never: one
//! of the two without the other; some of the runtimes' parks only.
//!
//! `runtime/scheduler/current_thread/mod.rs`: `block_on` calls it when it has nothing
//! to do, once for each time that Tokio calls its own hooks. It has one copy, and
//! callers for each type of future that is blocked on. Others may come to where a call
//! ends, such as after `park_yield`: an unpark without a park is no event.
//!
//! Without symbols it is the function that takes the driver, and neither yields nor
//! calls what does; each of its callers yields too.

use std::collections::BTreeSet;

use dial9_bpf_abi::cookie::Cookie;

use super::expected::{Expectations, Expected, Pair};
use crate::calls;
use crate::code;
use crate::elf::Image;
use crate::names;
use crate::plan::{Miss, Probe, Scheduler, Site};
use crate::uses::{self, Kind};

/// A part of the symbol, legacy or v0.
const PART: &str = "7Context4park";
/// The function, with its type as legacy symbols spell it.
const PARK: &str = "tokio::runtime::scheduler::current_thread::Context::park";
/// Why there may be none.
const NOTHING: &str = "no symbol current_thread::Context::park, and no function expects a driver";
/// Uses that are looked at; a program has a few for each future blocked on.
const MAX_USES: usize = 1 << 14;

/// Adds the sites for parks, all of them or none.
pub(crate) fn find(
    image: &Image<'_>,
    expectations: &Expectations,
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    match all_sites(image, expectations) {
        Ok(found) => sites.extend(found),
        Err(reason) => {
            for probe in [Probe::Park, Probe::Unpark] {
                add(
                    misses,
                    probe,
                    &format!("of current-thread runtimes: {reason}"),
                );
            }
        }
    }
}

fn all_sites(image: &Image<'_>, expectations: &Expectations) -> Result<Vec<Site>, String> {
    let named = names::functions(image, PART, is_park).unwrap_or_default();
    let functions = if named.is_empty() {
        let told = expectations.pair(image, Expected::Driver);
        let told = told.ok_or(NOTHING)?;
        let told = told?;
        check(image, &told)?;
        told.first
    } else {
        named
    };
    let calls = uses::find(image, &functions, MAX_USES);
    let is_other = calls.iter().any(|found| found.kind != Kind::Call);
    if is_other || calls.is_empty() || calls.len() > MAX_USES {
        return Err("the calls of current_thread::Context::park cannot be told".to_owned());
    }
    let begins = functions.iter().map(|&park| {
        let first = code::instruction_at(image, park)?;
        code::site(image, Probe::Park, &first, Cookie::EMPTY)
    });
    let ends = calls
        .iter()
        .map(|call| calls::site_behind(image, Probe::Unpark, call.address));
    let scheduler = Some(Scheduler::CurrentThread);
    let sites = begins
        .chain(ends)
        .map(|site| Some(Site { scheduler, ..site? }));
    let sites: Option<Vec<Site>> = sites.collect();
    sites.ok_or_else(|| "a call of current_thread::Context::park has no usable end".to_owned())
}

/// Whether the park is a function of its own, and its users are those that yield.
fn check(image: &Image<'_>, told: &Pair) -> Result<(), String> {
    let users = |functions| -> BTreeSet<u64> {
        let uses = uses::find(image, functions, MAX_USES);
        uses.iter().map(|found| found.user).collect()
    };
    let yielders = &users(&told.second) | &told.second;
    if !told.first.is_disjoint(&yielders) {
        return Err("current_thread::Context::park is a part of other functions".to_owned());
    }
    if !users(&told.first).is_subset(&yielders) {
        return Err("what looks like current_thread::Context::park has other callers".to_owned());
    }
    Ok(())
}

/// One miss a probe: a second reason is added to the first.
fn add(misses: &mut Vec<Miss>, probe: Probe, reason: &str) {
    match misses.iter_mut().find(|miss| miss.probe == probe) {
        Some(miss) => miss.reason = format!("{}; {reason}", miss.reason),
        None => misses.push(Miss {
            probe,
            reason: reason.to_owned(),
        }),
    }
}

/// Legacy symbols spell the path, v0 symbols put the type in angle brackets.
fn is_park(name: &str) -> bool {
    name.replace(['<', '>'], "") == PARK
}

#[cfg(test)]
mod tests;
