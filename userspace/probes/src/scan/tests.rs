use dial9_bpf_abi::cookie::{BY_VTABLE, Branch, Cookie, Register};
use proptest::prelude::*;

use super::*;
use crate::plan::{InstructionClass, Miss, Probe};
use crate::testing::tokio::*;
use crate::testing::{self, Linking, function};

/// Cookies of the sites of one probe.
fn cookies(plan: &Plan, probe: Probe) -> Vec<Cookie> {
    plan.sites
        .iter()
        .filter(|site| site.probe == probe)
        .map(|site| site.cookie)
        .collect()
}

/// What is missing, without what only symbols show: these programs have none.
fn missing(plan: &Plan) -> Vec<(Probe, &str)> {
    let is_single = |miss: &&Miss| miss.reason.starts_with("of current-thread runtimes: ");
    let by_symbols = [
        Probe::Spawn,
        Probe::Panic,
        Probe::BlockOn,
        Probe::BlockOnEnd,
    ];
    let shown = |miss: &&Miss| !by_symbols.contains(&miss.probe) && !is_single(miss);
    let misses = plan.misses.iter().filter(shown);
    misses
        .map(|miss| (miss.probe, miss.reason.as_str()))
        .collect()
}

/// Sites as (probe, function, offset in it).
fn places(plan: &Plan) -> Vec<(Probe, u64, u64)> {
    let place = |site: &Site| {
        let at = site.address - testing::CODE;
        (
            site.probe,
            at / testing::FUNCTION_BYTES,
            at % testing::FUNCTION_BYTES,
        )
    };
    plan.sites.iter().map(place).collect()
}

#[test]
fn every_probe_of_a_small_program_is_found_however_it_is_linked() {
    for linking in [Linking::Fixed, Linking::Rela, Linking::Relr] {
        let plan = scan(&small_program(linking)).unwrap();
        let expected = [
            (Probe::PollStart, POLL, 0),
            (Probe::PollStart, BLOCKING_POLL, 0),
            (Probe::PollEnd, WORKER, 11),
            (Probe::Wake, WAKE, 0),
            (Probe::Wake, WAKE_BY_REF, 8),
            (Probe::Terminate, COMPLETE, 10),
            (Probe::Terminate, BLOCKING_COMPLETE, 10),
            (Probe::Park, WORKER, 18),
            (Probe::Unpark, WORKER, 23),
        ];
        assert_eq!(places(&plan), expected, "{linking:?}");
        let [
            Miss {
                probe: Probe::Spawn,
                reason,
            },
            Miss {
                probe: Probe::Park,
                reason: of_single,
            },
            Miss {
                probe: Probe::Unpark,
                ..
            },
            Miss {
                probe: Probe::BlockOn,
                ..
            },
            Miss {
                probe: Probe::BlockOnEnd,
                ..
            },
            Miss {
                probe: Probe::Panic,
                ..
            },
        ] = plan.misses.as_slice()
        else {
            panic!("{:?}", plan.misses);
        };
        assert_eq!(
            reason,
            "no symbol table: tasks are shown from their first sighting"
        );
        assert_eq!(
            of_single,
            "of current-thread runtimes: no symbol current_thread::Context::park, and no function \
             expects a driver"
        );
    }
}

#[test]
fn symbols_give_names_and_three_probes_more() {
    let plan = scan(&small_program_with_symbols(Linking::Rela)).unwrap();
    // It blocks on nothing.
    let is_block_on = |miss: &Miss| matches!(miss.probe, Probe::BlockOn | Probe::BlockOnEnd);
    assert!(plan.misses.iter().all(is_block_on), "{:?}", plan.misses);
    for probe in [Probe::Spawn, Probe::Panic, Probe::PanicMessage] {
        assert_eq!(cookies(&plan, probe).len(), 1, "{probe:?}");
    }
    let is_park = |place: &(Probe, u64, u64)| matches!(place.0, Probe::Park | Probe::Unpark);
    let parks: Vec<_> = places(&plan).into_iter().filter(is_park).collect();
    // The worker's, and what is after both of its calls.
    let expected = [
        (Probe::Park, WORKER, 18),
        (Probe::Park, PARK, 0),
        (Probe::Unpark, WORKER, 23),
        (Probe::Unpark, WORKER, 31),
    ];
    assert_eq!(parks, expected);
    assert_eq!(plan.vtables[0].task_type.as_deref(), Some("app::Work"));
    let function = "tokio::runtime::task::raw::poll::<app::Work, app::Send>";
    assert_eq!(plan.sites[0].function.as_deref(), Some(function));
}

