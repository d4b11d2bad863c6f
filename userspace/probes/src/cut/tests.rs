use iced_x86::IcedError;
use iced_x86::code_asm::*;
use proptest::prelude::*;

use super::*;
use crate::graph;
use crate::testing::{self, Assemble, Linking, function};

/// The cut as (offset of the instruction, direction that counts).
#[track_caller]
fn check(code: Assemble<'_>, expected: Option<&[(u64, Option<bool>)]>) {
    let elf = testing::elf(&[code], &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let mut instructions = Vec::new();
    assert!(code::decode(
        &image,
        &image.functions()[0],
        &mut instructions
    ));
    let graph = graph::build(&instructions).unwrap();
    let views = views(&image, &instructions, &graph, Register::RDI);
    let cut = find(&graph, &views);
    let found = cut.as_ref().map(|cut| {
        let offset = |crossing: &Crossing| instructions[crossing.node].ip() - function(0);
        cut.iter()
            .map(|crossing| (offset(crossing), crossing.branch.map(|branch| branch.taken)))
            .collect::<Vec<_>>()
    });
    assert_eq!(found.as_deref(), expected);
    if let Some(cut) = cut {
        walk(&graph, &cut, 1000);
    }
}

/// Takes random ways through the graph and counts the hits on each.
#[track_caller]
fn walk(graph: &Graph, cut: &[Crossing], ways: u64) {
    let mut random = 88_172_645_463_325_252u64;
    for _ in 0..ways {
        let (mut node, mut count, mut steps) = (0, 0, 0);
        loop {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let edges = graph.edges(node);
            let edge = &edges[(random >> 33) as usize % edges.len()];
            count += hits(cut, node, edge);
            steps += 1;
            match edge.target {
                Target::Node(next) => node = next,
                Target::Exit => break assert_eq!(count, 1),
            }
            if steps > 10_000 {
                break assert!(count <= 1);
            }
        }
    }
}

#[test]
fn a_push_at_the_entry_is_enough() {
    check(
        &|a| {
            a.push(rbx)?;
            a.mov(rbx, rdi)?;
            a.pop(rbx)?;
            a.ret()
        },
        Some(&[(0, None)]),
    );
}

/// `mov rax,[rdi]`, then a compare-exchange loop with an early way out.
fn exchange_loop(a: &mut CodeAssembler, early: CodeLabel) -> Result<(), IcedError> {
    let mut top = a.create_label();
    a.mov(rax, ptr(rdi))?;
    a.set_label(&mut top)?;
    a.test(al, 2)?;
    a.jne(early)?;
    a.lea(rcx, ptr(rax + 4))?;
    a.lock().cmpxchg(qword_ptr(rdi), rcx)?;
    a.jne(top)
}

#[test]
fn the_jumps_that_leave_a_loop_are_the_cut() {
    let two_exits = |a: &mut CodeAssembler| {
        let mut early = a.create_label();
        exchange_loop(a, early)?;
        a.mov(eax, 1)?;
        a.ret()?;
        a.set_label(&mut early)?;
        a.xor(eax, eax)?;
        a.ret()
    };
    check(&two_exits, Some(&[(5, Some(true)), (16, Some(false))]));
}

#[test]
fn a_jump_behind_the_loop_is_better() {
    let joined = |a: &mut CodeAssembler| {
        let (mut early, mut idle) = (a.create_label(), a.create_label());
        exchange_loop(a, early)?;
        a.set_label(&mut early)?;
        a.test(al, 1)?;
        a.je(idle)?;
        a.mov(rax, ptr(rdi + 16))?;
        a.jmp(qword_ptr(rax + 8))?;
        a.set_label(&mut idle)?;
        a.ret()
    };
    check(&joined, Some(&[(20, None)]));
}

#[test]
fn without_the_header_nothing_counts() {
    let lost = |a: &mut CodeAssembler| {
        a.xor(edi, edi)?;
        a.push(rbx)?;
        a.pop(rbx)?;
        a.ret()
    };
    check(&lost, None);
    let lost_on_one_way = |a: &mut CodeAssembler| {
        let (mut other, mut end) = (a.create_label(), a.create_label());
        a.jrcxz(other)?;
        a.xor(edi, edi)?;
        a.jmp(end)?;
        a.set_label(&mut other)?;
        a.nop()?;
        a.set_label(&mut end)?;
        a.push(rbx)?;
        a.pop(rbx)?;
        a.ret()
    };
    check(&lost_on_one_way, None);
}

#[test]
fn without_an_emulated_instruction_there_is_no_cut() {
    check(
        &|a| {
            a.mov(rax, ptr(rdi))?;
            a.ret()
        },
        None,
    );
    let one_way_unseen = |a: &mut CodeAssembler| {
        let mut out = a.create_label();
        a.jrcxz(out)?;
        a.push(rbx)?;
        a.pop(rbx)?;
        a.set_label(&mut out)?;
        a.ret()
    };
    check(&one_way_unseen, None);
}

#[test]
fn a_way_into_a_panic_does_not_matter() {
    let panics = |a: &mut CodeAssembler| {
        let (mut panic, mut top) = (a.create_label(), a.create_label());
        a.mov(rax, ptr(rdi))?;
        a.set_label(&mut top)?;
        a.test(rax, rax)?;
        a.js(panic)?;
        a.lock().cmpxchg(qword_ptr(rdi), rcx)?;
        a.jne(top)?;
        a.ret()?;
        a.set_label(&mut panic)?;
        a.call(function(9))
    };
    check(&panics, Some(&[(13, Some(false))]));
}

#[test]
fn a_jump_table_is_not_followed() {
    let bytes = testing::assemble(0x1000, &|a| a.jmp(qword_ptr(rax * 8 + 0x2000)));
    let jump = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).decode();
    assert!(graph::build(&[jump]).is_none());
}

