use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::*;
use crate::testing::expected::{self, DRIVER, Expect};
use crate::testing::sections::with_sections;
use crate::testing::{self, Assemble, Linking, function};
use crate::uses;

// Indices of the functions.
const PARK: u64 = 0;
const YIELD: u64 = 1;
const OTHER: u64 = 4;

fn find(elf: &[u8]) -> Result<Vec<Site>, String> {
    let image = Image::parse(elf).unwrap();
    let mut expectations = Expectations::default();
    let mut instructions = Vec::new();
    for range in image.functions() {
        assert!(code::decode(&image, range, &mut instructions));
        expectations.visit(&image, range, &instructions);
    }
    let current = Current::of(&image, &expectations)?;
    let functions = current.functions().copied().collect();
    let uses = uses::find(&image, &functions, MAX_USES);
    current.sites(&image, &uses)
}

fn program(functions: &[Assemble<'_>]) -> Vec<u8> {
    testing::elf(functions, &expected::words(), Linking::Fixed)
}

/// Sites as (probe, function), or the reason.
#[track_caller]
fn check(elf: &[u8], expected: Result<&[(Probe, u64)], &str>) {
    let place = |site: &Site| {
        assert_eq!(site.scheduler, Some(Scheduler::CurrentThread));
        let at = site.address - testing::CODE;
        (site.probe, at / testing::FUNCTION_BYTES)
    };
    let found = find(elf).map(|sites| sites.iter().map(place).collect::<Vec<_>>());
    let found = found.as_deref().map_err(String::as_str);
    assert_eq!(found, expected);
}

fn takes(what: Expect) -> impl Fn(&mut CodeAssembler) -> Result<(), IcedError> {
    move |a| {
        a.push(rbx)?;
        expected::panic(a, what, OTHER)
    }
}

fn blocks_on(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.call(function(YIELD))?;
    a.push(rax)?;
    a.call(function(PARK))?;
    a.push(rax)?;
    a.ret()
}

fn ret(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.ret()
}

const FOUND: &[(Probe, u64)] = &[(Probe::Park, PARK), (Probe::Unpark, 2), (Probe::Unpark, 3)];
const PART_OF_OTHERS: &str = "current_thread::Context::park is a part of other functions";
const OTHER_CALLERS: &str = "what looks like current_thread::Context::park has other callers";
const UNCLEAR: &str = "the calls of current_thread::Context::park cannot be told";

#[test]
fn the_first_that_takes_the_driver_is_the_park() {
    let (park, park_yield) = (takes(DRIVER[0]), takes(DRIVER[1]));
    let elf = program(&[&park, &park_yield, &blocks_on, &blocks_on, &ret]);
    check(&elf, Ok(FOUND));
}

/// As if a later Tokio had them in another order.
#[test]
fn the_first_is_left_out_if_the_second_waits() {
    let waits = |what: Expect| {
        move |a: &mut CodeAssembler| {
            a.mov(r8d, 1_000_000_000)?;
            expected::panic(a, what, OTHER)
        }
    };
    let [first, second] = DRIVER;
    let of = |park: Assemble<'_>, park_yield: Assemble<'_>| {
        program(&[park, park_yield, &blocks_on, &blocks_on, &ret])
    };
    check(&of(&waits(first), &takes(second)), Ok(FOUND));
    check(&of(&waits(first), &waits(second)), Ok(FOUND));
    let reason = "the second function that takes the driver waits, not the first";
    check(&of(&takes(first), &waits(second)), Err(reason));
}

#[test]
fn a_symbol_tells_the_same() {
    let (park, park_yield) = (takes(DRIVER[0]), takes(DRIVER[1]));
    let name = "_ZN5tokio7runtime9scheduler14current_thread7Context4park17h0123456789abcdefE";
    let of = |park: Assemble<'_>| {
        let elf = program(&[park, &park_yield, &blocks_on, &blocks_on, &ret]);
        with_sections(elf, &[(name, function(PARK), 9)])
    };
    check(&of(&park), Ok(FOUND));
    check(&of(&ret), Ok(FOUND));
}

/// Without inlining `expect` is a function that has the message.
#[test]
fn the_message_may_be_in_the_function_called() {
    let called = |what: Expect| {
        move |a: &mut CodeAssembler| {
            expected::load(a, edx, what.place)?;
            a.call(function(OTHER))
        }
    };
    let (park, park_yield) = (called(DRIVER[0]), called(DRIVER[1]));
    let expect = |a: &mut CodeAssembler| expected::load(a, edi, DRIVER[0].message);
    let of = |expect: Assemble<'_>| program(&[&park, &park_yield, &blocks_on, &blocks_on, expect]);
    check(&of(&expect), Ok(FOUND));
    check(&of(&ret), Err(NOTHING));
}

/// Some callers may have a copy of their own.
#[test]
fn a_park_in_a_caller_is_left_out() {
    let (park, park_yield) = (takes(DRIVER[0]), takes(DRIVER[1]));
    let has_park = |a: &mut CodeAssembler| {
        a.call(function(YIELD))?;
        expected::panic(a, DRIVER[0], OTHER)
    };
    let has_both = |a: &mut CodeAssembler| {
        expected::panic(a, DRIVER[1], OTHER)?;
        expected::panic(a, DRIVER[0], OTHER)
    };
    let of = |caller: Assemble<'_>| program(&[&park, &park_yield, &blocks_on, caller, &ret]);
    check(&of(&has_park), Err(PART_OF_OTHERS));
    check(&of(&has_both), Err(PART_OF_OTHERS));
    let inlined = program(&[&ret, &park_yield, &has_park, &ret, &ret]);
    check(&inlined, Err(PART_OF_OTHERS));
}

#[test]
fn a_caller_that_does_not_yield_is_not_block_on() {
    let (park, park_yield) = (takes(DRIVER[0]), takes(DRIVER[1]));
    let parks = |a: &mut CodeAssembler| {
        a.call(function(PARK))?;
        a.push(rax)
    };
    let elf = program(&[&park, &park_yield, &blocks_on, &parks, &ret]);
    check(&elf, Err(OTHER_CALLERS));
}

/// A caller may load an address once for the calls in its loop.
#[test]
fn a_loaded_yield_is_one_and_a_loaded_park_is_unclear() {
    let (park, park_yield) = (takes(DRIVER[0]), takes(DRIVER[1]));
    let loads = |loaded: u64, called: u64| {
        move |a: &mut CodeAssembler| {
            expected::load(a, ebx, function(loaded))?;
            a.call(rbx)?;
            a.call(function(called))?;
            a.push(rax)
        }
    };
    let of = |caller: Assemble<'_>| program(&[&park, &park_yield, &blocks_on, caller, &ret]);
    check(&of(&loads(YIELD, PARK)), Ok(FOUND));
    check(&of(&loads(PARK, YIELD)), Err(UNCLEAR));
}

#[test]
fn one_place_is_not_enough() {
    let park = takes(DRIVER[0]);
    let elf = program(&[&park, &ret, &blocks_on, &blocks_on, &ret]);
    let reason = "1 lines of the scheduler say \"driver missing\", not 2";
    check(&elf, Err(reason));
    let none = program(&[&ret, &ret, &blocks_on, &blocks_on, &ret]);
    check(&none, Err(NOTHING));
}
