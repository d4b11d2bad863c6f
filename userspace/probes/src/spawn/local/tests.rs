use iced_x86::code_asm::*;

use super::*;
use crate::testing::{self, Assemble, Linking, function};

/// Offset in the function of the site for its last call, and the header's register.
#[track_caller]
fn check(code: Assemble<'_>, expected: (u64, Register)) {
    let elf = testing::elf(&[code], &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let mut instructions = Vec::new();
    code::decode(&image, &image.functions()[0], &mut instructions);
    let call = instructions.iter().rposition(is_call).unwrap();
    let Spawning { place, header } = spawning(&mut Effects::new(), &instructions, call);
    assert_eq!((place.ip() - function(0), header), expected);
}

const RBX: Register = Register(3);

#[test]
fn a_branch_that_both_ways_lead_on_from_is_the_site() {
    check(
        &|a| {
            let mut on = a.create_label();
            a.test(rax, rax)?;
            a.je(on)?;
            a.mov(qword_ptr(rax), rbx)?;
            a.set_label(&mut on)?;
            a.mov(rsi, rbx)?;
            a.call(function(3))?;
            a.ret()
        },
        (3, RBX),
    );
}

#[test]
fn one_that_may_miss_the_call_is_not() {
    check(
        &|a| {
            let mut past = a.create_label();
            a.test(rax, rax)?;
            a.je(past)?;
            a.mov(rsi, rbx)?;
            a.call(function(3))?;
            a.set_label(&mut past)?;
            a.ret()
        },
        (8, RSI),
    );
}

#[test]
fn one_that_others_pass_by_is_not() {
    check(
        &|a| {
            let (mut on, mut inside) = (a.create_label(), a.create_label());
            a.test(rcx, rcx)?;
            a.je(inside)?;
            a.call(function(3))?;
            a.je(on)?;
            a.set_label(&mut inside)?;
            a.mov(qword_ptr(rax), rbx)?;
            a.set_label(&mut on)?;
            a.mov(rsi, rbx)?;
            a.call(function(3))?;
            a.ret()
        },
        (18, RSI),
    );
}

#[test]
fn nor_one_at_which_no_register_has_the_header() {
    check(
        &|a| {
            let mut on = a.create_label();
            a.je(on)?;
            a.nop()?;
            a.set_label(&mut on)?;
            a.mov(rsi, qword_ptr(rsp))?;
            a.call(function(3))?;
            a.ret()
        },
        (7, RSI),
    );
}

#[test]
fn names_are_taken_in_both_manglings() {
    assert!(is_path("tokio::task::local::Context::spawn", SPAWN));
    assert!(is_path(
        "<tokio::task::local::Context>::spawn::<app::main::{closure#0}>",
        "tokio::task::local::Context::spawn"
    ));
    assert!(!is_path("tokio::task::local::Context::spawn_inner", SPAWN));
    assert!(!is_path(
        "tokio::task::local::Context::spawn::{{closure}}",
        SPAWN
    ));
}
