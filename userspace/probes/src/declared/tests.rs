use iced_x86::code_asm::*;

use super::*;
use crate::testing::{self, Assemble, Linking, function};

/// Registers of the first two arguments.
const ARGUMENTS: u32 = 1 << 7 | 1 << 6;

fn with<T>(code: Assemble<'_>, check: impl FnOnce(&Code<'_>, &Function) -> T) -> T {
    let elf = testing::elf(&[code], &[], Linking::Fixed);
    let code = Code::parse(&elf, None).expect("an ELF file");
    let function = Function {
        address: function(0),
        bytes: 0,
        name: String::new(),
        symbol: String::new(),
    };
    check(&code, &function)
}

/// Offset of the begin's place, bytes on the stack.
fn begin(code: Assemble<'_>) -> (u64, u16) {
    with(code, |code, function| {
        let place = code.entry(function, ARGUMENTS).expect("a place");
        (place.address - function.address, place.pushed)
    })
}

#[test]
fn the_begin_is_the_first_instruction_or_a_cheaper_one_behind_it() {
    let push = begin(&|a| {
        a.push(rbx)?;
        a.ret()
    });
    assert_eq!(push, (0, 0));
    let behind = begin(&|a| {
        a.sub(rsp, 24)?;
        a.mov(rax, ptr(rdi))?;
        a.push(rbx)?;
        a.ret()
    });
    assert_eq!(behind, (7, 24));
}

#[test]
fn nothing_that_is_read_has_changed_there() {
    let register = begin(&|a| {
        a.mov(rsi, ptr(rdi))?;
        a.push(rbx)?;
        a.ret()
    });
    assert_eq!(register, (0, 0));
    let memory = begin(&|a| {
        a.mov(ptr(rdi), rax)?;
        a.push(rbx)?;
        a.ret()
    });
    assert_eq!(memory, (0, 0));
}

#[test]
fn no_jump_leads_there() {
    let again = begin(&|a| {
        let mut top = a.create_label();
        a.mov(rax, ptr(rdi))?;
        a.set_label(&mut top)?;
        a.push(rbx)?;
        a.pop(rbx)?;
        a.jne(top)?;
        a.ret()
    });
    assert_eq!(again, (0, 0));
}

#[test]
fn returns_and_jumps_out_are_told() {
    let exits = with(
        &|a| {
            let mut other = a.create_label();
            a.test(rdi, rdi)?;
            a.je(other)?;
            a.ret()?;
            a.set_label(&mut other)?;
            a.test(rsi, rsi)?;
            a.jne(function(3))?;
            a.ret()
        },
        |code, function| {
            let exits = code.exits(function);
            let are_stepped = |place: &Place| place.class == InstructionClass::SingleStepped;
            assert!(exits.places.iter().all(are_stepped));
            exits
        },
    );
    assert_eq!(exits.places.len(), 2);
    assert_eq!((exits.jumps, exits.is_whole), (1, true));
}
