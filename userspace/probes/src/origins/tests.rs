//! Programs of a few functions that spawn.

use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

use super::*;
use crate::testing::{self, Assemble, DATA, Linking, Word, function};
use crate::vtables;

const OTHER: u64 = 0;
const PANIC: u64 = 1;
/// The first function of a test.
const OWN: u64 = 2;

const FIRST: u64 = DATA;
const SECOND: u64 = DATA + 80;
const COUNTER: u64 = DATA + 160;
const HERE: u64 = DATA + 168;
const THERE: u64 = DATA + 192;
const IN_TOKIO: u64 = DATA + 216;
const TEXTS: u64 = DATA + 240;

type Written = Result<(), IcedError>;

fn words(last: &[Word]) -> Vec<Word> {
    let vtable = || {
        let slots = [Word::Address(function(OTHER)); 7];
        slots.into_iter().chain([200, 32, 40].map(Word::Plain))
    };
    let text = |text: &[u8; 8]| Word::Plain(u64::from_le_bytes(*text));
    let location = |at: u64, length: u64, line: u64| {
        let place = Word::Plain(line | 9 << 32);
        [Word::Address(TEXTS + at), Word::Plain(length), place]
    };
    let mut words: Vec<_> = vtable().chain(vtable()).collect();
    words.push(Word::Plain(1));
    words.extend(location(0, 8, 7));
    words.extend(location(0, 8, 8));
    words.extend(location(8, 16, 9));
    words.extend([text(b"src/a.rs"), text(b"tokio-1/"), text(b"src/b.rs")]);
    words.extend(last);
    words
}