#[test]
fn the_plan_says_what_the_vtables_say() {
    let plan = scan(&small_program(Linking::Rela)).unwrap();
    let described: Vec<_> = plan
        .vtables
        .iter()
        .map(|vtable| {
            (
                vtable.address,
                vtable.poll,
                vtable.id_offset,
                vtable.blocking,
            )
        })
        .collect();
    let expected = [
        (VTABLES, function(POLL), 40, false),
        (VTABLES + VTABLE_BYTES, function(BLOCKING_POLL), 48, true),
    ];
    assert_eq!(described, expected);
    let starts: Vec<_> = plan.sites.iter().take(2).map(|site| site.cookie).collect();
    let start = Cookie {
        remembers: true,
        vtable: 0,
        id_offset: 40,
        ..Cookie::EMPTY
    };
    let blocking = Cookie {
        vtable: 1,
        id_offset: 48,
        blocking: true,
        ..Cookie::EMPTY
    };
    assert_eq!(starts, [start, blocking]);
    let wake = plan
        .sites
        .iter()
        .rfind(|site| site.probe == Probe::Wake)
        .unwrap();
    assert_eq!(
        wake.cookie.branch,
        Some(Branch {
            code: 5,
            taken: false
        })
    );
    assert_eq!(wake.class, InstructionClass::Emulated);
}

#[test]
fn a_function_of_several_vtables_is_one_site() {
    for second in [TASK, (ALIAS, SHUTDOWN, 32, 40)] {
        let plan = scan(&program(&[second, TASK], Linking::Rela)).unwrap();
        let shared = Cookie {
            remembers: true,
            id_offset: 40,
            shared: true,
            ..Cookie::EMPTY
        };
        assert_eq!(cookies(&plan, Probe::PollStart), [shared]);
        let behind_a_call = Cookie {
            header: Register(3),
            ..shared
        };
        assert_eq!(cookies(&plan, Probe::Terminate), [behind_a_call]);
        assert_eq!(plan.sites[0].address, function(POLL));
        assert_eq!(missing(&plan), []);
    }
}

#[test]
fn a_function_of_tasks_and_closures_is_left_out() {
    let plan = scan(&program(&[TASK, (POLL, SHUTDOWN, 32, 48)], Linking::Rela)).unwrap();
    assert_eq!(cookies(&plan, Probe::PollStart), []);
    assert_eq!(cookies(&plan, Probe::Terminate), []);
    assert!(plan.sites.iter().all(|site| !site.cookie.remembers));
    let expected = [
        (
            Probe::PollStart,
            "1 of 1 poll functions have no usable site",
        ),
        (
            Probe::Terminate,
            "no function that completes 2 of 2 task types",
        ),
    ];
    assert_eq!(missing(&plan), expected);
}

