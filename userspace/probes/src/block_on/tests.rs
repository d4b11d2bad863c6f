use super::*;
use crate::graph::Edge;

/// Whether begins and ends take turns in a graph of these edges; `None` is the exit.
#[track_caller]
fn check(edges: &[&[Option<usize>]], begins: &[usize], ends: &[usize], expected: bool) {
    let edge = |target: &Option<usize>| Edge {
        target: target.map_or(Target::Exit, Target::Node),
        taken: false,
    };
    let edges = edges.iter().map(|it| it.iter().map(edge).collect());
    let graph = Graph::from_edges(edges.collect());
    let set = |nodes: &[usize]| nodes.iter().copied().collect();
    assert_eq!(take_turns(&graph, &set(begins), &set(ends)), expected);
}

#[test]
fn every_way_has_its_begin_and_end() {
    let line: &[&[_]] = &[&[Some(1)], &[Some(2)], &[Some(3)], &[None]];
    check(line, &[1], &[2], true);
    check(line, &[2], &[1], false);
    check(line, &[1], &[], false);
    check(line, &[], &[2], false);
    check(line, &[1, 2], &[3], false);
    check(line, &[0], &[1, 2], false);
}

#[test]
fn one_begin_may_have_two_ends_and_two_begins_one() {
    let ways: &[&[_]] = &[
        &[Some(1), Some(2)],
        &[Some(3)],
        &[Some(3)],
        &[Some(4), Some(5)],
        &[None],
        &[None],
    ];
    check(ways, &[1, 2], &[4, 5], true);
    check(ways, &[1, 2], &[4], false);
    check(ways, &[1], &[3], false);
}

#[test]
fn a_loop_may_block_again_and_again() {
    let ways: &[&[_]] = &[&[Some(1)], &[Some(2)], &[Some(1), None]];
    check(ways, &[1], &[2], true);
    check(ways, &[0], &[2], false);
}

/// Where a panic goes from is on no way through.
#[test]
fn an_end_while_unwinding_is_one_more() {
    let ways: &[&[_]] = &[&[Some(1)], &[Some(2)], &[None], &[]];
    check(ways, &[1], &[2, 3], true);
    check(ways, &[1], &[3], false);
}

#[test]
fn names_are_taken_in_both_manglings() {
    assert!(is_glue(
        "core::ptr::drop_in_place<tokio::runtime::context::runtime::EnterRuntimeGuard>"
    ));
    assert!(is_glue(
        "core::ptr::drop_in_place::<tokio::runtime::context::runtime::EnterRuntimeGuard>"
    ));
    assert!(!is_glue(
        "core::ptr::drop_in_place<core::option::Option<tokio::runtime::context::runtime::EnterRuntimeGuard>>"
    ));
    assert!(is_set(
        "tokio::runtime::context::current::<impl tokio::runtime::context::Context>::set_current"
    ));
    assert!(is_set("<tokio::runtime::context::Context>::set_current"));
    assert!(!is_set("std::thread::set_current"));
}
