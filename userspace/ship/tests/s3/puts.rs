//! What arrives, and what refuses.

use std::time::Duration;

use crate::proxy::{Fault, Proxy};
use crate::rig::{Rig, Served, TIME, wait};
use crate::server::Server;

const NO_BUCKET: Fault = Fault::Answer(
    "404 Not Found",
    "<Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>",
);
const WRONG_REGION: Fault = Fault::Answer(
    "400 Bad Request",
    "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>",
);
/// As S3 sends it, without a location.
const MOVED: Fault = Fault::Answer(
    "301 Moved Permanently",
    "<Error><Code>PermanentRedirect</Code></Error>",
);
const DENIED: Fault = Fault::Answer(
    "403 Forbidden",
    "<Error><Code>AccessDenied</Code><Message>no</Message></Error>",
);

#[test]
fn segments_arrive_with_what_dial9_says_of_them() {
    check_arrival(Rig::<Server>::new(Proxy::planned([], Fault::Pass)));
}

pub(crate) fn check_arrival(mut rig: Rig<impl Served>) {
    let courier = rig.ship(5);
    rig.wait_for_all(&courier);
    let report = rig.check(courier, TIME);
    assert_eq!(report.left.map(|left| left.segments), Some(0));
    assert_eq!(rig.proxy.seen(), 5);
    let attributes = rig.server.attributes();
    assert_eq!(attributes.len(), 5);
    for attributes in attributes {
        for said in [
            r#""service":"check out/%C3%A9""#,
            r#""boot-id":"abcd-7""#,
            r#""host":"node:1""#,
            r#""segment-index":""#,
            r#""start-time":""#,
            "application/gzip",
        ] {
            assert!(attributes.contains(said), "{said} in {attributes}");
        }
        assert!(
            !attributes.contains("gzip\",\"content_encoding"),
            "{attributes}"
        );
    }
}

#[test]
fn a_wrong_secret_leaves_all_in_the_spool_and_says_so() {
    let mut rig = Rig::<Server>::new(Proxy::planned([], Fault::Pass)).with_secret("another");
    let courier = rig.ship(4);
    let degraded = wait(&courier.status(), |status| status.degraded.is_some());
    assert_eq!(
        degraded.degraded.as_deref(),
        Some("the store answered 403 SignatureDoesNotMatch")
    );
    // It tries until there is no time for another attempt.
    let report = rig.check(courier, Duration::from_secs(1));
    assert_eq!(report.left.map(|left| left.segments), Some(4));
    assert!(report.status.degraded.is_some());
    assert!(rig.server.objects().is_empty());
}

fn check_refusal<S: Served>(start: fn(Proxy) -> Rig<S>, fault: &Fault, said: &str) {
    let mut rig = start(Proxy::planned([], fault.clone()));
    let courier = rig.ship(3);
    let degraded = wait(&courier.status(), |status| {
        status.degraded.is_some() && status.failures.refused >= 2
    });
    assert_eq!(degraded.degraded.as_deref(), Some(said));
    assert_eq!(degraded.uploaded, 0);
    rig.proxy.then(&Fault::Pass);
    let fixed = rig.wait_for_all(&courier);
    assert_eq!(fixed.degraded, None);
    rig.check(courier, TIME);
}

#[test]
fn a_refusal_that_is_fixed_loses_nothing() {
    check_denial(Rig::<Server>::new);
}

pub(crate) fn check_denial<S: Served>(start: fn(Proxy) -> Rig<S>) {
    check_refusal(start, &DENIED, "the store answered 403 AccessDenied");
}

#[test]
fn a_missing_bucket_is_a_refusal() {
    check_refusal(
        Rig::<Server>::new,
        &NO_BUCKET,
        "the store answered 404 NoSuchBucket",
    );
}

#[test]
fn a_wrong_region_is_a_refusal() {
    check_refusal(
        Rig::<Server>::new,
        &WRONG_REGION,
        "the store answered 400 AuthorizationHeaderMalformed",
    );
    check_refusal(Rig::<Server>::new, &MOVED, "the store answered 301");
}

#[test]
fn a_restart_goes_on_where_the_first_run_ended() {
    let mut rig = Rig::<Server>::new(Proxy::planned([Fault::Pass, Fault::Pass], Fault::Hang));
    let courier = rig.ship(6);
    wait(&courier.status(), |status| status.uploaded == 2);
    let report = rig.check(courier, Duration::from_millis(300));
    assert_eq!(report.left.map(|left| left.segments), Some(4));
    rig.proxy.then(&Fault::Pass);
    let courier = rig.start();
    wait(&courier.status(), |status| status.uploaded == 4);
    let report = courier.stop(TIME);
    assert_eq!(report.left.map(|left| left.segments), Some(0));
    assert_eq!(rig.server.objects().len(), 6);
}
