use iced_x86::code_asm::*;

use super::*;
use crate::testing::{self, Assemble, Linking, function};

/// Offset of the site in the function, header's register, bytes pushed.
#[track_caller]
fn check(code: Assemble<'_>, expected: Option<(u64, u8, u16)>) {
    let elf = testing::elf(&[code], &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let entry = find(&image, function(0), Register::RDI);
    let found = entry.map(|entry| {
        (
            entry.instruction.ip() - function(0),
            entry.header.0,
            entry.pushed,
        )
    });
    assert_eq!(found, expected);
}

#[test]
fn a_push_at_the_entry_is_the_site() {
    check(
        &|a| {
            a.push(rbp)?;
            a.push(rbx)?;
            a.ret()
        },
        Some((0, 7, 0)),
    );
}

#[test]
fn the_bytes_on_the_stack_are_counted() {
    check(
        &|a| {
            a.sub(rsp, 24)?;
            a.mov(rax, ptr(rdi))?;
            a.push(rbx)?;
            a.ret()
        },
        Some((7, 7, 24)),
    );
    check(
        &|a| {
            a.sub(rsp, 2048)?;
            a.push(rbx)?;
            a.ret()
        },
        Some((7, 7, 2048)),
    );
    check(
        &|a| {
            a.and(rsp, -64)?;
            a.push(rbx)?;
            a.ret()
        },
        Some((0, 7, 0)),
    );
}

#[test]
fn a_copy_of_the_header_will_do() {
    check(
        &|a| {
            a.mov(rbx, rdi)?;
            a.xor(edi, edi)?;
            a.push(rax)?;
            a.ret()
        },
        Some((5, 3, 0)),
    );
}

#[test]
fn without_the_header_or_an_emulated_instruction_it_is_the_first() {
    check(
        &|a| {
            a.xor(edi, edi)?;
            a.push(rax)?;
            a.ret()
        },
        Some((0, 7, 0)),
    );
    check(
        &|a| {
            a.mov(rax, ptr(rdi))?;
            a.ret()
        },
        Some((0, 7, 0)),
    );
    check(
        &|a| {
            a.mov(rax, ptr(rdi + 16))?;
            a.jmp(qword_ptr(rax))
        },
        Some((0, 7, 0)),
    );
}

#[test]
fn a_loop_is_not_an_entry() {
    let back_to_start = |a: &mut CodeAssembler| {
        let mut top = a.create_label();
        a.set_label(&mut top)?;
        a.push(rbx)?;
        a.pop(rbx)?;
        a.jne(top)?;
        a.ret()
    };
    check(&back_to_start, None);
    let back_to_second = |a: &mut CodeAssembler| {
        let mut top = a.create_label();
        a.mov(rax, ptr(rdi))?;
        a.set_label(&mut top)?;
        a.push(rbx)?;
        a.pop(rbx)?;
        a.jne(top)?;
        a.ret()
    };
    check(&back_to_second, Some((0, 7, 0)));
}
