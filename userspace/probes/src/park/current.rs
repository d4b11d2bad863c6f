//! Parks of the current-thread scheduler's threads.
//!
//! In: the symbol table, then every function's instructions, once. Out: the entry of
//! `current_thread::Context::park`, and the instruction after each call of it. Never: a
//! stripped file; one of the two without the other.
//!
//! `runtime/scheduler/current_thread/mod.rs`: `block_on` calls it when it has nothing
//! to do, once for each time that Tokio calls its own hooks. It has one copy, and
//! callers for each type of future that is blocked on. Others may come to where a call
//! ends, such as after `park_yield`: an unpark without a park is no event.

use std::collections::BTreeSet;

use dial9_bpf_abi::cookie::Cookie;
use iced_x86::{FlowControl, Instruction};

use crate::calls;
use crate::code;
use crate::elf::Image;
use crate::names;
use crate::plan::{Miss, Probe, Site};

/// A part of the symbol, legacy or v0.
const PART: &str = "7Context4park";
/// The function, with its type as legacy symbols spell it.
pub(crate) const CURRENT_THREAD_PARK: &str =
    "tokio::runtime::scheduler::current_thread::Context::park";
/// Calls that are looked at; a program has a few for each future blocked on.
const MAX_CALLS: usize = 1 << 14;

/// Collects the calls while it is shown the program's functions.
#[derive(Debug)]
pub(crate) struct CurrentThreadParks {
    /// The copies of the function.
    functions: BTreeSet<u64>,
    calls: Vec<u64>,
    /// Whether a function ends with a jump to it.
    has_tail_call: bool,
}

impl CurrentThreadParks {
    /// Looks for the function.
    pub(crate) fn of(image: &Image<'_>) -> Self {
        Self {
            functions: names::functions(image, PART, is_park).unwrap_or_default(),
            calls: Vec::new(),
            has_tail_call: false,
        }
    }

    /// Looks at one function.
    pub(crate) fn visit(&mut self, image: &Image<'_>, instructions: &[Instruction]) {
        if self.functions.is_empty() || self.calls.len() > MAX_CALLS {
            return;
        }
        for instruction in instructions {
            let is_jump = match instruction.flow_control() {
                FlowControl::Call | FlowControl::IndirectCall => false,
                FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => true,
                _ => continue,
            };
            let target = code::direct_target(image, instruction);
            if !target.is_some_and(|target| self.functions.contains(&target)) {
                continue;
            }
            if is_jump {
                self.has_tail_call = true;
            } else {
                self.calls.push(instruction.ip());
            }
        }
    }

    /// Adds the sites for parks, all of them or none.
    pub(crate) fn finish(self, image: &Image<'_>, sites: &mut Vec<Site>, misses: &mut Vec<Miss>) {
        match self.sites(image) {
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

    fn sites(&self, image: &Image<'_>) -> Result<Vec<Site>, &'static str> {
        if self.functions.is_empty() {
            return Err("no symbol current_thread::Context::park");
        }
        if self.has_tail_call || self.calls.is_empty() || self.calls.len() > MAX_CALLS {
            return Err("the calls of current_thread::Context::park cannot be told");
        }
        let begins = self.functions.iter().map(|&park| {
            let first = code::instruction_at(image, park)?;
            code::site(image, Probe::Park, &first, Cookie::EMPTY)
        });
        let ends = self
            .calls
            .iter()
            .map(|&call| calls::site_behind(image, Probe::Unpark, call));
        let sites: Option<Vec<Site>> = begins.chain(ends).collect();
        sites.ok_or("a call of current_thread::Context::park has no usable end")
    }
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
    name.replace(['<', '>'], "") == CURRENT_THREAD_PARK
}
