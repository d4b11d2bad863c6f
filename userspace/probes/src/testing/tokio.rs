//! A program with the shapes of Tokio's runtime, in fourteen small functions.
//!
//! In: its task vtables. Out: an ELF file in which every probe but the spawn has
//! sites. Never: code that could run.

use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand};

use super::sections::with_sections;
use super::{Assemble, DATA, Linking, Word, elf, function};

// Indices of the small program's functions.
pub(crate) const POLL: u64 = 0;
pub(crate) const SHUTDOWN: u64 = 1;
pub(crate) const COMPLETE: u64 = 2;
pub(crate) const TRANSITION: u64 = 3;
pub(crate) const WORKER: u64 = 4;
pub(crate) const CLONE: u64 = 5;
pub(crate) const WAKE: u64 = 6;
pub(crate) const WAKE_BY_REF: u64 = 7;
pub(crate) const PARK: u64 = 8;
pub(crate) const OTHER: u64 = 9;
pub(crate) const BLOCKING_POLL: u64 = 10;
pub(crate) const BLOCKING_COMPLETE: u64 = 11;
pub(crate) const BLOCKING_SHUTDOWN: u64 = 12;

pub(crate) const ALIAS: u64 = 13;

pub(crate) const WAKER_VTABLE: u64 = DATA;
pub(crate) const SLOTS: u64 = DATA + 32;
pub(crate) const VTABLES: u64 = DATA + 48;
pub(crate) const VTABLE_BYTES: u64 = 80;

/// A task vtable: indices of its poll and shutdown functions, offsets of
/// scheduler and id.
pub(crate) type Vtable = (u64, u64, u64, u64);

pub(crate) const TASK: Vtable = (POLL, SHUTDOWN, 32, 40);
pub(crate) const BLOCKING: Vtable = (BLOCKING_POLL, BLOCKING_SHUTDOWN, 32, 48);

/// `[rip+x]` where that is `address`.
fn relative(address: u64) -> MemoryOperand {
    MemoryOperand::with_base_displ(iced_x86::Register::RIP, address.cast_signed())
}

fn poll_of(complete: u64) -> impl Fn(&mut CodeAssembler) -> Result<(), IcedError> {
    move |a| {
        a.push(rbx)?;
        a.mov(rbx, rdi)?;
        a.call(function(complete))?;
        a.pop(rbx)?;
        a.ret()
    }
}

fn shutdown_of(complete: u64) -> impl Fn(&mut CodeAssembler) -> Result<(), IcedError> {
    move |a| a.jmp(function(complete))
}

/// Calls the transition through a pointer table, then something else.
fn complete(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.push(rbx)?;
    a.mov(rbx, rdi)?;
    a.add_instruction(Instruction::with1(Code::Call_rm64, relative(SLOTS))?)?;
    a.call(function(OTHER))?;
    a.pop(rbx)?;
    a.ret()
}

fn transition(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut top = a.create_label();
    let mut panic = a.create_label();
    a.mov(rax, ptr(rdi))?;
    a.set_label(&mut top)?;
    a.mov(rcx, rax)?;
    a.xor(rcx, 3)?;
    a.lock().cmpxchg(qword_ptr(rdi), rcx)?;
    a.jne(top)?;
    a.test(al, 1)?;
    a.je(panic)?;
    a.ret()?;
    a.set_label(&mut panic)?;
    a.call(function(OTHER))
}

fn worker(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut end = a.create_label();
    a.mov(rax, ptr(rbx + 16))?;
    a.mov(rdi, rbx)?;
    a.call(qword_ptr(rax))?;
    a.test(al, al)?;
    a.je(end)?;
    a.mov(edx, 1_000_000_000)?;
    a.call(function(PARK))?;
    a.push(rax)?;
    a.xor(edx, edx)?;
    a.call(function(PARK))?;
    a.set_label(&mut end)?;
    a.ret()
}

fn clone(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(eax, 64)?;
    a.lock().xadd(qword_ptr(rdi), rax)?;
    a.add_instruction(Instruction::with2(
        Code::Lea_r64_m,
        iced_x86::Register::RAX,
        relative(WAKER_VTABLE),
    )?)?;
    a.ret()
}

fn wake_by_ref(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut top = a.create_label();
    a.mov(rax, ptr(rdi))?;
    a.set_label(&mut top)?;
    a.lock().cmpxchg(qword_ptr(rdi), rcx)?;
    a.jne(top)?;
    a.ret()
}

fn push_and_return(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.push(rbx)?;
    a.pop(rbx)?;
    a.ret()
}

pub(crate) fn program(vtables: &[Vtable], linking: Linking) -> Vec<u8> {
    let (poll, blocking_poll) = (poll_of(COMPLETE), poll_of(BLOCKING_COMPLETE));
    let (shutdown, blocking_shutdown) = (shutdown_of(COMPLETE), shutdown_of(BLOCKING_COMPLETE));
    let functions: [Assemble<'_>; 14] = [
        &poll,
        &shutdown,
        &complete,
        &transition,
        &worker,
        &clone,
        &push_and_return,
        &wake_by_ref,
        &push_and_return,
        &push_and_return,
        &blocking_poll,
        &complete,
        &blocking_shutdown,
        &|a| a.jmp(function(POLL)),
    ];
    let waker = [CLONE, WAKE, WAKE_BY_REF, OTHER].map(|slot| Word::Address(function(slot)));
    let slots = [Word::Address(function(TRANSITION)), Word::Plain(7)];
    let words = |&(poll, shutdown, scheduler, id): &Vtable| {
        let slots = [poll, OTHER, OTHER, OTHER, OTHER, OTHER, shutdown];
        let slots = slots.map(|slot| Word::Address(function(slot)));
        slots
            .into_iter()
            .chain([200, scheduler, id].map(Word::Plain))
    };
    let words: Vec<_> = waker
        .into_iter()
        .chain(slots)
        .chain(vtables.iter().flat_map(words))
        .collect();
    elf(&functions, &words, linking)
}

pub(crate) fn small_program(linking: Linking) -> Vec<u8> {
    program(&[TASK, BLOCKING], linking)
}

/// The small program, with a symbol for each function that one is wanted of.
pub(crate) fn small_program_with_symbols(linking: Linking) -> Vec<u8> {
    let hash = "17h0123456789abcdefE";
    let bind = format!("_ZN5tokio7runtime4task4list19OwnedTasks$LT$S$GT$10bind_inner{hash}");
    let panic = format!("_ZN3std9panicking15panic_with_hook{hash}");
    let poll = "_RINvNtNtNtC5tokio7runtime4task3raw4pollNtC3app4WorkNtC3app4SendE";
    let park = format!("_ZN5tokio7runtime9scheduler14current_thread7Context4park{hash}");
    let names = [
        (poll, POLL, 16),
        (&bind, OTHER, 3),
        (&panic, WAKE, 3),
        (&park, PARK, 3),
        ("_Unwind_RaiseException", ALIAS, 5),
    ];
    let functions = names.map(|(name, index, bytes)| (name, function(index), bytes));
    with_sections(small_program(linking), &functions)
}
