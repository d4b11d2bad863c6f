//! Ends of tasks: `Harness::complete`, which every end of a task passes.
//!
//! In: the task vtables. Out: for each vtable the one function that both its
//! poll and its shutdown function call and that sets the state to complete.
//! Never: a function that serves tasks with different id offsets.
//!
//! `runtime/task/harness.rs`: `complete` is called after the last poll, also of
//! a panicking or an aborted task, and from `shutdown`. It begins with
//! `State::transition_to_complete`, `fetch_xor(RUNNING | COMPLETE)`: a
//! compare-exchange loop around `xor register, 3`, inlined or as a function of
//! its own that does nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use dial9_bpf_abi::cookie::Register;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic};

use crate::code;
use crate::elf::Image;
use crate::entry;
use crate::graph;
use crate::plan::{Miss, Probe, Site};
use crate::vtables::Found;

/// `RUNNING | COMPLETE` in `runtime/task/state.rs`.
const COMPLETE_DELTA: u64 = 3;
/// Calls followed from a vtable's function: to the harness, to `complete`.
const MAX_DEPTH: usize = 3;
/// Functions looked at for one vtable's function.
const MAX_CALLS: usize = 4096;
/// Instructions between the `xor` and the `cmpxchg`.
const MAX_DISTANCE: usize = 4;

/// Adds the sites for ends of tasks.
pub(crate) fn find(
    image: &Image<'_>,
    vtables: &[Found],
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    let mut search = Search {
        image,
        functions: HashMap::new(),
    };
    let mut users: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut missing = 0;
    for (index, found) in vtables.iter().enumerate() {
        match search.complete(found) {
            Some(function) => users.entry(function).or_default().push(index),
            None => missing += 1,
        }
    }
    for (function, users) in users {
        let entry = entry::find(image, function, Register::RDI);
        match entry
            .and_then(|entry| entry::task_site(image, Probe::Terminate, entry, vtables, &users))
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
}

/// What is known of a function.
#[derive(Clone, Debug, Default)]
struct Function {
    /// Functions it calls or jumps to directly.
    calls: Rc<BTreeSet<u64>>,
    /// It sets a state word to complete.
    transitions: bool,
    /// It does nothing else.
    is_bare: bool,
}

struct Search<'image, 'data> {
    image: &'image Image<'data>,
    functions: HashMap<u64, Function>,
}

impl Search<'_, '_> {
    /// The function that completes the tasks of a vtable.
    fn complete(&mut self, found: &Found) -> Option<u64> {
        let after_shutdown = self.completing(found.shutdown);
        if after_shutdown.is_empty() {
            return None;
        }
        let after_poll = self.completing(found.vtable.poll);
        let mut both = after_shutdown.intersection(&after_poll);
        let function = *both.next()?;
        both.next().is_none().then_some(function)
    }

    /// Functions that complete tasks among those called from `start`, at the
    /// first depth that has any.
    fn completing(&mut self, start: u64) -> BTreeSet<u64> {
        let mut level = BTreeSet::from([start]);
        let mut seen = level.clone();
        for _ in 0..MAX_DEPTH {
            let mut next = BTreeSet::new();
            for function in level {
                let calls = self.function(function).calls.iter();
                next.extend(calls.filter(|call| !seen.contains(call)).take(MAX_CALLS));
            }
            let found: BTreeSet<_> = next
                .iter()
                .copied()
                .filter(|&function| self.completes(function))
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
        calls.iter().any(|&callee| {
            let callee = self.function(callee);
            callee.transitions && callee.is_bare
        })
    }

    fn function(&mut self, address: u64) -> &Function {
        let image = self.image;
        self.functions
            .entry(address)
            .or_insert_with(|| describe(image, address))
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
    let transitions = transitions_to_complete(&instructions);
    let is_bare = transitions && !has_returning_call(&instructions);
    Function {
        calls: Rc::new(calls),
        transitions,
        is_bare,
    }
}

/// Whether the code has `xor register, 3` and soon after `lock cmpxchg [base],
/// register`.
fn transitions_to_complete(instructions: &[Instruction]) -> bool {
    instructions.iter().enumerate().any(|(index, xor)| {
        xor.code() == Code::Xor_rm64_imm8
            && xor.immediate(1) == COMPLETE_DELTA
            && xor.op0_kind() == iced_x86::OpKind::Register
            && instructions[index..]
                .iter()
                .take(MAX_DISTANCE)
                .any(|exchange| {
                    exchange.mnemonic() == Mnemonic::Cmpxchg
                        && exchange.has_lock_prefix()
                        && exchange.op1_register() == xor.op0_register()
                })
    })
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