/// The lines where the tasks of the two vtables are spawned.
fn lines_of(functions: &[Assemble<'_>], last: &[Word], linking: Linking) -> [Vec<u32>; 2] {
    let panic: Assemble<'_> = &|a| {
        a.call(function(OTHER))?;
        a.ud2()
    };
    let first: [Assemble<'_>; 2] = [&|a| a.ret(), panic];
    let functions: Vec<_> = first.iter().chain(functions).copied().collect();
    let elf = testing::elf(&functions, &words(last), linking);
    let image = Image::parse(&elf).unwrap();
    let mut found = vtables::find(&image).unwrap();
    let mut origins = Origins::new(&image, &found);
    let mut instructions = Vec::new();
    for range in image.functions() {
        code::decode(&image, range, &mut instructions);
        origins.visit(&image, range, &instructions);
    }
    origins.finish(&image, &mut found);
    let line = |place: &String| {
        let place = place.strip_prefix("src/a.rs:").unwrap();
        place.strip_suffix(":9").unwrap().parse().unwrap()
    };
    let lines = |index: usize| found[index].vtable.spawned_at.iter().map(line).collect();
    [lines(0), lines(1)]
}

#[track_caller]
fn check(functions: &[Assemble<'_>], expected: [&[u32]; 2]) {
    check_with(functions, &[], expected);
}

#[track_caller]
fn check_with(functions: &[Assemble<'_>], last: &[Word], expected: [&[u32]; 2]) {
    for linking in [Linking::Fixed, Linking::Rela] {
        assert_eq!(lines_of(functions, last, linking), expected, "{linking:?}");
    }
}

/// `lea register, [rip+x]` where that is `address`.
fn lea(a: &mut CodeAssembler, register: Register, address: u64) -> Written {
    let place = MemoryOperand::with_base_displ(Register::RIP, address.cast_signed());
    a.add_instruction(Instruction::with2(Code::Lea_r64_m, register, place)?)
}

fn draw(a: &mut CodeAssembler) -> Written {
    lea(a, Register::RCX, COUNTER)?;
    a.mov(eax, 1)?;
    a.lock().xadd(qword_ptr(rcx), rax)
}

/// As `spawn` is on its own: the location is the second argument.
fn spawn_of(vtable: u64) -> impl Fn(&mut CodeAssembler) -> Written {
    move |a| {
        let mut outside = a.create_label();
        a.push(rbx)?;
        a.mov(rbx, rsi)?;
        draw(a)?;
        a.test(rdi, rdi)?;
        a.je(outside)?;
        lea(a, Register::RDX, vtable)?;
        a.pop(rbx)?;
        a.ret()?;
        a.set_label(&mut outside)?;
        a.mov(rdx, rbx)?;
        a.call(function(PANIC))
    }
}

/// As it is inlined.
fn inlined(a: &mut CodeAssembler, vtable: u64, location: u64) -> Written {
    let mut inside = a.create_label();
    draw(a)?;
    a.test(rdi, rdi)?;
    a.jne(inside)?;
    lea(a, Register::RDX, location)?;
    a.call(function(PANIC))?;
    a.ud2()?;
    a.set_label(&mut inside)?;
    lea(a, Register::RDX, vtable)
}

fn user(callee: u64, location: u64) -> impl Fn(&mut CodeAssembler) -> Written {
    move |a| {
        lea(a, Register::RSI, location)?;
        a.call(function(callee))?;
        a.ret()
    }
}

#[test]
fn what_the_callers_pass_is_the_place_and_all_of_them_are() {
    let spawn = spawn_of(FIRST);
    let (here, there) = (user(OWN, HERE), user(OWN, THERE));
    check(&[&spawn, &here], [&[7], &[]]);
    check(&[&spawn, &here, &there], [&[7, 8], &[]]);
}

#[test]
fn a_place_is_passed_on_and_a_jump_passes_it_too() {
    let spawn = spawn_of(FIRST);
    let through = |a: &mut CodeAssembler| a.jmp(function(OWN));
    let here = user(OWN + 1, HERE);
    check(&[&spawn, &through, &here], [&[7], &[]]);
}

#[test]
fn where_one_caller_is_not_known_there_is_none() {
    let spawn = spawn_of(FIRST);
    let here = user(OWN, HERE);
    let from_memory = |a: &mut CodeAssembler| {
        a.mov(rsi, ptr(rdi))?;
        a.call(function(OWN))?;
        a.ret()
    };
    let takes = |a: &mut CodeAssembler| {
        lea(a, Register::RAX, function(OWN))?;
        a.ret()
    };
    let in_tokio = user(OWN, IN_TOKIO);
    for other in [&from_memory as Assemble<'_>, &takes, &in_tokio] {
        check(&[&spawn, &here, other], [&[], &[]]);
    }
    check_with(
        &[&spawn, &here],
        &[Word::Address(function(OWN))],
        [&[], &[]],
    );
}

#[test]
fn an_inlined_spawn_has_its_own_place_whatever_else_the_function_does() {
    let both = |a: &mut CodeAssembler| {
        let mut goes_on = a.create_label();
        lea(a, Register::RDX, THERE)?;
        a.call(function(OTHER))?;
        inlined(a, FIRST, HERE)?;
        a.test(rax, rax)?;
        a.jne(goes_on)?;
        lea(a, Register::RDX, IN_TOKIO)?;
        a.call(function(PANIC))?;
        a.set_label(&mut goes_on)?;
        inlined(a, SECOND, THERE)?;
        a.ret()
    };
    check(&[&both], [&[7], &[8]]);
}

/// As with `Handle::spawn`, which cannot panic: the place in the callers is of
/// something else, and so is that of a spawn before.
#[test]
fn a_spawn_without_a_place_does_not_get_anothers() {
    let without = |a: &mut CodeAssembler| {
        draw(a)?;
        lea(a, Register::RDX, SECOND)?;
        a.ret()
    };
    let cell_only = |a: &mut CodeAssembler| {
        lea(a, Register::RDX, SECOND)?;
        a.ret()
    };
    let caller = |a: &mut CodeAssembler| {
        inlined(a, FIRST, HERE)?;
        lea(a, Register::RSI, THERE)?;
        a.call(function(OWN))?;
        a.ret()
    };
    check(&[&without, &caller], [&[7], &[]]);
    check(&[&cell_only, &caller], [&[7], &[]]);
}

#[test]
fn functions_that_call_each_other_in_a_circle_end() {
    let spawn = spawn_of(FIRST);
    let one = |a: &mut CodeAssembler| {
        a.call(function(OWN + 2))?;
        a.jmp(function(OWN))
    };
    let other = |a: &mut CodeAssembler| a.jmp(function(OWN + 1));
    check(&[&spawn, &one, &other], [&[], &[]]);
}