#[test]
fn a_wrong_cut_is_recognized() {
    let edge = |target, taken| Edge { target, taken };
    let (node, exit) = (Target::Node, Target::Exit);
    // 0 -> 1 -> 2 -> exit, 2 -> 1
    let graph = Graph::from_edges(vec![
        vec![edge(node(1), false)],
        vec![edge(node(2), false)],
        vec![edge(exit, false), edge(node(1), true)],
    ]);
    let at = |node, branch| Crossing {
        node,
        header: Register::RDI,
        branch,
    };
    let leave = Branch {
        code: 5,
        taken: false,
    };
    assert!(counts_once(&graph, &[at(0, None)]));
    assert!(counts_once(&graph, &[at(2, Some(leave))]));
    assert!(!counts_once(&graph, &[at(1, None)]));
    assert!(!counts_once(&graph, &[at(2, None)]));
    assert!(!counts_once(&graph, &[at(0, None), at(2, Some(leave))]));
    assert!(!counts_once(&graph, &[]));
}

/// Functions of up to 12 instructions: plain, conditional, unconditional, exit.
fn random_function() -> impl Strategy<Value = (Vec<Vec<Edge>>, Vec<View>)> {
    prop::collection::vec((0..4u8, 0..12usize, any::<bool>(), 0..4u8), 1..12).prop_map(|nodes| {
        let count = nodes.len();
        let edge = |target: usize, taken| {
            let target = if target < count {
                Target::Node(target)
            } else {
                Target::Exit
            };
            Edge { target, taken }
        };
        let describe =
            |(index, &(kind, target, is_emulated, header)): (usize, &(u8, usize, bool, u8))| {
                let edges = match kind {
                    0 => vec![edge(index + 1, false)],
                    1 => vec![edge(target, true)],
                    2 => vec![edge(count, false)],
                    _ => vec![edge(index + 1, false), edge(target, true)],
                };
                let header = (header > 0).then_some(Register::RDI);
                (
                    edges,
                    View {
                        header,
                        is_emulated,
                        condition: (kind == 3).then_some(5),
                    },
                )
            };
        nodes.iter().enumerate().map(describe).unzip()
    })
}

proptest! {
    #[test]
    fn every_way_through_any_function_is_counted_once((edges, views) in random_function()) {
        let graph = Graph::from_edges(edges);
        if !graph.edges(0).is_empty() && let Some(cut) = find(&graph, &views) {
            walk(&graph, &cut, 50);
            for crossing in &cut {
                prop_assert!(is_visible(views[crossing.node]));
            }
        }
    }

    #[test]
    fn what_can_be_seen_everywhere_can_be_counted((edges, mut views) in random_function()) {
        let graph = Graph::from_edges(edges);
        for view in &mut views {
            (view.is_emulated, view.header) = (true, Some(Register::RDI));
        }
        prop_assert!(graph.edges(0).is_empty() || find(&graph, &views).is_some());
    }
}
