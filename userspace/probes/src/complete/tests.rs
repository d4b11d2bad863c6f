use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::*;
use crate::testing::{self, Assemble, Linking, function};

/// Offset of the place behind the change in the first function, and the
/// register that has the header there.
fn behind(code: Assemble<'_>) -> Option<(u64, Register)> {
    let functions: [Assemble<'_>; 3] = [code, &transition, &|a| a.ret()];
    let elf = testing::elf(&functions, &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let mut search = Search {
        image: &image,
        functions: HashMap::new(),
        named: BTreeSet::new(),
    };
    let entry = search.behind_change(function(0))?;
    Some((entry.instruction.ip() - function(0), entry.header))
}

fn exchange(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut top = a.create_label();
    a.mov(rax, ptr(rdi))?;
    a.set_label(&mut top)?;
    a.mov(rcx, rax)?;
    a.xor(rcx, 3)?;
    a.lock().cmpxchg(qword_ptr(rdi), rcx)?;
    a.jne(top)
}

fn transition(a: &mut CodeAssembler) -> Result<(), IcedError> {
    exchange(a)?;
    a.ret()
}

#[test]
fn a_place_behind_a_loop_of_its_own() {
    let code = |a: &mut CodeAssembler| {
        let mut other = a.create_label();
        exchange(a)?;
        a.test(al, 8)?;
        a.jne(other)?;
        a.call(function(2))?;
        a.set_label(&mut other)?;
        a.ret()
    };
    // mov 3, mov 3, xor 4, cmpxchg 5, jne 2, test 2
    assert_eq!(behind(&code), Some((19, Register::RDI)));
}

#[test]
fn a_place_behind_the_call_of_a_transition() {
    let code = |a: &mut CodeAssembler| {
        let mut other = a.create_label();
        a.push(rbx)?;
        a.mov(rbx, rdi)?;
        a.call(function(1))?;
        a.test(al, 8)?;
        a.jne(other)?;
        a.call(function(2))?;
        a.set_label(&mut other)?;
        a.pop(rbx)?;
        a.ret()
    };
    // push 1, mov 3, call 5, test 2
    assert_eq!(behind(&code), Some((11, Register(3))));
}

#[test]
fn no_place_where_the_task_may_be_freed_before() {
    let code = |a: &mut CodeAssembler| {
        let mut other = a.create_label();
        exchange(a)?;
        a.lock().sub(qword_ptr(rdi), 64)?;
        a.jne(other)?;
        a.call(function(2))?;
        a.set_label(&mut other)?;
        a.ret()
    };
    assert_eq!(behind(&code), None);
}

#[test]
fn no_place_where_the_header_is_gone() {
    let code = |a: &mut CodeAssembler| {
        a.push(rbx)?;
        a.call(function(1))?;
        a.call(function(2))?;
        a.pop(rbx)?;
        a.ret()
    };
    assert_eq!(behind(&code), None);
}

#[test]
fn no_place_where_a_way_leaves_the_state_as_it_is() {
    let code = |a: &mut CodeAssembler| {
        let mut other = a.create_label();
        a.push(rbx)?;
        a.mov(rbx, rdi)?;
        a.test(rdi, rdi)?;
        a.je(other)?;
        a.call(function(1))?;
        a.set_label(&mut other)?;
        a.call(function(2))?;
        a.pop(rbx)?;
        a.ret()
    };
    assert_eq!(behind(&code), None);
}

#[test]
fn no_place_where_the_state_changes_twice() {
    let code = |a: &mut CodeAssembler| {
        a.push(rbx)?;
        a.mov(rbx, rdi)?;
        a.call(function(1))?;
        a.call(function(1))?;
        a.call(function(2))?;
        a.pop(rbx)?;
        a.ret()
    };
    assert_eq!(behind(&code), None);
}
