//! Sites of which every call of a function hits exactly one.
//!
//! In: a function's graph, what can be observed at each instruction. Out: the
//! smallest set of (instruction, direction) that every way from entry to exit
//! crosses exactly once. Never: a set that [`counts_once`] has not proved.
//!
//! A compare-exchange loop is left exactly once, so where no single instruction
//! will do, the conditional jumps that leave it do.

use std::collections::VecDeque;

use dial9_bpf_abi::cookie::{Branch, Register};
use iced_x86::Instruction;

use crate::code::{self, Effects, RegisterSet};
use crate::elf::Image;
use crate::graph::{Edge, Graph, Target};
use crate::plan::InstructionClass;

/// What a probe on one instruction of the function would see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// Where the task header is; `None` if in no register.
    pub(crate) header: Option<Register>,
    /// The kernel emulates the instruction.
    pub(crate) is_emulated: bool,
    /// Condition code of a conditional jump.
    pub(crate) condition: Option<u8>,
}

/// One instruction of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crossing {
    /// Index of the instruction.
    pub(crate) node: usize,
    /// Where the task header is there.
    pub(crate) header: Register,
    /// The direction that counts, if only one does.
    pub(crate) branch: Option<Branch>,
}

/// What can be seen at each instruction of a function that gets the header in
/// `header`.
pub(crate) fn views(
    image: &Image<'_>,
    instructions: &[Instruction],
    graph: &Graph,
    header: Register,
) -> Vec<View> {
    let emulated = [InstructionClass::Emulated, InstructionClass::EmulatedStack];
    let holders = header_registers(instructions, graph, header);
    let view = |(instruction, holders): (&Instruction, RegisterSet)| View {
        header: holders.first(),
        is_emulated: code::class(image, instruction).is_some_and(|it| emulated.contains(&it)),
        condition: code::condition(image, instruction),
    };
    instructions.iter().zip(holders).map(view).collect()
}

/// The registers that hold the header before each instruction, on every way to
/// it.
fn header_registers(
    instructions: &[Instruction],
    graph: &Graph,
    header: Register,
) -> Vec<RegisterSet> {
    let mut effects = Effects::new();
    let mut before = vec![RegisterSet::ALL; graph.len()];
    before[0] = RegisterSet::only(header);
    let mut queue = VecDeque::from([0]);
    let mut seen = vec![false; graph.len()];
    while let Some(node) = queue.pop_front() {
        seen[node] = true;
        let after = effects.step(&instructions[node], before[node]);
        for edge in graph.edges(node) {
            let Target::Node(next) = edge.target else {
                continue;
            };
            let met = before[next].and(after);
            if met != before[next] || !seen[next] {
                before[next] = met;
                queue.push_back(next);
            }
        }
    }
    before
}

/// The cut of a function; `None` if there is none among its emulated
/// instructions.
pub(crate) fn find(graph: &Graph, views: &[View]) -> Option<Vec<Crossing>> {
    let single = single(graph, views, |_| true).map(|crossing| vec![crossing]);
    let cut = single.or_else(|| earliest(graph, views))?;
    counts_once(graph, &cut).then_some(cut)
}

/// The first instruction that every call executes exactly once, and only after
/// the one with the index `change`.
pub(crate) fn after(graph: &Graph, views: &[View], change: usize) -> Option<Crossing> {
    let (before, _) = graph.reach(&[0], Some(change));
    let crossing = single(graph, views, |node| node != change && !before[node])?;
    counts_once(graph, &[crossing]).then_some(crossing)
}

