//! Ends of tasks: `Harness::complete`, which every end of a task passes.
//!
//! In: the task vtables. Out: a site in the one function that both the poll and
//! the shutdown function of a vtable call and that sets the state to complete:
//! behind that change where there is an instruction for it, else at the entry.
//! Never: a function that serves closures of the blocking pool and other tasks.
//!
//! `runtime/task/harness.rs`: `complete` is called after the last poll, also of
//! a panicking or an aborted task, and from `shutdown`. It begins with
//! `State::transition_to_complete`, `fetch_xor(RUNNING | COMPLETE)`: a
//! compare-exchange loop around `xor register, 3`, inlined or as a function of
//! its own that does nothing else. Without optimization it is a function that hands 3
//! to `fetch_xor`. It holds a reference to the task until its
//! last step, `transition_to_terminal`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use dial9_bpf_abi::cookie::Register;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic};

use crate::code;
use crate::cut;
use crate::elf::Image;
use crate::entry::{self, Entry};
use crate::graph;
use crate::names;
use crate::plan::{Miss, Probe, Site};
use crate::unoptimized;
use crate::vtables::Found;

/// `RUNNING | COMPLETE` in `runtime/task/state.rs`.
const COMPLETE_DELTA: u32 = 3;
/// Calls followed from a vtable's function: to the harness, to `complete`.
const MAX_DEPTH: usize = 3;
/// Functions looked at for one vtable's function.
const MAX_CALLS: usize = 4096;
/// Functions called from all of those at one depth.
const MAX_LEVEL: usize = 1 << 16;
/// Instructions between the `xor` and the `cmpxchg`.
const MAX_DISTANCE: usize = 4;
/// Calls that are followed or remembered, for all vtables together.
const MAX_STEPS: usize = 1 << 26;
const MAX_REMEMBERED: usize = 1 << 22;
/// Squares of the lengths, in instructions, of the functions whose ways are followed.
const MAX_WAYS: usize = 1 << 30;

/// Adds the sites for ends of tasks. Returns whether every task hits one after
/// its state has become complete and before its memory is freed.
pub(crate) fn find(
    image: &Image<'_>,
    vtables: &[Found],
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) -> bool {
    let mut search = Search::of(image);
    let mut users: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut missing = 0;
    for (index, found) in vtables.iter().enumerate() {
        match search.complete(found) {
            Some(function) => users.entry(function).or_default().push(index),
            None => missing += 1,
        }
    }
    let mut all_behind = true;
    for (function, users) in users {
        let behind = search.behind_change(function);
        all_behind &= behind.is_some();
        let place = behind.or_else(|| entry::find(image, function, Register::RDI));
        match place
            .and_then(|place| entry::task_site(image, Probe::Terminate, place, vtables, &users))
        {
            Some(site) => sites.push(site),
            None => missing += users.len(),
        }
    }
    if missing > 0 {
        let reason = format!(
            "no function that completes {missing} of {} task types",
            vtables.len()
        );
        misses.push(Miss {
            probe: Probe::Terminate,
            reason,
        });
    }
    all_behind && missing == 0
}

/// What is known of a function.
#[derive(Clone, Debug, Default)]
struct Function {
    /// Functions it calls or jumps to directly, sorted.
    calls: Rc<[u64]>,
    /// It sets a state word to complete.
    transitions: bool,
    /// It does nothing else.
    is_bare: bool,
    /// Functions that it hands [`COMPLETE_DELTA`] as their second argument.
    hands_delta: Rc<[u64]>,
    /// It is `fetch_xor`, not optimized.
    is_fetch_xor: bool,
}

struct Search<'image, 'data> {
    image: &'image Image<'data>,
    functions: HashMap<u64, Function>,
    /// What is left of [`MAX_STEPS`], [`MAX_REMEMBERED`] and [`MAX_WAYS`].
    steps: usize,
    remembered: usize,
    ways: usize,
    /// By their symbols, once they are asked for.
    named: Option<BTreeSet<u64>>,
}

