use std::io::{self, Write};

use dial9_bpf_abi::{cookie::Cookie, loss::LossCause};
use dial9_bpf_probes::plan::{Binary, InstructionClass, Site};

use super::*;

fn at(seconds: u64, events: u64) -> Snapshot {
    Snapshot {
        elapsed: Duration::from_secs(seconds),
        events,
        ..Snapshot::default()
    }
}

#[test]
fn the_line_has_rates_since_the_last_and_totals() {
    let before = Snapshot {
        paid: Some(Duration::from_millis(500)),
        ..at(1, 1_000)
    };
    let now = Snapshot {
        lost: 1_234,
        bytes: 3 << 20,
        paid: Some(Duration::from_millis(750)),
        ..at(3, 2_470_000)
    };
    insta::assert_snapshot!(
        line(&before, &now),
        @"3 s: 1,234,500 events/s, 1,234 lost, 3.0 MiB, costs about 12.5 % of a core"
    );
}

#[test]
fn a_price_that_is_not_known_is_not_shown() {
    insta::assert_snapshot!(
        line(&at(0, 0), &at(1, 7)),
        @"1 s: 7 events/s, 0 lost, 0 B"
    );
}

#[test]
fn no_time_and_nothing_got_is_no_failure() {
    let nothing = Snapshot {
        paid: Some(Duration::ZERO),
        ..at(0, 0)
    };
    insta::assert_snapshot!(
        line(&nothing, &nothing),
        @"0 s: 0 events/s, 0 lost, 0 B, costs about 0.0 % of a core"
    );
}

#[test]
fn a_rate_is_a_seconds() {
    assert_eq!(rate(10, Duration::from_millis(500)), 20);
    assert_eq!(rate(0, Duration::ZERO), 0);
    assert_eq!(rate(u64::MAX, Duration::ZERO), u64::MAX);
}

fn plan(probes: &[Probe]) -> Plan {
    let site = |probe: &Probe| Site {
        probe: *probe,
        binary: Binary::Scanned,
        file_offset: 0,
        address: 0,
        class: InstructionClass::Emulated,
        instruction: String::new(),
        cookie: Cookie::EMPTY,
        function: None,
        scheduler: None,
    };
    Plan {
        sites: probes.iter().map(site).collect(),
        ..Plan::default()
    }
}

#[test]
fn the_cost_is_hits_by_price() {
    let prices = Prices {
        emulated_ns: 100.0,
        emulated_stack_ns: 0.0,
        single_stepped_ns: 0.0,
        known_task_ns: 100.0,
        user_read_ns: 0.0,
    };
    let mut cost = Cost::new(prices);
    cost.add(&plan(&[Probe::Wake, Probe::Park]));
    cost.add(&plan(&[Probe::Wake]));
    let records = RecordCounts {
        wake: 1_000_000,
        park: 3,
        unpark: 5,
        ..RecordCounts::default()
    };
    let paid = cost.of(&records, &[]);
    assert_eq!(paid, Duration::from_nanos(200_000_300));

    let lost = |cpu, kind, total| Loss {
        cpu,
        kind,
        cause: LossCause::RingFull.into(),
        lost: 0,
        total,
    };
    let losses = [
        lost(0, RecordKind::PARK, 4),
        lost(1, RecordKind::PARK, 5),
        lost(0, RecordKind::UNPARK, 6),
    ];
    let paid = cost.of(&records, &losses);
    assert_eq!(paid, Duration::from_nanos(200_001_200));
}

fn shown(is_terminal: bool) -> String {
    let mut out = Vec::new();
    let mut status = StatusLine::new(is_terminal, &mut out);
    status.end();
    status.show("one");
    status.show("two");
    status.end();
    status.end();
    String::from_utf8(out).expect("it is text")
}

#[test]
fn a_terminal_has_one_line_and_a_file_has_them_all() {
    assert_eq!(shown(true), "\rone\x1b[K\rtwo\x1b[K\n");
    assert_eq!(shown(false), "one\ntwo\n");
}

#[test]
fn a_place_that_is_gone_is_no_failure() {
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut status = StatusLine::new(true, Gone);
    status.show("one");
    status.end();
}
