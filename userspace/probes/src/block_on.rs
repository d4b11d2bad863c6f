//! Threads that block on a future: `Runtime::block_on`, `Handle::block_on` and what
//! calls them.
//!
//! In: the symbol table, then every function's instructions, once. Out: a site where a
//! thread has entered a runtime and sites where it leaves it, in each function that
//! does both. Never: a stripped file; a worker's own entry into its runtime; a function
//! in which some way out of the runtime is not seen, as with computed jumps.
//!
//! Every `block_on` passes `enter_runtime` (`runtime/context/runtime.rs`, Tokio 1.36 to
//! 1.54), which takes a seed (`RngSeedGenerator::next_seed`), sets the handle
//! (`Context::set_current`) and drops an `EnterRuntimeGuard` at its end, also when it
//! unwinds. It is generic, and inlined or not; those three are neither, so that their
//! calls tell its copies. Begin and end are at one stack pointer, that of the copy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use dial9_bpf_abi::cookie::Cookie;
use iced_x86::{FlowControl, Instruction};

use crate::calls;
use crate::code;
use crate::elf::Image;
use crate::graph::{self, Graph, Target};
use crate::names;
use crate::plan::{Miss, Probe, Site};

const GUARD: &str = "EnterRuntimeGuard";
const GLUE: &str = "core::ptr::drop_in_place";
const SEED: &str = "RngSeedGenerator::next_seed";
const SET: &str = "runtime::context::Context::set_current";
/// What only a worker's entry into its runtime comes to.
const WORKERS: [&str; 3] = [
    "tokio::runtime::scheduler::multi_thread::worker::Context::run",
    "tokio::runtime::scheduler::multi_thread::worker::Context::run_task",
    "tokio::runtime::scheduler::multi_thread::worker::run",
];
/// Names of functions between the two.
const BETWEEN: [&str; 3] = [
    "tokio::runtime::",
    "std::thread::local::",
    "core::ops::function::",
];
/// Functions between the two that are looked at.
const MAX_BETWEEN: usize = 256;
/// Calls between the seed and the handle: of what makes a thread's own seed.
const MAX_CALLS_BETWEEN: usize = 4;
/// Functions that block; a program has a few for each future blocked on.
const MAX_FUNCTIONS: usize = 1 << 12;

/// A function that calls one of the three.
#[derive(Clone, Debug)]
struct Caller {
    range: Range<u64>,
    drops: usize,
    sets: usize,
}

/// Collects the callers while it is shown the program's functions.
#[derive(Debug)]
pub(crate) struct BlockOns {
    glue: BTreeSet<u64>,
    seeds: BTreeSet<u64>,
    sets: BTreeSet<u64>,
    workers: BTreeSet<u64>,
    callers: Vec<Caller>,
}

impl BlockOns {
    /// Looks for the functions.
    pub(crate) fn of(image: &Image<'_>) -> Self {
        let named = |part: &str, is_it: &dyn Fn(&str) -> bool| {
            names::functions(image, part, is_it).unwrap_or_default()
        };
        let plain = |name: &str| name.replace(['<', '>'], "");
        Self {
            glue: named(GUARD, &is_glue),
            seeds: named("next_seed", &|name| plain(name).ends_with(SEED)),
            sets: named("set_current", &|name| is_set(name)),
            workers: named("6worker", &|name| {
                let name = plain(name);
                WORKERS.iter().any(|worker| name == *worker)
            }),
            callers: Vec::new(),
        }
    }

    /// Looks at one function.
    pub(crate) fn visit(
        &mut self,
        image: &Image<'_>,
        range: &Range<u64>,
        instructions: &[Instruction],
    ) {
        if self.glue.is_empty() || self.callers.len() > MAX_FUNCTIONS {
            return;
        }
        let calls = |of: &BTreeSet<u64>| {
            let calls = instructions.iter().filter(|it| is_call_of(image, it, of));
            calls.count()
        };
        let (drops, sets) = (calls(&self.glue), calls(&self.sets));
        if drops + sets > 0 && !self.glue.contains(&range.start) {
            self.callers.push(Caller {
                range: range.clone(),
                drops,
                sets,
            });
        }
    }

