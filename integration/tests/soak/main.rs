//! A recording that goes on for long, whatever happens to it.
//!
//! In: a steady load of 200,000 events a second, epochs of two seconds, a store
//! that fails at random, a recorder that is killed at random and started again on
//! the same directory. Out: a report; no event is missing but around the kills.
//! Never: a random number that the seed in the report does not give again.
//!
//! `cargo xtask soak` runs the long form, `cargo xtask test` the short one.
#![expect(
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "it reports"
)]

mod audit;
#[path = "../../../userspace/ship/tests/s3/proxy.rs"]
#[expect(clippy::unwrap_used, reason = "a test")]
mod proxy;
mod run;
#[path = "../../../userspace/ship/tests/s3/server.rs"]
#[expect(dead_code, reason = "has more than is used here")]
#[expect(clippy::unwrap_used, reason = "a test")]
mod server;
mod store;

use std::{env, time::Duration};

use dial9_bpf_integration::{Build, TestProgram, output_dir, require_root, truth};
use run::{History, Plan};
use store::Store;

/// Each has a start, an end and a wake: 200,000 events.
const POLLS_A_SECOND: &str = "66700";

/// Where `cargo xtask soak` says how long, and which random numbers.
const MINUTES: &str = "DIAL9_BPF_SOAK_MINUTES";
const SEED: &str = "DIAL9_BPF_SOAK_SEED";

#[test]
fn forty_seconds_and_a_kill() {
    soak(&Plan {
        length: Duration::from_secs(40),
        warm_up: Duration::from_secs(10),
        kills: 1,
        outages: 1,
        seed: 9,
        has_flat_memory: false,
    });
}

#[test]
#[ignore = "takes long: cargo xtask soak runs it"]
fn as_long_as_told() {
    let told = |name| env::var(name).ok().and_then(|value| value.parse().ok());
    let minutes = told(MINUTES).unwrap_or(30);
    let length = Duration::from_mins(minutes);
    soak(&Plan {
        length,
        warm_up: length / 15,
        kills: 3,
        outages: usize::try_from(minutes / 2).expect("not for ever"),
        seed: told(SEED).unwrap_or(9),
        has_flat_memory: true,
    });
}

fn soak(plan: &Plan) {
    require_root();
    let folder = output_dir();
    let (counted, spool) = (folder.path().join("truth.tsv"), folder.path().join("spool"));
    let store = Store::start(plan.seed);
    let mut program = TestProgram::start_with("steady", Build::Plain, |command| {
        command.arg(&counted).arg(POLLS_A_SECOND);
    });
    let mut history = run::run(plan, &store, &mut program, &spool);
    assert!(program.exit().success());

    println!("{}", history.report(plan));
    println!("store: {}", store.report());
    let segments = audit::segments(&store, &spool, &mut history.wrong);
    let recordings = audit::read(&segments, &history.recorders, &mut history.wrong);
    let told = audit::compare(&truth::read(&counted), &recordings, &mut history.wrong);
    println!("{}", audit::report(&recordings, &told));
    conclude(&history);
}

fn conclude(history: &History) {
    let shown = &history.wrong[..history.wrong.len().min(20)];
    let count = history.wrong.len();
    assert!(shown.is_empty(), "{count} things are wrong: {shown:#?}");
    println!("nothing is wrong");
}
