use iced_x86::code_asm::*;

use super::*;
use crate::testing::{self, Assemble, Linking, function};

/// These tests are a Rust program themselves.
fn own_executable() -> Vec<u8> {
    std::fs::read(std::env::current_exe().unwrap()).unwrap()
}

fn own_unwinder() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| {
        let (_, path) = line.split_once('/')?;
        path.ends_with("libgcc_s.so.1").then(|| format!("/{path}"))
    });
    std::fs::read(path.unwrap()).unwrap()
}

fn empty_plan() -> Plan {
    Plan {
        sites: Vec::new(),
        vtables: Vec::new(),
        misses: Vec::new(),
        tokio_version: None,
        build_id: None,
        has_symbols: false,
        untyped: None,
    }
}

#[test]
fn std_has_one_function_for_all_panics() {
    let elf = own_executable();
    let image = Image::parse(&elf).unwrap();
    let sites = location_sites(&image).unwrap();
    let [site] = &sites[..] else {
        panic!("{sites:?}")
    };
    assert_eq!((site.probe, site.cookie.header), (Probe::Panic, RDX));
    assert!(compiler::oldest(&image) >= Some(FIRST_IN_RDX));
}

#[test]
fn where_nothing_is_told_to_an_unwinder_no_library_is_probed() {
    let elf = own_executable();
    let image = Image::parse(&elf).unwrap();
    assert_eq!(message_site(&elf, &image, true), Ok(None), "we unwind");
    let reason = message_site(b"", &image, true).unwrap_err();
    let mut plan = empty_plan();
    plan.misses.push(Miss {
        probe: Probe::PanicMessage,
        reason: reason.to_owned(),
    });
    add_unwinder(&mut plan, Some(&own_unwinder()));
    assert_eq!((plan.sites.len(), plan.misses.len()), (0, 1));
}

#[test]
fn the_unwinder_is_a_library() {
    let mut plan = empty_plan();
    let library = own_unwinder();
    add_unwinder(&mut plan, Some(&library));
    let [site] = &plan.sites[..] else {
        panic!("{plan:?}")
    };
    assert_eq!(site.probe, Probe::PanicMessage);
    assert_eq!(site.binary, Binary::Unwinder);
    assert_eq!(plan.misses, []);
    add_unwinder(&mut plan, Some(&library));
    assert_eq!(plan.sites.len(), 1, "it has one");
}

#[test]
fn no_library_and_no_elf_file_are_misses() {
    for (library, reason) in [
        (None, "no library of the target unwinds stacks"),
        (Some(&b"no file"[..]), "no usable _Unwind_RaiseException"),
    ] {
        let mut plan = empty_plan();
        add_unwinder(&mut plan, library);
        let [miss] = &plan.misses[..] else {
            panic!("{plan:?}")
        };
        assert_eq!(miss.probe, Probe::PanicMessage);
        assert_eq!(miss.reason, reason);
    }
}

/// What begins to unwind in a program of this function and two others.
fn raised(code: Assemble<'_>) -> Option<u64> {
    let ret: Assemble<'_> = &|a| a.ret();
    let elf = testing::elf(&[code, ret, ret], &[], Linking::Fixed);
    raise::find(&Image::parse(&elf).unwrap())
}

#[test]
fn what_is_given_an_exception_of_rusts_class_unwinds() {
    let class = |a: &mut CodeAssembler, class: &[u8; 8]| {
        a.mov(rcx, u64::from_le_bytes(*class))?;
        a.mov(qword_ptr(rax), rcx)?;
        a.mov(qword_ptr(rax + 40), r14)
    };
    let tail_call = |a: &mut CodeAssembler| {
        class(a, b"MOZ\0RUST")?;
        a.mov(rdi, rax)?;
        a.pop(rbx)?;
        a.jmp(function(1))
    };
    assert_eq!(raised(&tail_call), Some(function(1)));
    let call = |a: &mut CodeAssembler| {
        class(a, b"TSUR\0ZOM")?;
        a.mov(rdi, rax)?;
        a.call(function(2))
    };
    assert_eq!(raised(&call), Some(function(2)));
    let other_class = |a: &mut CodeAssembler| {
        class(a, b"GNUCC++\0")?;
        a.mov(rdi, rax)?;
        a.call(function(2))
    };
    assert_eq!(raised(&other_class), None);
    let other_argument = |a: &mut CodeAssembler| {
        class(a, b"MOZ\0RUST")?;
        a.call(function(2))
    };
    assert_eq!(raised(&other_argument), None);
    let two = |a: &mut CodeAssembler| {
        tail_call(a)?;
        call(a)
    };
    assert_eq!(raised(&two), None);
}
