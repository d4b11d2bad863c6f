#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of a fixture are small"
)]

use super::*;
use crate::plan::Plan;
use crate::testing::sections::{HEADER_BYTES, Named, header_of, with_more_sections};
use crate::testing::tokio::{
    BLOCKING, BLOCKING_POLL, POLL, SHUTDOWN, TASK, Vtable, program, small_program,
};
use crate::testing::{Linking, function, put_at};
use crate::{scan, scan_files};

/// One entry with children and no attributes; one with address and names.
const ABBREVIATIONS: &[u8] = &[
    1, 0x11, 1, 0, 0, 2, 0x2e, 0, 0x11, 0x01, 0x6e, 0x08, 0x03, 0x0e, 0, 0, 0,
];
/// The section header of `.debug_info` in [`with_debug_info`].
const INFO: usize = 6;

/// Function, its name in the vtable, the future.
type Spelled<'text> = (u64, &'text str, &'text str);

const BOTH: [Spelled<'_>; 2] = [
    (POLL, "poll", "app::serve::{async_fn_env#0}"),
    (BLOCKING_POLL, "poll", "app::Task<[u8; 4]>"),
];

fn sized(bytes: &[u8]) -> Vec<u8> {
    let mut sized = (bytes.len() as u32).to_le_bytes().to_vec();
    sized.extend(bytes);
    sized
}

/// The unit, and the names.
fn info(spelled: &[Spelled<'_>]) -> [Vec<u8>; 2] {
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8, 1];
    let mut strings = vec![0];
    for (index, raw, future) in spelled {
        unit.push(2);
        unit.extend(function(*index).to_le_bytes());
        let length = raw.len();
        let mangled = format!("_ZN5tokio7runtime4task3raw{length}{raw}17h0123456789abcdefE\0");
        unit.extend(mangled.as_bytes());
        unit.extend((strings.len() as u32).to_le_bytes());
        strings.extend(format!("{raw}<{future}, app::Send>\0").as_bytes());
    }
    unit.push(0);
    [sized(&unit), strings]
}

fn ranges() -> Vec<u8> {
    let mut ranges = vec![2, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0];
    for word in [crate::testing::CODE, 0x1000, 0, 0] {
        ranges.extend(word.to_le_bytes());
    }
    sized(&ranges)
}

fn with_debug_info(elf: Vec<u8>, names: &[Named<'_>], spelled: &[Spelled<'_>]) -> Vec<u8> {
    let [info, strings] = info(spelled);
    let sections: [(&str, &[u8]); 4] = [
        (".debug_info", &info),
        (".debug_abbrev", ABBREVIATIONS),
        (".debug_str", &strings),
        (".debug_aranges", &ranges()),
    ];
    with_more_sections(elf, names, &sections)
}

fn types_of(plan: &Plan) -> Vec<Option<&str>> {
    let types = plan.vtables.iter();
    types.map(|vtable| vtable.task_type.as_deref()).collect()
}

