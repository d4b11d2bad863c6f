//! The control flow graph of one function, instruction by instruction.
//!
//! In: a function's instructions. Out: a [`Graph`] of those that lie on a way
//! from entry to exit. Never: a guess where a computed jump goes ([`build`]
//! gives up), a way that ends in a panic: a call that does not return is the
//! function's last instruction or followed by others of its kind.

use std::collections::VecDeque;

use iced_x86::{FlowControl, Instruction};

use crate::code;

/// Instructions of the largest function looked at.
const MAX_INSTRUCTIONS: usize = 4096;

/// Where control goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To the instruction with this index.
    Node(usize),
    /// Out of the function: a return or a tail call.
    Exit,
}

/// One way out of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) target: Target,
    /// Whether it is the taken direction of a branch.
    pub(crate) taken: bool,
}

/// A function's control flow; node 0 is its entry.
#[derive(Debug)]
pub(crate) struct Graph {
    edges: Vec<Vec<Edge>>,
}

impl Graph {
    pub(crate) fn len(&self) -> usize {
        self.edges.len()
    }

    /// Ways out of a node; none for a node on no way from entry to exit.
    pub(crate) fn edges(&self, node: usize) -> &[Edge] {
        &self.edges[node]
    }

    /// Nodes from which an edge leads to each node.
    pub(crate) fn predecessors(&self) -> Vec<Vec<usize>> {
        let mut predecessors = vec![Vec::new(); self.len()];
        for (node, edges) in self.edges.iter().enumerate() {
            for edge in edges {
                if let Target::Node(next) = edge.target {
                    predecessors[next].push(node);
                }
            }
        }
        predecessors
    }

    /// Nodes reached from `starts` without passing `barrier`, and whether the
    /// exit is.
    pub(crate) fn reach(&self, starts: &[usize], barrier: Option<usize>) -> (Vec<bool>, bool) {
        let mut seen = vec![false; self.len()];
        let mut exits = false;
        let mut queue: VecDeque<_> = starts.iter().copied().collect();
        while let Some(node) = queue.pop_front() {
            if barrier == Some(node) || std::mem::replace(&mut seen[node], true) {
                continue;
            }
            for edge in &self.edges[node] {
                match edge.target {
                    Target::Node(next) => queue.push_back(next),
                    Target::Exit => exits = true,
                }
            }
        }
        (seen, exits)
    }

    /// Whether control can come back to a node.
    pub(crate) fn is_in_cycle(&self, node: usize) -> bool {
        let after: Vec<_> = self.edges[node]
            .iter()
            .filter_map(|edge| match edge.target {
                Target::Node(next) => Some(next),
                Target::Exit => None,
            })
            .collect();
        self.reach(&after, None).0[node]
    }

    /// A graph with these edges, without those on no way through it.
    #[cfg(test)]
    pub(crate) fn from_edges(edges: Vec<Vec<Edge>>) -> Self {
        let mut graph = Self { edges };
        graph.keep_ways_through();
        graph
    }

    /// Drops the edges that do not lie on a way from entry to exit.
    fn keep_ways_through(&mut self) {
        let (from_entry, _) = self.reach(&[0], None);
        let mut to_exit = vec![false; self.len()];
        let predecessors = self.predecessors();
        let ends = |edge: &Edge| edge.target == Target::Exit;
        let mut queue: VecDeque<_> = (0..self.len())
            .filter(|&node| self.edges[node].iter().any(ends))
            .collect();
        while let Some(node) = queue.pop_front() {
            if !std::mem::replace(&mut to_exit[node], true) {
                queue.extend(&predecessors[node]);
            }
        }
        let is_through = |node: usize| from_entry[node] && to_exit[node];
        for (node, edges) in self.edges.iter_mut().enumerate() {
            edges.retain(|edge| match edge.target {
                Target::Node(next) => is_through(node) && is_through(next),
                Target::Exit => is_through(node),
            });
        }
    }
}

/// The graph of the function with these instructions; `None` if it is empty,
/// too long, never returns, or jumps where only its data says.
pub(crate) fn build(instructions: &[Instruction]) -> Option<Graph> {
    if instructions.is_empty() || instructions.len() > MAX_INSTRUCTIONS {
        return None;
    }
    let edges = (0..instructions.len())
        .map(|node| edges_of(instructions, node))
        .collect::<Option<_>>();
    let mut graph = Graph { edges: edges? };
    graph.keep_ways_through();
    (!graph.edges(0).is_empty()).then_some(graph)
}

fn edges_of(instructions: &[Instruction], node: usize) -> Option<Vec<Edge>> {
    let instruction = &instructions[node];
    let next = (node + 1 < instructions.len()).then_some(Edge {
        target: Target::Node(node + 1),
        taken: false,
    });
    let exit = Edge {
        target: Target::Exit,
        taken: false,
    };
    Some(match instruction.flow_control() {
        FlowControl::Next
        | FlowControl::Call
        | FlowControl::IndirectCall
        | FlowControl::Interrupt => next.into_iter().collect(),
        FlowControl::ConditionalBranch => {
            let target = branch_target(instructions, instruction)?;
            next.into_iter()
                .chain([Edge {
                    target,
                    taken: true,
                }])
                .collect()
        }
        FlowControl::UnconditionalBranch => {
            vec![Edge {
                target: branch_target(instructions, instruction)?,
                taken: true,
            }]
        }
        FlowControl::Return => vec![exit],
        FlowControl::IndirectBranch => is_tail_call(instruction).then(|| vec![exit])?,
        FlowControl::Exception => Vec::new(),
        FlowControl::XbeginXabortXend => return None,
    })
}

fn branch_target(instructions: &[Instruction], branch: &Instruction) -> Option<Target> {
    let target = code::near_target(branch)?;
    let end = instructions.last()?.next_ip();
    if !(instructions.first()?.ip()..end).contains(&target) {
        return Some(Target::Exit);
    }
    instructions
        .binary_search_by_key(&target, Instruction::ip)
        .ok()
        .map(Target::Node)
}

/// A jump through a field or a pointer table; one through an indexed table or a
/// register may stay in the function.
fn is_tail_call(instruction: &Instruction) -> bool {
    instruction.op0_kind() == iced_x86::OpKind::Memory
        && instruction.memory_index() == iced_x86::Register::None
}
