use iced_x86::code_asm::*;

use super::*;
use crate::testing::{self, Assemble, Linking, function};

fn find(functions: &[Assemble<'_>]) -> (Vec<Site>, Vec<Miss>) {
    let elf = testing::elf(functions, &[], Linking::Fixed);
    let image = Image::parse(&elf).unwrap();
    let mut calls = ParkCalls::default();
    let mut instructions = Vec::new();
    for range in image.functions() {
        assert!(code::decode(&image, range, &mut instructions));
        calls.visit(range, &instructions);
    }
    let (mut sites, mut misses) = (Vec::new(), Vec::new());
    calls.finish(&image, &mut sites, &mut misses);
    (sites, misses)
}

/// Sites as (probe, function, offset in it).
#[track_caller]
fn check(functions: &[Assemble<'_>], expected: &[(Probe, u64, u64)]) {
    let (sites, misses) = find(functions);
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
    let (sites, misses) = find(&[&|a| a.ret(), &ends_in_park]);
    assert_eq!(sites, []);
    let reasons: Vec<_> = misses.iter().map(|miss| miss.reason.as_str()).collect();
    assert_eq!(reasons, ["0 of 1 park calls have a usable end"; 2]);
}