#[track_caller]
fn check(vtables: &[Vtable], spelled: &[Spelled<'_>], expected: &[Option<&str>]) -> Plan {
    let elf = with_debug_info(program(vtables, Linking::Rela), &[], spelled);
    let plan = scan(&elf).unwrap();
    assert_eq!(types_of(&plan), expected);
    plan
}

#[test]
fn entries_spell_the_types() {
    let expected = [Some(BOTH[0].2), Some(BOTH[1].2)];
    let plan = check(&[TASK, BLOCKING], &BOTH, &expected);
    assert_eq!(plan.untyped, None);
    let plan = check(&[TASK, BLOCKING], &BOTH[..1], &[expected[0], None]);
    let reason = "1 of 2 have no name: no v0 symbol, and its debug information does not spell them";
    assert_eq!(plan.untyped.as_deref(), Some(reason));
}

#[test]
fn without_ranges_every_unit_is_read() {
    let mut elf = with_debug_info(small_program(Linking::Rela), &[], &BOTH);
    let ranges = header_of(&elf, INFO + 3);
    put_at(&mut elf, ranges + 32, &0u64.to_le_bytes());
    let plan = scan(&elf).unwrap();
    assert_eq!(types_of(&plan), [Some(BOTH[0].2), Some(BOTH[1].2)]);
}

/// Two vtables with one poll function.
#[test]
fn a_shared_function_tells_all_its_types_or_none() {
    let two = [TASK, (POLL, SHUTDOWN, 32, 48)];
    let plan = check(&two, &[(POLL, "poll", "A")], &[None, None]);
    let reason = "2 of 2 have no name: equal functions are one";
    assert_eq!(plan.untyped.as_deref(), Some(reason));
    let spelled = [(POLL, "poll", "A"), (POLL, "poll", "B")];
    check(&two, &spelled, &[Some("A or B"); 2]);
}

#[test]
fn a_vtable_with_functions_of_another_type_may_be_of_both() {
    let spelled = [(POLL, "poll", "A"), (SHUTDOWN, "shutdown", "B")];
    check(&[TASK], &spelled, &[Some("A or B")]);
    let same = [(POLL, "poll", "A"), (SHUTDOWN, "shutdown", "A")];
    check(&[TASK], &same, &[Some("A")]);
    let other = [(POLL, "poll", "A"), (SHUTDOWN, "schedule", "B")];
    check(&[TASK], &other, &[Some("A")]);
}

#[test]
fn compressed_sections_are_not_read() {
    let mut elf = with_debug_info(small_program(Linking::Rela), &[], &BOTH);
    let info = header_of(&elf, INFO);
    put_at(&mut elf, info + 8, &0x800u64.to_le_bytes());
    let plan = scan(&elf).unwrap();
    assert_eq!(types_of(&plan), [None, None]);
    assert!(
        plan.untyped
            .unwrap()
            .ends_with("debug information is compressed")
    );
}

#[test]
fn a_debug_file_gives_what_the_program_has_lost() {
    let bind = "_ZN5tokio7runtime4task4list19OwnedTasks$LT$S$GT$10bind_inner17h0123456789abcdefE";
    let symbols = [(bind, function(crate::testing::tokio::OTHER), 3)];
    let whole = with_debug_info(small_program(Linking::Rela), &symbols, &BOTH);
    let read = |part: Range<u64>| {
        let part = usize::try_from(part.start).unwrap()..usize::try_from(part.end).unwrap();
        whole.get(part).map(<[u8]>::to_vec)
    };
    let debug_file = File {
        parts: &whole,
        read: &read,
    };
    let stripped = with_more_sections(small_program(Linking::Rela), &[], &[]);
    let nothing = |_| None;
    let stripped = File {
        parts: &stripped,
        read: &nothing,
    };
    assert_ne!(scan_files(&stripped, None), scan(&whole));
    assert_eq!(scan_files(&stripped, Some(&debug_file)), scan(&whole));
}

/// What is damaged gives no types, or others; the sites are the same.
#[test]
fn no_damage_of_debug_information_is_more_than_that() {
    let whole = with_debug_info(small_program(Linking::Rela), &[], &BOTH);
    let sites = scan(&whole).unwrap().sites;
    let first = small_program(Linking::Rela).len();
    for at in first..header_of(&whole, 0) {
        for damage in [0, 0xff, whole[at] ^ 0x80] {
            let mut elf = whole.clone();
            elf[at] = damage;
            if let Ok(plan) = scan(&elf) {
                assert!(plan.sites.len() <= sites.len() + 1, "{at:#x}");
            }
        }
    }
    for header in (INFO..INFO + 4).map(|section| header_of(&whole, section)) {
        for at in header..header + HEADER_BYTES {
            let mut elf = whole.clone();
            elf[at] ^= 0xff;
            assert_eq!(scan(&elf).unwrap().sites, sites);
        }
    }
}

/// An abbreviation of thousands of attributes that take no bytes, and entries of one.
#[test]
fn entries_without_bytes_are_not_read_for_ever() {
    let mut abbreviations = vec![1, 0x11, 0];
    abbreviations.extend([0x3f, 0x19].repeat(30_000));
    abbreviations.extend([0, 0, 0]);
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8];
    unit.extend(vec![1; 1 << 20]);
    let sections: [(&str, &[u8]); 2] = [
        (".debug_info", &sized(&unit)),
        (".debug_abbrev", &abbreviations),
    ];
    let elf = with_more_sections(small_program(Linking::Rela), &[], &sections);
    let plan = scan(&elf).unwrap();
    assert!(
        plan.untyped
            .unwrap()
            .ends_with("debug information is too large")
    );
}
