use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::*;
use crate::testing::{self, Assemble, Linking, function};

/// What is found in function 0: for each site its distance from the entry, its
/// header's register, and whether it counts where taken (`None`: both ways).
#[track_caller]
fn check(code: Assemble<'_>, expected: &[(u64, u8, Option<bool>)]) {
    let elf = testing::elf(&[code, &|a| a.ret()], &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let mut wakes = InlinedWakes::new();
    let mut instructions = Vec::new();
    for range in image.functions() {
        code::decode(&image, range, &mut instructions);
        wakes.visit(range, &instructions);
    }
    let (sites, uncounted) = wakes.sites(&image, &[function(1)], Cookie::EMPTY);
    let place = |site: &Site| {
        let branch = site.cookie.branch.map(|branch| branch.taken);
        (site.address - function(0), site.cookie.header.0, branch)
    };
    let places: Vec<_> = sites.iter().map(place).collect();
    assert_eq!((places.as_slice(), uncounted), (expected, 0));
}

/// As Rust 1.95 writes the loop, with what `between` puts in front of the
/// exchange and what comes after the loop.
fn by_ref(
    a: &mut CodeAssembler,
    between: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let mut top = a.create_label();
    let mut running = a.create_label();
    let mut exchange = a.create_label();
    let mut end = a.create_label();
    let mut overflow = a.create_label();
    a.push(rbx)?;
    a.mov(rbx, rdi)?;
    a.mov(rax, ptr(rbx))?;
    a.set_label(&mut top)?;
    a.test(al, 6)?;
    a.jne(end)?;
    a.test(al, 1)?;
    a.jne(running)?;
    a.test(rax, rax)?;
    a.js(overflow)?;
    a.lea(rcx, ptr(rax + 0x44))?;
    a.jmp(exchange)?;
    a.set_label(&mut running)?;
    a.mov(rcx, rax)?;
    a.or(rcx, 4)?;
    a.set_label(&mut exchange)?;
    between(a)?;
    a.lock().cmpxchg(qword_ptr(rbx), rcx)?;
    a.jne(top)?;
    a.set_label(&mut end)?;
    a.pop(rbx)?;
    a.ret()?;
    a.set_label(&mut overflow)?;
    a.call(function(1))
}

#[test]
fn a_wake_is_counted_where_its_loop_is_left() {
    let expected = [(9, 3, Some(true)), (38, 3, Some(false))];
    check(&|a| by_ref(a, |_| Ok(())), &expected);
}

#[test]
fn padding_before_a_block_is_no_way_in() {
    check(
        &|a| {
            let mut top = a.create_label();
            let mut idle = a.create_label();
            let mut end = a.create_label();
            a.mov(rax, ptr(rdi))?;
            a.jmp(top)?;
            a.nop()?;
            a.set_label(&mut idle)?;
            a.lea(rcx, ptr(rax + 0x44))?;
            a.lock().cmpxchg(qword_ptr(rdi), rcx)?;
            a.je(end)?;
            a.set_label(&mut top)?;
            a.test(al, 7)?;
            a.je(idle)?;
            a.set_label(&mut end)?;
            a.ret()
        },
        &[(15, 7, Some(true)), (19, 7, Some(false))],
    );
}

/// As Rust 1.63 writes it: an exchange for each new state.
#[test]
fn exchanges_of_one_loop_are_one_wake() {
    check(
        &|a| {
            let mut top = a.create_label();
            let mut running = a.create_label();
            let mut end = a.create_label();
            a.mov(rax, ptr(rdi))?;
            a.jmp(top)?;
            a.set_label(&mut running)?;
            a.lock().cmpxchg(qword_ptr(rdi), rcx)?;
            a.je(end)?;
            a.set_label(&mut top)?;
            a.test(al, 6)?;
            a.jne(end)?;
            a.mov(rcx, rax)?;
            a.or(rcx, 4)?;
            a.test(al, 1)?;
            a.jne(running)?;
            a.add(rcx, 0x40)?;
            a.lock().cmpxchg(qword_ptr(rdi), rcx)?;
            a.jne(top)?;
            a.set_label(&mut end)?;
            a.ret()
        },
        &[
            (10, 7, Some(true)),
            (14, 7, Some(true)),
            (36, 7, Some(false)),
        ],
    );
}

#[test]
fn what_cancels_or_loses_the_header_is_none() {
    check(&|a| by_ref(a, |a| a.or(rcx, 0x20)), &[]);
    check(&|a| by_ref(a, |a| a.mov(rbx, rdi)), &[]);
    check(&|a| by_ref(a, |a| a.call(function(1))), &[]);
}