    /// Adds the sites, of each function all or none.
    pub(crate) fn finish(self, image: &Image<'_>, sites: &mut Vec<Site>, misses: &mut Vec<Miss>) {
        let reason = match self.sites(image) {
            Ok((found, reason)) => {
                sites.extend(found);
                reason
            }
            Err(reason) => Some(reason.to_owned()),
        };
        if let Some(reason) = reason {
            for probe in [Probe::BlockOn, Probe::BlockOnEnd] {
                misses.push(Miss {
                    probe,
                    reason: reason.clone(),
                });
            }
        }
    }

    fn sites(&self, image: &Image<'_>) -> Result<(Vec<Site>, Option<String>), &'static str> {
        if image.symbols().is_empty() {
            return Err("no symbol table");
        }
        if [&self.glue, &self.seeds, &self.sets].map(BTreeSet::is_empty) != [false; 3] {
            return Err("no symbol of what block_on calls");
        }
        if self.callers.len() > MAX_FUNCTIONS {
            return Err("too many functions look like block_on");
        }
        let entering = self.entering(image);
        let blocking: Vec<_> = self
            .callers
            .iter()
            .filter(|caller| caller.drops > 0)
            .collect();
        let is_workers = |caller: &&&Caller| self.comes_to_worker(image, caller.range.start);
        let workers: BTreeSet<u64> = blocking
            .iter()
            .filter(is_workers)
            .map(|caller| caller.range.start)
            .collect();
        if workers.is_empty() && !self.workers.is_empty() {
            return Err("a worker's own entry into its runtime cannot be told");
        }
        let mut found = Vec::new();
        let (mut absent, mut all) = (0, 0);
        for caller in blocking {
            if workers.contains(&caller.range.start) {
                continue;
            }
            all += 1;
            match self.pair(image, &caller.range, &entering) {
                Some(pair) => found.extend(pair),
                None => absent += 1,
            }
        }
        let reason = format!("{absent} of {all} functions that block have no usable begin and end");
        Ok((found, (absent > 0).then_some(reason)))
    }

    /// Functions that enter a runtime and leave the drop of the guard to their caller:
    /// the closure in `enter_runtime`, where that is a function of its own.
    fn entering(&self, image: &Image<'_>) -> BTreeSet<u64> {
        let outlined = |caller: &&Caller| caller.drops == 0 && caller.sets == 1;
        let mut instructions = Vec::new();
        let enters = |caller: &&Caller| {
            code::decode(image, &caller.range, &mut instructions);
            !self.entries(image, &instructions).is_empty()
        };
        let callers = self.callers.iter().filter(outlined).filter(enters);
        callers.map(|caller| caller.range.start).collect()
    }

    /// Calls that set the handle shortly after a seed was taken.
    fn entries(&self, image: &Image<'_>, instructions: &[Instruction]) -> Vec<usize> {
        let Some(graph) = graph::build(instructions) else {
            return Vec::new();
        };
        let predecessors = graph.predecessors();
        let sets =
            (0..instructions.len()).filter(|&at| is_call_of(image, &instructions[at], &self.sets));
        sets.filter(|&at| {
            let mut seen = BTreeSet::new();
            let mut queue = predecessors[at].clone();
            let mut calls = 0;
            while let Some(node) = queue.pop() {
                if !seen.insert(node) || is_call_of(image, &instructions[node], &self.seeds) {
                    continue;
                }
                calls += usize::from(is_call(&instructions[node]));
                let is_entry = node == 0 || predecessors[node].is_empty();
                if is_entry || calls > MAX_CALLS_BETWEEN || self.is_set(image, &instructions[node])
                {
                    return false;
                }
                queue.extend(&predecessors[node]);
            }
            !seen.is_empty()
        })
        .collect()
    }

    fn is_set(&self, image: &Image<'_>, instruction: &Instruction) -> bool {
        is_call_of(image, instruction, &self.sets)
    }

    /// The sites of one function, if on every way through it begin and end take turns.
    fn pair(
        &self,
        image: &Image<'_>,
        range: &Range<u64>,
        entering: &BTreeSet<u64>,
    ) -> Option<Vec<Site>> {
        let mut instructions = Vec::new();
        if !code::decode(image, range, &mut instructions) {
            return None;
        }
        let graph = graph::build(&instructions)?;
        let calls_of = |functions: &BTreeSet<u64>| -> BTreeSet<usize> {
            (0..instructions.len())
                .filter(|&at| is_call_of(image, &instructions[at], functions))
                .collect()
        };
        let outlined = calls_of(entering);
        let inlined: BTreeSet<usize> = self.entries(image, &instructions).into_iter().collect();
        let ends = calls_of(&self.glue);
        if !take_turns(&graph, &(&outlined | &inlined), &ends) {
            return None;
        }
        let ip = |at: &usize| instructions[*at].ip();
        let begins = outlined
            .iter()
            .map(|&at| code::site(image, Probe::BlockOn, &instructions[at], Cookie::EMPTY))
            .chain((inlined.iter()).map(|at| calls::site_after(image, Probe::BlockOn, ip(at))));
        let ends = (ends.iter())
            .map(|&at| code::site(image, Probe::BlockOnEnd, &instructions[at], Cookie::EMPTY));
        begins.chain(ends).collect()
    }

    /// Whether the function at `address` is, or calls by way of the runtime's own
    /// functions, a worker's loop.
    fn comes_to_worker(&self, image: &Image<'_>, address: u64) -> bool {
        let mut seen = BTreeSet::new();
        let mut queue = vec![address];
        let mut names = names::Namer::of(image);
        let mut instructions = Vec::new();
        while let Some(function) = queue.pop() {
            if self.workers.contains(&function) {
                return true;
            }
            if seen.len() > MAX_BETWEEN || !seen.insert(function) {
                continue;
            }
            let Some(range) = image.function_at(function) else {
                continue;
            };
            code::decode(image, &range, &mut instructions);
            let targets = instructions
                .iter()
                .filter_map(|instruction| code::direct_target(image, instruction))
                .filter(|target| !range.contains(target))
                .collect::<BTreeSet<_>>();
            queue.extend(targets.into_iter().filter(|&target| {
                let name = names.function(target).unwrap_or_default();
                let name = name.trim_start_matches('<');
                BETWEEN.iter().any(|part| name.starts_with(part))
            }));
        }
        false
    }
}

/// Whether on every way through the function a begin comes first, then an end, and so
/// on, and an end last.
fn take_turns(graph: &Graph, begins: &BTreeSet<usize>, ends: &BTreeSet<usize>) -> bool {
    let is_through = |at: &&usize| !graph.edges(**at).is_empty();
    let ends: BTreeSet<usize> = ends.iter().filter(is_through).copied().collect();
    if ends.is_empty() || !begins.iter().all(|at| is_through(&at)) || begins.is_empty() {
        return false;
    }
    let after = |at: usize| -> Vec<Target> { graph.edges(at).iter().map(|it| it.target).collect() };
    let begun = begins.iter().flat_map(|&at| after(at)).collect();
    let ended = ends.iter().flat_map(|&at| after(at)).collect();
    let marks: BTreeMap<usize, bool> = begins
        .iter()
        .map(|&at| (at, true))
        .chain(ends.iter().map(|&at| (at, false)))
        .collect();
    let meets = |starts: Vec<Target>, wrong: bool, may_exit: bool| {
        let mut seen = BTreeSet::new();
        let mut queue = starts;
        while let Some(target) = queue.pop() {
            let Target::Node(node) = target else {
                if may_exit {
                    continue;
                }
                return false;
            };
            match marks.get(&node) {
                Some(&mark) if mark == wrong => return false,
                None if seen.insert(node) => queue.extend(after(node)),
                _ => {}
            }
        }
        true
    };
    meets(begun, true, false)
        && meets(ended, false, true)
        && meets(vec![Target::Node(0)], false, true)
}

fn is_call_of(image: &Image<'_>, instruction: &Instruction, functions: &BTreeSet<u64>) -> bool {
    is_call(instruction)
        && code::direct_target(image, instruction).is_some_and(|target| functions.contains(&target))
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

/// The drop of the guard itself, not of what has one.
fn is_glue(name: &str) -> bool {
    let argument = name
        .strip_prefix(GLUE)
        .map(|rest| rest.trim_start_matches("::"));
    argument
        .and_then(|rest| rest.strip_prefix('<')?.strip_suffix('>'))
        .is_some_and(|argument| {
            argument.starts_with("tokio::runtime::context::")
                && argument.ends_with(GUARD)
                && !argument.contains('<')
        })
}

/// Legacy symbols spell it as of `<impl tokio::runtime::context::Context>`.
fn is_set(name: &str) -> bool {
    let name = name.replace("<impl ", "").replace(['<', '>'], "");
    name.starts_with("tokio::runtime::context::") && name.ends_with(SET)
}

#[cfg(test)]
mod tests;