/// The first instruction on every way, outside every cycle, among those that
/// `may` be probed.
fn single(graph: &Graph, views: &[View], may: impl Fn(usize) -> bool) -> Option<Crossing> {
    let is_on_every_way =
        |node: usize| !graph.edges(node).is_empty() && !graph.reach(&[0], Some(node)).1;
    let mut best: Option<usize> = None;
    for node in (0..graph.len()).filter(|&node| views[node].is_emulated && may(node)) {
        let is_earlier = best.is_none_or(|best| graph.reach(&[0], Some(best)).0[node]);
        if views[node].header.is_some()
            && is_on_every_way(node)
            && is_earlier
            && !graph.is_in_cycle(node)
        {
            best = Some(node);
        }
    }
    let node = best?;
    Some(Crossing {
        node,
        header: views[node].header?,
        branch: None,
    })
}

/// The edges out of the smallest part of the graph that contains the entry, is
/// never come back to, and is left only where that can be seen.
fn earliest(graph: &Graph, views: &[View]) -> Option<Vec<Crossing>> {
    let predecessors = graph.predecessors();
    let mut inside = vec![false; graph.len()];
    let mut queue = VecDeque::from([0]);
    loop {
        while let Some(node) = queue.pop_front() {
            if !std::mem::replace(&mut inside[node], true) {
                queue.extend(&predecessors[node]);
            }
        }
        let leaving = (0..graph.len())
            .filter(|&node| inside[node])
            .flat_map(|node| graph.edges(node).iter().map(move |edge| (node, edge)))
            .filter(|(_, edge)| leaves(&inside, edge));
        for (node, edge) in leaving {
            if !is_visible(views[node]) {
                let Target::Node(next) = edge.target else {
                    return None;
                };
                queue.push_back(next);
            }
        }
        if queue.is_empty() {
            break;
        }
    }
    (0..graph.len())
        .filter(|&node| inside[node] && graph.edges(node).iter().any(|edge| leaves(&inside, edge)))
        .map(|node| crossing(graph, views[node], &inside, node))
        .collect()
}

/// Whether leaving this instruction can be told.
fn is_visible(view: View) -> bool {
    view.is_emulated && view.header.is_some()
}

fn leaves(inside: &[bool], edge: &Edge) -> bool {
    match edge.target {
        Target::Node(next) => !inside[next],
        Target::Exit => true,
    }
}

/// The part of the cut at an instruction where an edge leaves.
fn crossing(graph: &Graph, view: View, inside: &[bool], node: usize) -> Option<Crossing> {
    let edges = graph.edges(node);
    let mut leaving = edges.iter().filter(|edge| leaves(inside, edge));
    let first = leaving.next()?;
    let View {
        header, condition, ..
    } = view;
    let branch = if edges.len() == 1 || leaving.next().is_some() {
        None
    } else {
        Some(Branch {
            code: condition?,
            taken: first.taken,
        })
    };
    Some(Crossing {
        node,
        header: header?,
        branch,
    })
}

/// Whether every way from entry to exit crosses the cut exactly once: the
/// number of crossings on the way to each node is the same on all ways, and it
/// is 1 at the exit.
pub(crate) fn counts_once(graph: &Graph, cut: &[Crossing]) -> bool {
    let mut crossed: Vec<Option<u32>> = vec![None; graph.len()];
    crossed[0] = Some(0);
    let mut queue = VecDeque::from([0]);
    let mut exits = 0;
    while let Some(node) = queue.pop_front() {
        let before = crossed[node].unwrap_or_default();
        for edge in graph.edges(node) {
            let after = before + hits(cut, node, edge);
            match edge.target {
                Target::Exit if after != 1 => return false,
                Target::Exit => exits += 1,
                Target::Node(next) if crossed[next].is_none() && after <= 1 => {
                    crossed[next] = Some(after);
                    queue.push_back(next);
                }
                Target::Node(next) if crossed[next] != Some(after) => return false,
                Target::Node(_) => {}
            }
        }
    }
    exits > 0
}

fn hits(cut: &[Crossing], node: usize, edge: &Edge) -> u32 {
    let counts = |crossing: &&Crossing| {
        crossing.node == node
            && crossing
                .branch
                .is_none_or(|branch| branch.taken == edge.taken)
    };
    u32::try_from(cut.iter().filter(counts).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