#[test]
fn where_ids_are_at_different_offsets_the_vtable_says() {
    let offsets = |plan: &Plan, probe| -> Vec<u16> {
        let cookies = cookies(plan, probe).into_iter();
        cookies.map(|cookie| cookie.id_offset).collect()
    };
    let apart = (BLOCKING_POLL, BLOCKING_SHUTDOWN, 64, 72);
    let plan = scan(&program(&[TASK, apart], Linking::Rela)).unwrap();
    assert_eq!(missing(&plan), []);
    assert_eq!(offsets(&plan, Probe::PollStart), [40, 72]);
    assert_eq!(offsets(&plan, Probe::Wake), [BY_VTABLE; 2]);
    let shared = (POLL, SHUTDOWN, 64, 72);
    let plan = scan(&program(&[TASK, shared], Linking::Rela)).unwrap();
    assert_eq!(missing(&plan), []);
    assert_eq!(offsets(&plan, Probe::PollStart), [BY_VTABLE]);
    assert_eq!(offsets(&plan, Probe::Terminate), [BY_VTABLE]);
}

#[test]
fn only_the_shape_of_a_vtable_is_one() {
    let blocking = |vtable| {
        let plan = scan(&program(&[vtable], Linking::Rela));
        plan.map(|plan| plan.vtables[0].blocking)
    };
    assert_eq!(blocking((POLL, SHUTDOWN, 32, 32)), Ok(true));
    assert_eq!(blocking((POLL, SHUTDOWN, 128, 136)), Ok(false));
    let refused = Err(ScanError::NotTokio { pointers: 12 });
    assert_eq!(blocking((POLL, SHUTDOWN, 16, 24)), refused);
    assert_eq!(blocking((POLL, SHUTDOWN, 36, 44)), refused);
    assert_eq!(blocking((POLL, SHUTDOWN, 48, 40)), refused);
    assert_eq!(blocking((POLL, SHUTDOWN, 64, 200)), refused);
}

#[test]
fn a_program_without_tokio_is_recognized() {
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(matches!(
        scan(&own),
        Err(ScanError::NotTokio { pointers: 1.. })
    ));
}

#[test]
fn what_is_no_x86_64_elf_file_is_refused() {
    let elf = small_program(Linking::Fixed);
    let with = |at: usize, value: u8| {
        let mut elf = elf.clone();
        elf[at] = value;
        scan(&elf).unwrap_err()
    };
    assert_eq!(scan(b""), Err(ScanError::NotElf { bytes: 0 }));
    assert_eq!(
        with(0, 0),
        ScanError::NotElf {
            bytes: elf.len() as u64
        }
    );
    assert_eq!(with(4, 1), ScanError::UnsupportedClass { class: 1 });
    assert_eq!(
        with(18, 183),
        ScanError::UnsupportedArchitecture { machine: 183 }
    );
    assert_eq!(
        scan(&elf[..32]),
        Err(ScanError::Malformed {
            part: "file header"
        })
    );
    assert_eq!(
        scan(&elf[..70]),
        Err(ScanError::Malformed {
            part: "program headers"
        })
    );
    assert_eq!(
        scan(&elf[..0x1800]),
        Err(ScanError::Malformed { part: "segment" })
    );
}

#[test]
fn any_prefix_of_a_file_can_be_scanned() {
    let elf = small_program(Linking::Relr);
    for end in 0..1024 {
        assert!(scan(&elf[..end]).is_err());
    }
}

/// Writes at random places, more often where tables are.
fn mutations() -> impl Strategy<Value = Vec<(usize, u8)>> {
    let place = prop_oneof![
        0..0x190usize,
        0x1000..0x1d00usize,
        0x2000..0x2100usize,
        0x3000..0x3200usize,
        0x4000..0x4200usize,
    ];
    let value = prop_oneof![Just(0u8), Just(0xff), any::<u8>()];
    prop::collection::vec((place, value), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_damaged_file_is_no_panic(changes in mutations(), kind in 0..3usize) {
        let mut elf = small_program([Linking::Fixed, Linking::Rela, Linking::Relr][kind]);
        for (at, value) in changes {
            elf[at] = value;
        }
        if let Ok(plan) = scan(&elf) {
            prop_assert!(plan.sites.iter().all(|site| site.cookie.fits()));
            prop_assert!(plan.sites.iter().all(|site| site.file_offset < elf.len() as u64));
        }
    }
}
