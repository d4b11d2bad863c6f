//! Files that lie: what the scanner makes of them.
//!
//! In: small programs with one table changed. Out: an error that names the limit, or a
//! plan. What costs too much would not end here; how far the limits hold with all of
//! the command is tested in `integration/tests/hostile.rs`.

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of a fixture are small"
)]

use super::*;
use crate::STEPS;
use crate::testing::sections::{SYMBOLS, header_of};
use crate::testing::tokio::{small_program, small_program_with_symbols};
use crate::testing::{BASE, DYNAMIC, Linking, UNWIND, put_at};

/// Places in the file header and in headers of segments and sections.
const PROGRAM_HEADER_COUNT: usize = 0x38;
const SECTION_HEADER_COUNT: usize = 0x3c;
const PROGRAM_HEADERS: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const ADDRESS: usize = 16;
const FILE_BYTES: usize = 32;
const SECTION_OFFSET: usize = 24;
const SECTION_BYTES: usize = 32;

fn with_symbols() -> Vec<u8> {
    small_program_with_symbols(Linking::Rela)
}

#[track_caller]
fn check(elf: &[u8], reason: &str) {
    assert_eq!(scan(elf).unwrap_err().to_string(), reason);
}

/// What the steps name, or why the last of them cannot.
fn steps(elf: &[u8]) -> Result<u64, String> {
    let mut bytes = 0;
    for step in STEPS {
        let parts = step(elf).map_err(|error| error.to_string())?;
        bytes += parts.iter().map(|part| part.end - part.start).sum::<u64>();
    }
    Ok(bytes)
}

#[test]
fn cut_off_anywhere() {
    let elf = with_symbols();
    for end in (0..elf.len()).step_by(61) {
        let _ = steps(&elf[..end]);
        let plan = scan(&elf[..end]);
        assert_eq!(plan.is_ok(), end >= 0x5000, "{end}");
    }
}

#[test]
fn segments_over_each_other() {
    let mut elf = with_symbols();
    let first = PROGRAM_HEADERS + ADDRESS;
    let address = elf[first + PROGRAM_HEADER_BYTES..][..8].to_vec();
    put_at(&mut elf, first, &address);
    check(&elf, "malformed ELF file: overlapping segments");
}

/// The file has a hole, which takes no memory here either.
#[test]
fn more_to_load_than_any_program() {
    let mut elf = with_symbols();
    put_at(
        &mut elf,
        PROGRAM_HEADERS + FILE_BYTES,
        &(600u64 << 20).to_le_bytes(),
    );
    put_at(
        &mut elf,
        PROGRAM_HEADERS + ADDRESS,
        &(1u64 << 40).to_le_bytes(),
    );
    let mut hole = vec![0; 600 << 20];
    hole[..elf.len()].copy_from_slice(&elf);
    let loaded = (600 << 20) + 0x4000;
    let reason = format!("{loaded} bytes of segments, more than 536870912");
    assert_eq!(steps(&hole), Err(reason.clone()));
    check(&hole, &reason);
}

#[test]
fn more_headers_than_any_program() {
    let mut elf = with_symbols();
    put_at(&mut elf, SECTION_HEADER_COUNT, &5000u16.to_le_bytes());
    check(&elf, "5000 sections, more than 4096");
    put_at(&mut elf, PROGRAM_HEADER_COUNT, &u16::MAX.to_le_bytes());
    check(&elf, "65535 program headers, more than 64");
}

#[test]
fn ten_million_symbols() {
    let mut elf = with_symbols();
    let (symbols, at) = (header_of(&elf, SYMBOLS), elf.len() as u64);
    put_at(
        &mut elf,
        symbols + SECTION_OFFSET,
        &at.next_multiple_of(8).to_le_bytes(),
    );
    put_at(
        &mut elf,
        symbols + SECTION_BYTES,
        &240_000_000u64.to_le_bytes(),
    );
    let mut hole = vec![0; elf.len() + 241_000_000];
    hole[..elf.len()].copy_from_slice(&elf);
    check(&hole, "10000000 symbols, more than 4194304");
}

#[test]
fn names_that_do_not_end() {
    let elf = with_symbols();
    let strings = header_of(&elf, crate::testing::sections::STRINGS);
    for bytes in [0u64, 1, 40] {
        let mut elf = elf.clone();
        put_at(&mut elf, strings + SECTION_BYTES, &bytes.to_le_bytes());
        let plan = scan(&elf).unwrap();
        assert!(plan.sites.iter().all(|site| site.function.is_none()));
        assert!(plan.misses.iter().any(|miss| miss.probe == Probe::Spawn));
    }
}

/// Each relocation is of the place of the next one, and the last of the first's.
#[test]
fn relocations_in_a_circle() {
    let table = (DYNAMIC - BASE) as usize + 0x50;
    let mut elf = small_program(Linking::Rela);
    let count = u64::from_le_bytes(elf[table - 0x50 + 24..][..8].try_into().unwrap()) / 24;
    for index in 0..count {
        let [here, next] = [index, (index + 1) % count].map(|index| DYNAMIC + 0x50 + index * 24);
        let at = table + index as usize * 24;
        put_at(&mut elf, at, &here.to_le_bytes());
        put_at(&mut elf, at + 16, &next.to_le_bytes());
    }
    check(
        &elf,
        "no Tokio task vtable among 0 code pointers in the file's data",
    );

    let mut elf = small_program(Linking::Relr);
    put_at(&mut elf, table, &(DYNAMIC + 0x50).to_le_bytes());
    put_at(&mut elf, table + 8, &u64::MAX.to_le_bytes());
    check(
        &elf,
        "no Tokio task vtable among 0 code pointers in the file's data",
    );
}

/// The table of functions says more than there is, or its entries are each other's.
#[test]
fn unwind_tables_without_an_end() {
    let table = (UNWIND - BASE) as usize;
    let mut elf = small_program(Linking::Rela);
    put_at(&mut elf, table + 8, &u32::MAX.to_le_bytes());
    let plan = scan(&elf).unwrap();
    assert!(plan.sites.iter().any(|site| site.probe == Probe::PollStart));
    for entry in 0..14 {
        put_at(&mut elf, table + 12 + entry * 8 + 4, &12u32.to_le_bytes());
    }
    let plan = scan(&elf).unwrap();
    let code = 0x1000..0x2000;
    assert!(
        plan.sites
            .iter()
            .all(|site| code.contains(&site.file_offset))
    );
}
