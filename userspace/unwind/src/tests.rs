//! Our own stack, and what is no stack.

use super::*;
use std::{arch::asm, fs, hint::black_box};

/// Our own code that is mapped from a file, with its tables.
fn own_modules() -> Vec<Arc<Module>> {
    let maps = fs::read_to_string("/proc/self/maps").expect("ours");
    let mut files: Vec<(String, Vec<Mapping>)> = Vec::new();
    for line in maps.lines().filter(|line| line.contains("r-xp")) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [addresses, _, offset, _, _, path] = fields[..] else {
            continue;
        };
        let hex = |text| u64::from_str_radix(text, 16).expect("hex");
        let (start, end) = addresses.split_once('-').expect("a range");
        let mapping = Mapping {
            addresses: hex(start)..hex(end),
            offset: hex(offset),
        };
        match files.iter_mut().find(|(of, _)| of == path) {
            Some((_, mappings)) => mappings.push(mapping),
            None => files.push((path.to_owned(), vec![mapping])),
        }
    }
    let modules = |(path, mappings): &(String, Vec<Mapping>)| {
        let file = fs::File::open(path).ok()?;
        Module::of_file(&file, mappings).ok()
    };
    let modules = files.iter().filter_map(modules).flatten();
    modules.map(Arc::new).collect()
}

/// Where we are, and the stack from there up.
#[inline(never)]
fn own_stack() -> (Registers, Vec<u8>) {
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads registers.
    unsafe {
        asm!(
            "lea {ip}, [rip]",
            "mov {sp}, rsp",
            "mov {bp}, rbp",
            ip = out(reg) ip,
            sp = out(reg) sp,
            bp = out(reg) bp,
        );
    }
    let maps = fs::read_to_string("/proc/self/maps").expect("ours");
    let end = maps.lines().find_map(|line| {
        let (addresses, _) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap_or(0));
        (start..end).contains(&sp).then_some(end)
    });
    let bytes = usize::try_from(end.expect("it is mapped") - sp).expect("it fits");
    // SAFETY: our own stack, which is mapped to there.
    let stack = unsafe { std::slice::from_raw_parts(sp as *const u8, bytes) };
    (Registers { ip, sp, bp }, stack.to_vec())
}

#[inline(never)]
fn deeper(depth: u32) -> (Registers, Vec<u8>) {
    if depth == 0 {
        return own_stack();
    }
    black_box(deeper(black_box(depth - 1)))
}

#[test]
fn a_stack_is_followed_to_the_threads_first_function() {
    let (registers, stack) = deeper(5);
    let mut unwinder = Unwinder::of(own_modules());
    let mut frames = Vec::new();
    let unwound = unwinder.unwind(registers, &stack, 1 << 10, &mut frames);
    assert_eq!(unwound, Unwound::Complete, "{frames:x?}");
    assert_eq!(frames[0], registers.ip);
    let call = deeper as *const () as u64;
    let in_deeper = |frame: &&u64| (call..call + 0x400).contains(*frame);
    let nested = frames.iter().filter(in_deeper).count();
    assert!(nested >= 6, "{nested} of {frames:x?}");
}

#[test]
fn a_stack_that_goes_on_is_truncated_and_keeps_its_leaf() {
    let (registers, stack) = deeper(5);
    let mut unwinder = Unwinder::of(own_modules());
    let mut whole = Vec::new();
    unwinder.unwind(registers, &stack, 1 << 10, &mut whole);
    for bytes in [0, 8, 64, 512] {
        let mut frames = Vec::new();
        let unwound = unwinder.unwind(registers, &stack[..bytes], 1 << 10, &mut frames);
        assert_eq!(unwound, Unwound::Truncated, "{bytes}");
        assert_eq!(frames, whole[..frames.len()]);
    }
    let mut frames = Vec::new();
    let unwound = unwinder.unwind(registers, &stack, 3, &mut frames);
    assert_eq!((unwound, frames.len()), (Unwound::Truncated, 3));
}

#[test]
fn code_without_a_table_is_where_a_stack_ends() {
    let (registers, stack) = deeper(5);
    let mut frames = Vec::new();
    let unwound = Unwinder::default().unwind(registers, &stack, 1 << 10, &mut frames);
    assert_eq!(
        (unwound, &frames[..]),
        (Unwound::Failed, &[registers.ip][..])
    );
}

#[test]
fn what_is_no_elf_file_has_no_tables() {
    let whole = fs::read("/proc/self/exe").expect("ours");
    let mapping = Mapping {
        addresses: 0..0x1000,
        offset: u64::MAX,
    };
    for end in (0..whole.len()).step_by(whole.len() / 50) {
        assert!(Module::of_bytes(&whole[..end], &[]).is_err());
    }
    assert!(matches!(
        Module::of_bytes(&whole, &[mapping]),
        Err(ModuleError::NotMapped)
    ));
}
