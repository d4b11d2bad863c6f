use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand};

use crate::plan::{Plan, Probe};
use crate::testing::{self, Assemble, DATA, Linking, Word, function};

// Indices of the program's functions.
const RAW_POLL: u64 = 0;
const HEADER: u64 = 1;
const CLONE: u64 = 2;
const RAW_WAKER: u64 = 3;
const REF_INC: u64 = 4;
const FETCH_ADD: u64 = 5;
const COMPLETE: u64 = 6;
const TRANSITION: u64 = 7;
const FETCH_XOR: u64 = 8;
const POLL: u64 = 9;
const OTHER: u64 = 10;

const WAKER_VTABLE: u64 = DATA;
const SLOT: u64 = DATA + 32;

/// `[rip+x]` where that is `address`.
fn relative(address: u64) -> MemoryOperand {
    MemoryOperand::with_base_displ(iced_x86::Register::RIP, address.cast_signed())
}

/// Calls the function in [`SLOT`] from a register, as `call` does where one is needed.
fn call_slot(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let register = iced_x86::Register::RAX;
    let load = Instruction::with2(Code::Mov_r64_rm64, register, relative(SLOT))?;
    a.add_instruction(load)?;
    a.call(rax)
}

/// What of `RawTask::poll` is varied: the slot that is read, the field of the header, the
/// function of the vtable.
fn raw_poll_of(
    read: i32,
    field: i32,
    slot: i32,
) -> impl Fn(&mut CodeAssembler) -> Result<(), IcedError> {
    move |a| {
        a.sub(rsp, 24)?;
        a.mov(qword_ptr(rsp + 8), rdi)?;
        a.lea(rdi, ptr(rsp + 8))?;
        a.call(function(HEADER))?;
        a.mov(rax, ptr(rax + field))?;
        a.mov(qword_ptr(rsp + 16), rax)?;
        a.mov(rax, ptr(rax + slot))?;
        a.mov(rdi, ptr(rsp + read))?;
        a.call(rax)?;
        a.add(rsp, 24)?;
        a.ret()
    }
}

fn header(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(qword_ptr(rsp - 16), rdi)?;
    a.mov(rax, ptr(rdi))?;
    a.ret()
}

fn clone(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.sub(rsp, 24)?;
    a.mov(qword_ptr(rsp), rdi)?;
    a.call(function(REF_INC))?;
    a.mov(rdi, ptr(rsp))?;
    call_slot(a)?;
    a.add(rsp, 24)?;
    a.ret()
}

fn raw_waker(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let argument = iced_x86::Register::RSI;
    let table = Instruction::with2(Code::Lea_r64_m, argument, relative(WAKER_VTABLE))?;
    a.add_instruction(table)?;
    a.call(function(OTHER))?;
    a.ret()
}

/// Hands a number to a function, then does more.
fn hands(number: u32, to: u64) -> impl Fn(&mut CodeAssembler) -> Result<(), IcedError> {
    move |a| {
        a.sub(rsp, 24)?;
        a.mov(esi, number)?;
        a.mov(edx, 3)?;
        a.call(function(to))?;
        a.add(rsp, 24)?;
        a.ret()
    }
}

fn fetch_add(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(qword_ptr(rsp - 64), rsi)?;
    a.mov(qword_ptr(rsp - 56), rdi)?;
    a.jmp(rax)?;
    a.mov(rcx, ptr(rsp - 56))?;
    a.mov(rax, ptr(rsp - 64))?;
    a.lock().xadd(qword_ptr(rcx), rax)?;
    a.ret()
}

/// With the slot that the number is read from; it is saved at `rsp - 48`.
fn fetch_xor_of(slot: i32) -> impl Fn(&mut CodeAssembler) -> Result<(), IcedError> {
    move |a| {
        let mut top = a.create_label();
        a.mov(qword_ptr(rsp - 48), rsi)?;
        a.mov(qword_ptr(rsp - 40), rdi)?;
        a.set_label(&mut top)?;
        a.mov(rcx, ptr(rsp - 40))?;
        a.mov(rsi, ptr(rsp + slot))?;
        a.mov(rdx, rax)?;
        a.xor(rdx, rsi)?;
        a.lock().cmpxchg(qword_ptr(rcx), rdx)?;
        a.jne(top)?;
        a.ret()
    }
}