/// Whether this is `Harness<T, S>::complete`.
fn is_complete(name: &str) -> bool {
    name.contains("tokio::runtime::task::harness::Harness<") && name.ends_with(">::complete")
}

impl<'image, 'data> Search<'image, 'data> {
    fn of(image: &'image Image<'data>) -> Self {
        Self {
            image,
            functions: HashMap::new(),
            steps: MAX_STEPS,
            remembered: MAX_REMEMBERED,
            ways: MAX_WAYS,
            named: None,
        }
    }

    /// The function that completes the tasks of a vtable.
    fn complete(&mut self, found: &Found) -> Option<u64> {
        let starts = [found.shutdown, found.vtable.poll];
        if starts.iter().any(|&start| self.function(start).transitions) {
            return None;
        }
        let ways = [Self::completes, Self::completes_unoptimized, Self::is_named];
        ways.into_iter()
            .find_map(|is_it| self.of_both(found, is_it))
    }

    /// The one function that `is_it` among those called from both functions of
    /// a vtable.
    fn of_both(&mut self, found: &Found, is_it: fn(&mut Self, u64) -> bool) -> Option<u64> {
        let after_shutdown = self.completing(found.shutdown, is_it);
        if after_shutdown.is_empty() {
            return None;
        }
        let after_poll = self.completing(found.vtable.poll, is_it);
        let mut both = after_shutdown.intersection(&after_poll);
        let function = *both.next()?;
        both.next().is_none().then_some(function)
    }

    /// Functions that are it among those called from `start`, at the first depth
    /// that has any.
    fn completing(&mut self, start: u64, is_it: fn(&mut Self, u64) -> bool) -> BTreeSet<u64> {
        let mut level = BTreeSet::from([start]);
        let mut seen = level.clone();
        for _ in 0..MAX_DEPTH {
            let mut next = BTreeSet::new();
            for function in level {
                let calls = Rc::clone(&self.function(function).calls);
                let new = calls.iter().filter(|call| !seen.contains(call));
                next.extend(new.take(MAX_CALLS));
                if !self.takes(calls.len()) || next.len() > MAX_LEVEL {
                    return BTreeSet::new();
                }
            }
            let found: BTreeSet<_> = next
                .iter()
                .copied()
                .filter(|&function| is_it(self, function))
                .collect();
            if !found.is_empty() || seen.len() + next.len() > MAX_CALLS {
                return found;
            }
            seen.extend(&next);
            level = next;
        }
        BTreeSet::new()
    }

    fn completes(&mut self, address: u64) -> bool {
        let function = self.function(address);
        if function.transitions {
            return !function.is_bare;
        }
        let calls = Rc::clone(&function.calls);
        self.takes(calls.len())
            && calls.iter().any(|&callee| {
                let callee = self.function(callee);
                callee.transitions && callee.is_bare
            })
    }

    /// Whether it calls a function that hands the change to `fetch_xor`.
    fn completes_unoptimized(&mut self, address: u64) -> bool {
        let calls = Rc::clone(&self.function(address).calls);
        self.takes(calls.len())
            && calls.iter().any(|&callee| {
                let handed = Rc::clone(&self.function(callee).hands_delta);
                self.takes(handed.len())
                    && handed
                        .iter()
                        .any(|&changes| self.function(changes).is_fetch_xor)
            })
    }

    fn is_named(&mut self, address: u64) -> bool {
        let image = self.image;
        let find = || names::functions(image, "complete", is_complete).unwrap_or_default();
        self.named.get_or_insert_with(find).contains(&address)
    }

    /// Takes so many steps, unless they are too many.
    fn takes(&mut self, steps: usize) -> bool {
        let left = self.steps.checked_sub(steps);
        self.steps = left.unwrap_or(0);
        left.is_some()
    }

