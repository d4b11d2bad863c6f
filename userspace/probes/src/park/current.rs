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
use iced_x86::Mnemonic;

use super::MAX_USES;
use super::expected::{Expectations, Expected};
use super::timeout::NO_TIMEOUT;
use crate::calls;
use crate::code;
use crate::elf::Image;
use crate::names;
use crate::plan::{Probe, Scheduler, Site};
use crate::uses::{Kind, Use};

/// A part of the symbol, legacy or v0.
const PART: &str = "7Context4park";
/// The function, with its type as legacy symbols spell it.
const PARK: &str = "tokio::runtime::scheduler::current_thread::Context::park";
/// Why there may be none.
const NOTHING: &str = "no symbol current_thread::Context::park, and no function expects a driver";

/// The functions, before it is known how they are used.
#[derive(Debug)]
pub(super) struct Current {
    /// The copies of the park.
    parks: BTreeSet<u64>,
    /// Those that yield; `None` where a symbol tells the park.
    yields: Option<BTreeSet<u64>>,
}

impl Current {
    /// Looks for them.
    ///
    /// # Errors
    ///
    /// Why there are none.
    pub(super) fn of(image: &Image<'_>, expectations: &Expectations) -> Result<Self, String> {
        let parks = names::functions(image, PART, is_park).unwrap_or_default();
        if !parks.is_empty() {
            let yields = None;
            return Ok(Self { parks, yields });
        }
        let told = expectations.pair(image, Expected::Driver);
        let told = told.ok_or(NOTHING)??;
        let waits = |functions: &BTreeSet<u64>| {
            functions
                .iter()
                .any(|&function| has_no_timeout(image, function))
        };
        if waits(&told.second) && !waits(&told.first) {
            return Err(
                "the second function that takes the driver waits, not the first".to_owned(),
            );
        }
        Ok(Self {
            parks: told.first,
            yields: Some(told.second),
        })
    }

    /// All whose uses are to be known.
    pub(super) fn functions(&self) -> impl Iterator<Item = &u64> {
        self.parks.iter().chain(self.yields.iter().flatten())
    }

    /// The sites, all or none of them.
    ///
    /// # Errors
    ///
    /// What is not understood.
    pub(super) fn sites(&self, image: &Image<'_>, uses: &[Use]) -> Result<Vec<Site>, String> {
        let calls: Vec<&Use> = uses
            .iter()
            .filter(|found| self.parks.contains(&found.of))
            .collect();
        if let Some(yields) = &self.yields {
            self.check(yields, &calls, uses)?;
        }
        let is_other = calls.iter().any(|found| found.kind != Kind::Call);
        if is_other || calls.is_empty() || uses.len() > MAX_USES {
            return Err("the calls of current_thread::Context::park cannot be told".to_owned());
        }
        let begins = self.parks.iter().map(|&park| {
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
    fn check(
        &self,
        yields: &BTreeSet<u64>,
        calls: &[&Use],
        uses: &[Use],
    ) -> Result<(), &'static str> {
        let users = uses.iter().filter(|found| yields.contains(&found.of));
        let yielders: BTreeSet<u64> = users
            .map(|found| found.user)
            .chain(yields.iter().copied())
            .collect();
        if !self.parks.is_disjoint(&yielders) {
            return Err("current_thread::Context::park is a part of other functions");
        }
        if !calls.iter().all(|call| yielders.contains(&call.user)) {
            return Err("what looks like current_thread::Context::park has other callers");
        }
        Ok(())
    }
}

/// Whether the function asks for a wait without a timeout itself.
fn has_no_timeout(image: &Image<'_>, function: u64) -> bool {
    let mut instructions = Vec::new();
    if let Some(range) = image.function_at(function) {
        code::decode(image, &range, &mut instructions);
    }
    instructions.iter().any(|instruction| {
        instruction.mnemonic() == Mnemonic::Mov
            && u64::from(instruction.immediate32()) == NO_TIMEOUT
    })
}

/// Legacy symbols spell the path, v0 symbols put the type in angle brackets.
fn is_park(name: &str) -> bool {
    name.replace(['<', '>'], "") == PARK
}

#[cfg(test)]
mod tests;