/// Calls another function and one more.
fn calls(callee: u64) -> impl Fn(&mut CodeAssembler) -> Result<(), IcedError> {
    move |a| {
        a.sub(rsp, 24)?;
        a.call(function(callee))?;
        a.call(function(OTHER))?;
        a.add(rsp, 24)?;
        a.ret()
    }
}

fn other(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.push(rbx)?;
    a.pop(rbx)?;
    a.ret()
}

/// The sites of a program whose function `index` is `varied`.
#[track_caller]
fn check(index: u64, varied: Assemble<'_>, expected: &[(Probe, u64, u64)]) {
    let (raw_poll, ref_inc) = (raw_poll_of(8, 16, 0), hands(64, FETCH_ADD));
    let (transition, fetch_xor) = (hands(3, FETCH_XOR), fetch_xor_of(-48));
    let (complete, poll) = (calls(TRANSITION), calls(COMPLETE));
    let mut functions: [Assemble<'_>; 11] = [
        &raw_poll,
        &header,
        &clone,
        &raw_waker,
        &ref_inc,
        &fetch_add,
        &complete,
        &transition,
        &fetch_xor,
        &poll,
        &other,
    ];
    functions[usize::try_from(index).unwrap()] = varied;
    assert_eq!(places(&scan(&functions)), expected);
}

fn scan(functions: &[Assemble<'_>]) -> Plan {
    let waker = [CLONE, OTHER, OTHER, OTHER].map(|slot| Word::Address(function(slot)));
    let slots = [Word::Address(function(RAW_WAKER)), Word::Plain(7)];
    let vtable = [POLL, OTHER, OTHER, OTHER, OTHER, OTHER, POLL];
    let vtable = vtable.map(|slot| Word::Address(function(slot)));
    let offsets = [200, 32, 40].map(Word::Plain);
    let words: Vec<_> = waker
        .into_iter()
        .chain(slots)
        .chain(vtable)
        .chain(offsets)
        .collect();
    let elf = testing::elf(functions, &words, Linking::Fixed);
    crate::scan(&elf).unwrap()
}

/// Sites as (probe, function, offset in it).
fn places(plan: &Plan) -> Vec<(Probe, u64, u64)> {
    let place = |address: u64| {
        let at = address - testing::CODE;
        (at / testing::FUNCTION_BYTES, at % testing::FUNCTION_BYTES)
    };
    let places = plan.sites.iter().map(|site| {
        let (function, offset) = place(site.address);
        (site.probe, function, offset)
    });
    places.collect()
}

const ALL: [(Probe, u64, u64); 4] = [
    (Probe::PollStart, POLL, 4),
    (Probe::PollEnd, RAW_POLL, 38),
    (Probe::Wake, OTHER, 0),
    (Probe::Terminate, COMPLETE, 4),
];

#[test]
fn a_program_without_optimization_needs_no_symbols() {
    check(OTHER, &other, &ALL);
}

#[test]
fn another_field_slot_or_argument_is_no_poll() {
    let without = &ALL[2..];
    check(RAW_POLL, &raw_poll_of(16, 16, 0), without);
    check(RAW_POLL, &raw_poll_of(8, 24, 0), without);
    check(RAW_POLL, &raw_poll_of(8, 16, 8), without);
    let reads_more = |a: &mut CodeAssembler| {
        a.mov(rax, ptr(rdi))?;
        a.mov(rax, ptr(rax))?;
        a.ret()
    };
    check(HEADER, &reads_more, without);
}

#[test]
fn another_number_is_no_reference_and_no_end() {
    let without_wakes = [ALL[0], ALL[1], ALL[3]];
    check(REF_INC, &hands(1, FETCH_ADD), &without_wakes);
    check(REF_INC, &hands(64, FETCH_XOR), &without_wakes);
    check(TRANSITION, &hands(32, FETCH_XOR), &ALL[..3]);
    check(TRANSITION, &hands(3, FETCH_ADD), &ALL[..3]);
    check(FETCH_XOR, &fetch_xor_of(-56), &ALL[..3]);
}
