//! What fails on the way.

use crate::proxy::{Fault, Proxy};
use crate::rig::{Rig, Served, TIME, wait};
use crate::server::Server;

const BUSY: Fault = Fault::Answer(
    "503 Slow Down",
    "<Error><Code>SlowDown</Code><Message>later</Message></Error>",
);
const BROKEN: Fault = Fault::Answer("500 Internal Server Error", "");
const TOO_MANY: Fault = Fault::Answer("429 Too Many Requests", "later");
const STALLED: Fault = Fault::Answer(
    "400 Bad Request",
    "<Error><Code>RequestTimeout</Code></Error>",
);
const SLOW: Fault = Fault::Slow(64);

/// Ships through these faults; returns how often they failed.
fn check(segments: usize, faults: &[Fault]) -> dial9_bpf_ship::courier::Failures {
    let mut rig = Rig::<Server>::new(Proxy::planned(faults.iter().cloned(), Fault::Pass));
    let courier = rig.ship(segments);
    rig.wait_for_all(&courier);
    let report = rig.check(courier, TIME);
    assert_eq!(report.left.map(|left| left.segments), Some(0));
    assert_eq!(report.status.degraded, None);
    assert_eq!(rig.server.objects().len(), segments);
    report.status.failures
}

#[test]
fn a_store_that_is_not_there_yet() {
    check_absence(Rig::<Server>::without_listener(Proxy::planned(
        [],
        Fault::Pass,
    )));
}

pub(crate) fn check_absence(mut rig: Rig<impl Served>) {
    let courier = rig.ship(3);
    let waiting = wait(&courier.status(), |status| status.failures.transport >= 3);
    assert_eq!(waiting.uploaded, 0);
    rig.listen();
    rig.wait_for_all(&courier);
    rig.check(courier, TIME);
}

#[test]
fn hung_requests() {
    let failures = check(3, &[Fault::Hang, Fault::Hang, Fault::Hang]);
    assert_eq!(failures.transport, 3);
}

#[test]
fn reset_connections() {
    let failures = check(4, &[Fault::Reset, Fault::Reset, Fault::Reset]);
    assert!(failures.transport >= 1, "{failures:?}");
}

#[test]
fn connections_reset_in_the_middle_of_a_body() {
    let faults = [0, 1, 1000, 4000].map(Fault::ResetMidBody);
    let failures = check(4, &faults);
    assert!(failures.transport >= 1, "{failures:?}");
}

#[test]
fn storms_of_answers_that_pass() {
    let storm: Vec<Fault> = [BROKEN, BUSY, TOO_MANY, STALLED]
        .into_iter()
        .cycle()
        .take(24)
        .collect();
    let failures = check(5, &storm);
    assert_eq!((failures.throttled, failures.server), (12, 12));
    assert_eq!((failures.transport, failures.refused), (0, 0));
}

#[test]
fn a_slow_line() {
    check(3, &[SLOW, SLOW]);
}

#[test]
fn answers_that_are_lost_make_no_second_object() {
    let failures = check(
        4,
        &[Fault::LoseAnswer, Fault::LoseAnswer, Fault::LoseAnswer],
    );
    assert!(failures.transport >= 1, "{failures:?}");
}

#[test]
fn one_after_the_other() {
    let mut state = 7_u64;
    let faults: Vec<Fault> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        match (state >> 33) % 10 {
            0 => Fault::Reset,
            1 => Fault::ResetMidBody(500),
            2 => Fault::LoseAnswer,
            3 => SLOW,
            4 => BROKEN,
            5 => BUSY,
            6 => TOO_MANY,
            _ => Fault::Pass,
        }
    })
    .take(60)
    .collect();
    check(25, &faults);
}
