use iced_x86::code_asm::*;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

use super::*;
use crate::testing::expected::{self, Expect, OF_OTHER_FILE, PARKER};
use crate::testing::{self, Assemble, Linking, Word, function};

fn find(functions: &[Assemble<'_>], words: &[Word]) -> (Vec<Site>, Vec<Miss>) {
    let elf = testing::elf(functions, words, Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let mut shapes = ParkCalls::default();
    let mut expectations = Expectations::default();
    let mut instructions = Vec::new();
    for range in image.functions() {
        assert!(code::decode(&image, range, &mut instructions));
        shapes.visit(range, &instructions);
        expectations.visit(&image, range, &instructions);
    }
    let (mut sites, mut misses) = (Vec::new(), Vec::new());
    super::find(&image, &expectations, &shapes, &mut sites, &mut misses);
    // There is no current-thread scheduler.
    let own = |miss: &Miss| {
        let (own, _) = miss.reason.split_once("of current-thread runtimes")?;
        let reason = own.trim_end_matches("; ").to_owned();
        (!own.is_empty()).then_some(Miss { reason, ..*miss })
    };
    (sites, misses.iter().filter_map(own).collect())
}

/// Sites as (probe, function, offset in it).
#[track_caller]
fn check(functions: &[Assemble<'_>], expected: &[(Probe, u64, u64)]) {
    check_with(functions, &[], expected);
}

#[track_caller]
fn check_with(functions: &[Assemble<'_>], words: &[Word], expected: &[(Probe, u64, u64)]) {
    let (sites, misses) = find(functions, words);
    let place = |site: &Site| {
        let at = site.address - testing::CODE;
        (
            site.probe,
            at / testing::FUNCTION_BYTES,
            at % testing::FUNCTION_BYTES,
        )
    };
    assert_eq!(sites.iter().map(place).collect::<Vec<_>>(), expected);
    assert_eq!(misses.len(), if expected.is_empty() { 2 } else { 0 });
    let is_told = |site: &Site| site.scheduler == Some(Scheduler::MultiThread);
    assert!(sites.iter().all(is_told));
}

fn park(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(edx, 1_000_000_000)?;
    a.mov(rdi, rbx)?;
    a.call(function(0))?;
    a.mov(rsi, rax)?;
    a.jne(function(0))
}

fn park_yield(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.xor(edx, edx)?;
    a.call(function(0))?;
    a.nop()
}

#[test]
fn the_function_called_with_and_without_a_timeout_is_the_park() {
    let worker = |a: &mut CodeAssembler| {
        park(a)?;
        park_yield(a)
    };
    check(
        &[&|a| a.ret(), &worker],
        &[(Probe::Park, 1, 8), (Probe::Unpark, 1, 16)],
    );
}

#[test]
fn the_yield_may_be_a_function_of_its_own() {
    let worker = |a: &mut CodeAssembler| {
        park(a)?;
        a.call(function(2))
    };
    let tail_call = |a: &mut CodeAssembler| {
        a.xor(edx, edx)?;
        a.jmp(function(0))
    };
    let expected = [(Probe::Park, 1, 8), (Probe::Unpark, 1, 16)];
    check(&[&|a| a.ret(), &worker, &park_yield], &expected);
    check(&[&|a| a.ret(), &worker, &tail_call], &expected);
}

#[test]
fn the_driver_parked_by_the_park_is_not_it() {
    let worker = |a: &mut CodeAssembler| {
        a.mov(edx, 1_000_000_000)?;
        a.call(function(2))?;
        a.push(rax)?;
        a.xor(edx, edx)?;
        a.call(function(2))
    };
    let park_of_driver = |a: &mut CodeAssembler| {
        park(a)?;
        park_yield(a)
    };
    let expected = [(Probe::Park, 1, 5), (Probe::Unpark, 1, 10)];
    check(&[&|a| a.ret(), &worker, &park_of_driver], &expected);
}

#[test]
fn one_kind_of_call_or_two_callers_are_not_enough() {
    check(&[&|a| a.ret(), &park], &[]);
    check(&[&|a| a.ret(), &park_yield], &[]);
    check(&[&|a| a.ret(), &park, &park_yield], &[]);
}

#[test]
fn an_argument_set_before_another_call_does_not_count() {
    let two_calls = |a: &mut CodeAssembler| {
        a.mov(edx, 1_000_000_000)?;
        a.call(function(2))?;
        a.call(function(0))?;
        park_yield(a)
    };
    check(&[&|a| a.ret(), &two_calls, &|a| a.ret()], &[]);
}

#[test]
fn a_park_without_an_end_is_left_out_with_its_pair() {
    let ends_in_park = |a: &mut CodeAssembler| {
        park_yield(a)?;
        a.mov(edx, 1_000_000_000)?;
        a.call(function(0))
    };
    let (sites, misses) = find(&[&|a| a.ret(), &ends_in_park], &[]);
    assert_eq!(sites, []);
    let reasons: Vec<_> = misses.iter().map(|miss| miss.reason.as_str()).collect();
    assert_eq!(reasons, ["0 of 1 park calls have a usable end"; 2]);
}

/// A function that takes the parker: `expect` is in it.
fn takes(what: Expect) -> impl Fn(&mut CodeAssembler) -> Result<(), IcedError> {
    move |a| {
        let mut none = a.create_label();
        a.test(rdi, rdi)?;
        a.je(none)?;
        a.ret()?;
        a.set_label(&mut none)?;
        expected::panic(a, what, 4)
    }
}

/// Calls functions 0 and 1 both with and without a timeout.
fn calls_both(a: &mut CodeAssembler) -> Result<(), IcedError> {
    for called in [0, 1] {
        a.mov(edx, 1_000_000_000)?;
        a.call(function(called))?;
        a.jne(function(0))?;
        a.xor(edx, edx)?;
        a.call(function(called))?;
        a.nop()?;
    }
    Ok(())
}

#[test]
fn what_takes_the_parker_is_the_park_among_several_of_the_shape() {
    let (park, shutdown, other) = (takes(PARKER[0]), takes(PARKER[1]), takes(OF_OTHER_FILE));
    let words = expected::words();
    let both: [Assemble<'_>; 5] = [&|a| a.ret(), &|a| a.ret(), &calls_both, &shutdown, &|a| {
        a.ret()
    }];
    check_with(&both, &words, &[]);
    let mut told = both;
    told[0] = &park;
    let pair = [(Probe::Park, 2, 5), (Probe::Unpark, 2, 10)];
    check_with(&told, &words, &pair);
    told[1] = &other;
    check_with(&told, &words, &pair);
}

#[test]
fn a_park_with_an_unclear_call_is_left_out() {
    let (park, shutdown) = (takes(PARKER[0]), takes(PARKER[1]));
    let words = expected::words();
    let unclear = |a: &mut CodeAssembler| {
        a.mov(edx, ecx)?;
        a.call(function(0))?;
        a.nop()
    };
    let loads = |a: &mut CodeAssembler| {
        expected::load(a, ebx, function(0))?;
        a.ret()
    };
    let ret: Assemble<'_> = &|a| a.ret();
    let of = |other| {
        [
            &park as Assemble<'_>,
            ret,
            &calls_both,
            &shutdown,
            ret,
            other,
        ]
    };
    let pair = [(Probe::Park, 2, 5), (Probe::Unpark, 2, 10)];
    check_with(&of(ret), &words, &pair);
    check_with(&of(&unclear), &words, &[]);
    check_with(&of(&loads), &words, &[]);
}

#[test]
fn a_park_within_the_function_that_shuts_down_is_left_out() {
    let takes_both = |a: &mut CodeAssembler| {
        expected::panic(a, PARKER[0], 4)?;
        expected::panic(a, PARKER[1], 4)
    };
    let ret: Assemble<'_> = &|a| a.ret();
    let functions: [Assemble<'_>; 5] = [&takes_both, ret, &calls_both, ret, ret];
    check_with(&functions, &expected::words(), &[]);
}

/// As until Rust 1.63: `rdx` is the address of a word that is 0 or 1, and the duration.
#[test]
fn the_timeout_may_be_in_memory() {
    let (park, shutdown) = (takes(PARKER[0]), takes(PARKER[1]));
    let mut words = expected::words();
    let some = testing::DATA + 8 * words.len() as u64;
    words.extend([1, 0, 0, 0].map(Word::Plain));
    let zero = |a: &mut CodeAssembler, constant: u64| {
        let constant = MemoryOperand::with_base_displ(Register::RIP, constant.cast_signed());
        let load = Instruction::with2(Code::Movaps_xmm_xmmm128, Register::XMM0, constant)?;
        a.add_instruction(load)?;
        a.movaps(xmmword_ptr(rsp + 16), xmm0)?;
        a.lea(rdx, ptr(rsp + 16))?;
        a.call(function(0))
    };
    let worker = |constant: u64, slot: i32| {
        move |a: &mut CodeAssembler| {
            a.mov(qword_ptr(rsp + slot), 0)?;
            a.lea(rdx, ptr(rsp + 16))?;
            a.call(function(0))?;
            a.jne(function(0))?;
            zero(a, constant)?;
            a.nop()
        }
    };
    let ret: Assemble<'_> = &|a| a.ret();
    let check = |worker: Assemble<'_>, expected: &[(Probe, u64, u64)]| {
        check_with(&[&park, ret, worker, &shutdown, ret], &words, expected);
    };
    let pair = [(Probe::Park, 2, 14), (Probe::Unpark, 2, 19)];
    check(&worker(some, 16), &pair);
    check(&worker(some + 16, 16), &[]);
    check(&worker(some, 24), &[]);
}

/// Without optimization the nanoseconds are in `ecx`, and come from a call.
#[test]
fn the_timeout_may_be_a_result() {
    let (park, shutdown) = (takes(PARKER[0]), takes(PARKER[1]));
    let words = expected::words();
    let from_millis = |factor: i32| {
        move |a: &mut CodeAssembler| {
            a.imul_3(edx, ecx, 1_000)?;
            a.imul_3(edx, ecx, factor)?;
            a.ret()
        }
    };
    let worker = |millis: u32, slot: i32| {
        move |a: &mut CodeAssembler| {
            a.mov(ecx, 1_000_000_000)?;
            a.call(function(0))?;
            a.jne(function(0))?;
            a.mov(eax, millis)?;
            if millis == 0 {
                a.xor(eax, eax)?;
            }
            a.mov(edi, eax)?;
            a.call(function(1))?;
            a.mov(dword_ptr(rsp + 24), edx)?;
            a.mov(qword_ptr(rsp + 32), rax)?;
            a.jne(function(0))?;
            a.mov(ecx, dword_ptr(rsp + slot))?;
            a.mov(rdx, qword_ptr(rsp + 32))?;
            a.call(function(0))?;
            a.nop()
        }
    };
    let ret: Assemble<'_> = &|a| a.ret();
    let check = |duration: Assemble<'_>, worker: Assemble<'_>, expected: &[_]| {
        check_with(&[&park, duration, worker, &shutdown, ret], &words, expected);
    };
    let pair = [(Probe::Park, 2, 5), (Probe::Unpark, 2, 10)];
    check(&from_millis(1_000_000), &worker(0, 24), &pair);
    check(&from_millis(1_000_000), &worker(1, 24), &[]);
    check(&from_millis(1_000_000), &worker(0, 40), &[]);
    check(&from_millis(1_000), &worker(0, 24), &[]);
}