    /// The first place in a function that every call comes to once, after the
    /// state has changed and while the reference is still held.
    fn behind_change(&mut self, address: u64) -> Option<Entry> {
        let range = self.image.function_at(address)?;
        let mut instructions = Vec::new();
        if !code::decode(self.image, &range, &mut instructions) {
            return None;
        }
        let change = self.change(&instructions)?;
        let ways = instructions.len().checked_pow(2)?;
        self.ways = self.ways.checked_sub(ways)?;
        let graph = graph::build(&instructions)?;
        let views = cut::views(self.image, &instructions, &graph, Register::RDI);
        let crossing = cut::after(&graph, &views, change)?;
        let (on_the_way, _) = graph.reach(&[change], Some(crossing.node));
        let mut others = (0..graph.len()).filter(|&node| on_the_way[node] && node != change);
        if others.any(|node| may_free(&instructions[node])) {
            return None;
        }
        Some(Entry {
            instruction: instructions[crossing.node],
            header: crossing.header,
            pushed: 0,
        })
    }

    /// The one instruction that changes the state: an exchange, or a call of the
    /// function that does nothing else.
    fn change(&mut self, instructions: &[Instruction]) -> Option<usize> {
        let image = self.image;
        let mut changes = exchanges(instructions).collect::<Vec<_>>();
        for (node, instruction) in instructions.iter().enumerate() {
            if let Some(callee) = code::direct_target(image, instruction)
                && self.function(callee).is_bare
            {
                changes.push(node);
            }
        }
        let &[change] = changes.as_slice() else {
            return None;
        };
        Some(change)
    }

    fn function(&mut self, address: u64) -> &Function {
        let Self {
            image,
            functions,
            remembered,
            ..
        } = self;
        functions.entry(address).or_insert_with(|| {
            let function = if *remembered > 0 {
                describe(image, address)
            } else {
                Function::default()
            };
            let words = function.calls.len() + function.hands_delta.len();
            *remembered = remembered.saturating_sub(1 + words);
            function
        })
    }
}

fn describe(image: &Image<'_>, address: u64) -> Function {
    let Some(range) = image
        .function_at(address)
        .filter(|range| range.start == address)
    else {
        return Function::default();
    };
    let mut instructions = Vec::new();
    code::decode(image, &range, &mut instructions);
    let calls = instructions
        .iter()
        .filter_map(|instruction| code::direct_target(image, instruction))
        .filter(|target| !range.contains(target))
        .collect::<BTreeSet<_>>();
    let transitions = exchanges(&instructions).next().is_some();
    let is_bare = transitions && !has_returning_call(&instructions);
    let hands_delta = unoptimized::given(image, &instructions, COMPLETE_DELTA);
    Function {
        calls: calls.into_iter().collect(),
        transitions,
        is_bare,
        hands_delta: hands_delta.collect(),
        is_fetch_xor: unoptimized::is_fetch_xor(&instructions),
    }
}

/// Indices of each `lock cmpxchg [base], register` soon after `xor register, 3`.
fn exchanges(instructions: &[Instruction]) -> impl Iterator<Item = usize> {
    let follows = |exchange: &Instruction, xor: &Instruction| {
        exchange.mnemonic() == Mnemonic::Cmpxchg
            && exchange.has_lock_prefix()
            && exchange.op1_register() == xor.op0_register()
    };
    instructions
        .iter()
        .enumerate()
        .filter(|(_, xor)| {
            xor.code() == Code::Xor_rm64_imm8
                && xor.immediate(1) == u64::from(COMPLETE_DELTA)
                && xor.op0_kind() == iced_x86::OpKind::Register
        })
        .filter_map(move |(index, xor)| {
            let near = instructions[index..].iter().take(MAX_DISTANCE);
            let distance = near
                .into_iter()
                .position(|exchange| follows(exchange, xor))?;
            Some(index + distance)
        })
}

/// Whether the instruction may give up the last reference to the task.
fn may_free(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix()
        || instruction.mnemonic() == Mnemonic::Xchg
        || matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        )
}

/// Whether the function calls something and goes on; calls of panics do not.
fn has_returning_call(instructions: &[Instruction]) -> bool {
    let Some(graph) = graph::build(instructions) else {
        return true;
    };
    instructions.iter().enumerate().any(|(node, instruction)| {
        matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) && !graph.edges(node).is_empty()
    })
}

#[cfg(test)]
mod tests;
