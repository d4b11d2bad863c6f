use iced_x86::code_asm::*;

use super::*;
use crate::testing::{self, Assemble, Linking, function};

/// Poll calls as (index of the function, offset in it).
#[track_caller]
fn check(functions: &[Assemble<'_>], expected: &[(u64, u64)]) {
    let elf = testing::elf(functions, &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let mut polls = PollCalls::new();
    let mut instructions = Vec::new();
    for range in image.functions() {
        assert!(code::decode(&image, range, &mut instructions));
        polls.visit(range, &instructions);
    }
    let place = |address| {
        let start = image.function_at(address).unwrap().start;
        (
            (start - testing::CODE) / testing::FUNCTION_BYTES,
            address - start,
        )
    };
    let found: Vec<_> = polls
        .finish(&image)
        .unwrap()
        .into_iter()
        .map(place)
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_call_through_the_headers_vtable_is_a_poll() {
    check(
        &[&|a| {
            a.mov(rax, ptr(rdi + 16))?;
            a.call(qword_ptr(rax))
        }],
        &[(0, 4)],
    );
    let header_elsewhere = |a: &mut CodeAssembler| {
        a.mov(rcx, ptr(rbx + 16))?;
        a.mov(r12, rbx)?;
        a.mov(rdi, r12)?;
        a.call(qword_ptr(rcx))
    };
    check(&[&header_elsewhere], &[(0, 10)]);
    let header_spilled = |a: &mut CodeAssembler| {
        a.mov(qword_ptr(rsp + 8), rdi)?;
        a.mov(rax, ptr(rdi + 16))?;
        a.mov(rdi, ptr(rsp + 8))?;
        a.call(qword_ptr(rax))
    };
    check(&[&header_spilled], &[(0, 14)]);
}

#[test]
fn other_calls_are_not() {
    let other_slot = |a: &mut CodeAssembler| {
        a.mov(rax, ptr(rdi + 16))?;
        a.call(qword_ptr(rax + 8))
    };
    let other_field = |a: &mut CodeAssembler| {
        a.mov(rax, ptr(rdi + 24))?;
        a.call(qword_ptr(rax))
    };
    let other_header = |a: &mut CodeAssembler| {
        a.mov(rax, ptr(rbx + 16))?;
        a.mov(rdi, rbp)?;
        a.call(qword_ptr(rax))
    };
    let clobbered = |a: &mut CodeAssembler| {
        a.mov(rax, ptr(rdi + 16))?;
        a.call(function(0))?;
        a.call(qword_ptr(rax))
    };
    let overwritten = |a: &mut CodeAssembler| {
        a.mov(rax, ptr(rdi + 16))?;
        a.add(rdi, 8)?;
        a.call(qword_ptr(rax))
    };
    let joined = |a: &mut CodeAssembler| {
        let mut label = a.create_label();
        a.jne(label)?;
        a.mov(rax, ptr(rdi + 16))?;
        a.set_label(&mut label)?;
        a.call(qword_ptr(rax))
    };
    check(
        &[
            &other_slot,
            &other_field,
            &other_header,
            &clobbered,
            &overwritten,
            &joined,
        ],
        &[],
    );
}

#[test]
fn what_is_known_on_every_way_is_known_where_they_meet() {
    let loaded_on_both = |a: &mut CodeAssembler| {
        let mut label = a.create_label();
        a.mov(rax, ptr(r15 + 16))?;
        a.test(rcx, rcx)?;
        a.je(label)?;
        a.call(qword_ptr(rcx))?;
        a.mov(rax, ptr(r15 + 16))?;
        a.set_label(&mut label)?;
        a.mov(rdi, r15)?;
        a.call(qword_ptr(rax))
    };
    check(&[&loaded_on_both], &[(0, 18)]);
    let loaded_before_a_loop = |a: &mut CodeAssembler| {
        let mut top = a.create_label();
        a.mov(rax, ptr(rdi + 16))?;
        a.set_label(&mut top)?;
        a.call(qword_ptr(rax))?;
        a.jne(top)
    };
    check(&[&loaded_before_a_loop], &[]);
    let loaded_on_a_way_that_ends = |a: &mut CodeAssembler| {
        let mut label = a.create_label();
        a.je(label)?;
        a.mov(rax, ptr(rdi + 16))?;
        a.jmp(qword_ptr(r8 + 8))?;
        a.set_label(&mut label)?;
        a.call(qword_ptr(rax))
    };
    check(&[&loaded_on_a_way_that_ends], &[]);
}

#[test]
fn the_callers_of_a_jump_through_the_vtable_are_the_polls() {
    let jump = |a: &mut CodeAssembler| {
        a.mov(rax, ptr(rdi + 16))?;
        a.jmp(qword_ptr(rax))
    };
    let jump_to_jump = |a: &mut CodeAssembler| a.jmp(function(0));
    let callers = |a: &mut CodeAssembler| {
        a.call(function(0))?;
        a.call(function(1))?;
        a.ret()
    };
    check(&[&jump, &jump_to_jump, &callers], &[(2, 0), (2, 5)]);
}

/// The offset of the site after a call at 0.
#[track_caller]
fn check_end(code: Assemble<'_>, expected: u64) {
    let elf = testing::elf(&[code], &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let site = site_after(&image, Probe::PollEnd, function(0)).unwrap();
    assert_eq!(site.address - function(0), expected);
    assert_eq!(site.file_offset, site.address - testing::BASE);
}

#[test]
fn the_end_is_the_first_emulated_instruction() {
    let branch = |a: &mut CodeAssembler| {
        let mut end = a.create_label();
        a.call(qword_ptr(rax))?;
        a.test(al, al)?;
        a.je(end)?;
        a.push(rax)?;
        a.set_label(&mut end)?;
        a.ret()
    };
    check_end(&branch, 4);
    check_end(
        &|a| {
            a.call(qword_ptr(rax))?;
            a.mov(rdi, rbx)?;
            a.push(rax)?;
            a.ret()
        },
        5,
    );
}

#[test]
fn a_moved_stack_or_another_way_on_ends_the_search() {
    check_end(
        &|a| {
            a.call(qword_ptr(rax))?;
            a.add(rsp, 8)?;
            a.push(rax)?;
            a.ret()
        },
        2,
    );
    check_end(
        &|a| {
            a.call(qword_ptr(rax))?;
            a.mov(rdi, rbx)?;
            a.ret()?;
            a.push(rax)
        },
        2,
    );
    check_end(
        &|a| {
            a.call(qword_ptr(rax))?;
            a.call(qword_ptr(rax))?;
            a.push(rax)
        },
        2,
    );
    let far = |a: &mut CodeAssembler| {
        a.call(qword_ptr(rax))?;
        for _ in 0..MAX_DISTANCE {
            a.mov(rdi, rbx)?;
        }
        a.push(rax)
    };
    check_end(&far, 2);
}

#[test]
fn a_call_at_the_end_of_the_function_has_no_end() {
    let elf = testing::elf(&[&|a| a.call(qword_ptr(rax))], &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    assert_eq!(site_after(&image, Probe::PollEnd, function(0)), None);
}
