//! How long it takes to attach to a large program, and how much memory.
//!
//! `cargo xtask bench --only large` builds the program (`integration/large`) and runs
//! this, as root. The command is the one that users run, with its defaults: time counts
//! from its start to its line that all links are live, and from Ctrl-C to its end.
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::{fs, time::Instant};

use dial9_bpf_integration::{
    Attach, TestProgram, output_dir, proc, require_root, target_dir::target_dir,
};

/// Attachments to the program.
const ROUNDS: usize = 7;
/// Limits on the time to attach, ms, on that to detach, and on memory, MiB.
const LIMITS: [u64; 3] = [2_000, 2_000, 150];

fn main() {
    require_root();
    let program = target_dir()
        .expect("cargo built us")
        .join("large/release/large");
    let large = TestProgram::start_at(&program, |_| ());
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| attach(large.pid())).collect();
    assert!(large.exit().success());
    let bytes = fs::metadata(&program).expect("it ran").len();
    println!("\n{} MB, {}", bytes / 1_000_000, rounds[0].said);
    println!("median of {ROUNDS}, and the worst\n");
    let mut row = |name: &str, of: fn(&Round) -> u64, limit: u64| {
        rounds.sort_by_key(of);
        let (median, worst) = (of(&rounds[ROUNDS / 2]), of(&rounds[ROUNDS - 1]));
        println!("{name:<28} {median:>6} {worst:>6}   (limit {limit})");
    };
    row("attached after, ms", |round| round.attach_ms, LIMITS[0]);
    row("  cpu time of that, ms", |round| round.cpu_ms, LIMITS[0]);
    row("ended after, ms", |round| round.detach_ms, LIMITS[1]);
    row("most memory, MiB", |round| round.peak_mib, LIMITS[2]);
}

struct Round {
    attach_ms: u64,
    cpu_ms: u64,
    detach_ms: u64,
    peak_mib: u64,
    said: String,
}

fn attach(pid: u32) -> Round {
    let output = output_dir();
    let began = Instant::now();
    let tracer = Attach::to(pid, output.path()).attached();
    let attach_ms = ms_since(began);
    let (cpu_ms, peak_mib) = (
        proc::cpu_ms(tracer.pid()),
        proc::peak_kib(tracer.pid()) >> 10,
    );
    let began = Instant::now();
    let outcome = tracer.interrupt();
    let detach_ms = ms_since(began);
    outcome.expect(0);
    let said = outcome.stderr[0].split("): ").nth(1).unwrap_or_default();
    Round {
        attach_ms,
        cpu_ms,
        detach_ms,
        peak_mib,
        said: said.to_owned(),
    }
}

fn ms_since(began: Instant) -> u64 {
    began
        .elapsed()
        .as_millis()
        .try_into()
        .expect("not for ever")
}
