//! The flight recorder: nothing on the disk until somebody wants the last seconds.
//!
//! In: programs that serve, stall, panic and crash; `--on-demand`; `dump`, SIGUSR1, a
//! disk that is full. Out: the window, whole and once. Never: a segment that nobody
//! asked for; memory beyond the budget.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use dial9_bpf_integration::{
    Attach, Build, Facts, Outcome, TestProgram, Tracer, mount, output_dir, require_root,
    segment::{files, sealed_segments},
    wait,
};
use rustix::{
    process::Signal,
    time::{ClockId, clock_gettime},
};

const SECOND_NS: u64 = 1_000_000_000;

/// A recorder with a window of so many seconds.
fn on_demand(program: &TestProgram, output: &Path, window: &str) -> Attach {
    let pid = program.pid().to_string();
    Attach::command(&["attach", "--pid", &pid, "--on-demand", window, "--output"]).arg(output)
}

fn dump(output: &Path) -> Outcome {
    Attach::command(&["dump"]).arg(output).outcome()
}

fn serving() -> TestProgram {
    require_root();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    program
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, ns) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * SECOND_NS + ns
}

fn traces(output: &Path) -> usize {
    let is_trace = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("trace.")
    };
    files(output).iter().filter(is_trace).count()
}

/// Segments that follow each other: the first event of the first, the last of the
/// last.
fn expect_contiguous(segments: &[PathBuf]) -> (u64, u64) {
    let facts = segments
        .iter()
        .map(|segment| Facts::of(std::slice::from_ref(segment)));
    let facts: Vec<Facts> = facts.collect();
    for pair in facts.windows(2) {
        assert_eq!(pair[0].last_ns, pair[1].first_ns);
    }
    let (first, last) = (facts.first(), facts.last());
    (first.expect("one").first_ns, last.expect("one").last_ns)
}

#[test]
fn a_dump_has_the_last_seconds_and_the_next_one_what_follows() {
    let program = serving();
    let output = output_dir();
    let tracer = on_demand(&program, output.path(), "4s").attached();
    thread::sleep(Duration::from_secs(6));
    assert_eq!(traces(output.path()), 0);

    let asked_ns = now_ns();
    let outcome = dump(output.path());
    outcome.expect(0);
    assert!(outcome.stdout.contains(": SIGUSR1"), "{outcome:#?}");
    let first = sealed_segments(output.path());
    let (from_ns, to_ns) = expect_contiguous(&first);
    // The window and the segment in which it begins, to the time of the signal.
    let span_ns = to_ns - from_ns;
    assert!(
        (4 * SECOND_NS..6 * SECOND_NS).contains(&span_ns),
        "{span_ns}"
    );
    assert!(to_ns >= asked_ns, "{to_ns} {asked_ns}");
    let facts = Facts::of(&first);
    facts.expect_lossless();
    assert_eq!(facts.metadata["dial9-bpf.dump"], "SIGUSR1");

    tracer.signal(Signal::USR1);
    wait::until("the second dump", || {
        (traces(output.path()) > first.len()).then_some(())
    });
    let outcome = tracer.interrupt();
    outcome.expect(0);
    assert!(outcome.stdout.contains("2, with "), "{outcome:#?}");
    let all = sealed_segments(output.path());
    let (again_ns, _) = expect_contiguous(&all[first.len()..]);
    assert!(again_ns >= to_ns, "{again_ns} {to_ns}");
    assert!(program.exit().success());
}

#[test]
fn what_nobody_wants_leaves_nothing() {
    let mut program = serving();
    let output = output_dir();
    let tracer = on_demand(&program, output.path(), "1s").attached();
    program.wait_for_progress(1000);
    let outcome = tracer.interrupt();
    outcome.expect(0);
    assert!(outcome.stdout.contains("0, with 0 events"), "{outcome:#?}");
    assert_eq!(files(output.path()), Vec::<PathBuf>::new());
    assert!(program.exit().success());
}

/// Memory that a process has for segments, bytes.
fn held(tracer: &Tracer) -> u64 {
    let fds = fs::read_dir(format!("/proc/{}/fd", tracer.pid())).expect("it runs");
    let is_segment = |path: &PathBuf| {
        let name = fs::read_link(path).unwrap_or_default();
        name.to_string_lossy().contains("memfd:dial9-bpf segment")
    };
    let paths = fds.map(|fd| fd.expect("it can be read").path());
    let sizes = paths.filter(is_segment).map(|path| {
        // Gone by now, perhaps.
        fs::metadata(path).map_or(0, |metadata| metadata.len())
    });
    sizes.sum()
}

#[test]
fn memory_is_what_it_may_be() {
    const BUDGET: u64 = 8 << 20;
    let program = serving();
    let output = output_dir();
    let tracer = on_demand(&program, output.path(), "1h")
        .arg("--on-demand-bytes")
        .arg(BUDGET.to_string())
        .attached();
    let mut most = 0;
    let full = |most: &mut u64| {
        wait::until("the budget is used", || {
            *most = held(&tracer).max(*most);
            (*most > BUDGET / 8 * 6).then_some(())
        });
    };
    full(&mut most);
    for _ in 0..100 {
        most = held(&tracer).max(most);
        thread::sleep(Duration::from_millis(30));
    }
    let outcome = dump(output.path());
    outcome.expect(0);
    full(&mut most);
    // A pass may be a little late to look.
    assert!(most <= BUDGET + BUDGET / 16, "{most}");
    let segments = sealed_segments(output.path());
    expect_contiguous(&segments);
    Facts::of(&segments).expect_lossless();
    tracer.interrupt().expect(0);
    assert!(program.exit().success());
}

fn ending() -> TestProgram {
    require_root();
    TestProgram::start_with("ends", Build::Plain, |command| {
        command.stderr(std::process::Stdio::null());
    })
}

#[test]
fn a_poll_that_is_too_long() {
    let mut program = ending();
    let output = output_dir();
    let tracer = on_demand(&program, output.path(), "2s")
        .arg("--on-demand-poll")
        .arg("80ms")
        .attached();
    program.ask("stall 5", "stalled");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(traces(output.path()), 0);
    let task = program.ask("stall 100", "stalled");
    wait::until("a dump", || (traces(output.path()) > 0).then_some(()));
    tracer.interrupt().expect(0);
    let facts = Facts::of_dir(output.path());
    facts.expect_lossless();
    let reason = &facts.metadata["dial9-bpf.dump"];
    assert!(reason.starts_with("a poll of 1"), "{reason}");
    assert!(
        reason.contains(&format!("task {task}, thread ")),
        "{reason}"
    );
    let id = task.parse::<u64>().expect("a number");
    assert_eq!(facts.tasks[&id].polls, 1);
    program.say("exit 0");
    assert!(program.wait().success());
}

#[test]
fn a_panic() {
    let mut program = ending();
    let output = output_dir();
    let tracer = on_demand(&program, output.path(), "1m").attached();
    program.say("panics");
    program.hear_until("panicked");
    wait::until("a dump", || (traces(output.path()) > 0).then_some(()));
    // A minute after the last dump there may be another, and at the end.
    program.say("panics");
    program.hear_until("panicked");
    program.say("exit 3");
    program.wait();
    let outcome = tracer.outcome();
    outcome.expect(0);
    assert!(outcome.stdout.contains("2, with "), "{outcome:#?}");
    expect_contiguous(&sealed_segments(output.path()));
    let facts = Facts::of_dir(output.path());
    facts.expect_lossless();
    assert_eq!(facts.panics.len(), 42);
    assert_eq!(facts.metadata["dial9-bpf.dump"], "a panic");
}

fn ended(word: &str, output: &Path) -> Outcome {
    let mut program = ending();
    let tracer = on_demand(&program, output, "1m").attached();
    program.say(word);
    program.wait();
    let outcome = tracer.outcome();
    outcome.expect(0);
    outcome
}

#[test]
fn a_crash() {
    let output = output_dir();
    let outcome = ended("fault", output.path());
    let facts = Facts::of_dir(output.path());
    assert!(outcome.stdout.contains("1, with "), "{outcome:#?}");
    let reason = &facts.metadata["dial9-bpf.dump"];
    let expected = "the target ended: signal 11 (SIGSEGV), thread ";
    assert!(reason.starts_with(expected), "{reason}");
    facts.expect_lossless();
    assert!(facts.end.is_some());
}

#[test]
fn an_end_without_a_crash() {
    let output = output_dir();
    let outcome = ended("exit 3", output.path());
    assert!(outcome.stdout.contains("0, with 0 events"), "{outcome:#?}");
    assert_eq!(traces(output.path()), 0);
}

#[test]
fn a_dump_that_finds_the_disk_full() {
    let mut program = serving();
    let scratch = output_dir();
    let small = mount::tmpfs(scratch.path(), "size=24m");
    let mut tracer = on_demand(&program, small.path(), "2s").attached();
    program.wait_for_progress(1000);
    let filler = small.path().join("filler");
    // Cut short by the end of the disk.
    drop(fs::write(&filler, vec![1; 32 << 20]));
    tracer.signal(Signal::USR1);
    let told = tracer.wait_until_said("the dump waits: ");
    told.expect("it goes on");
    fs::remove_file(filler).expect("it is there");
    wait::until("a segment", || {
        let is_compressed = |path: &PathBuf| path.extension().is_some_and(|e| e == "gz");
        files(small.path()).iter().any(is_compressed).then_some(())
    });
    tracer.interrupt().expect(0);
    let segments = sealed_segments(small.path());
    expect_contiguous(&segments);
    Facts::of(&segments).expect_lossless();
    assert!(program.exit().success());
}

#[test]
fn a_dump_that_nobody_can_answer() {
    let program = serving();
    let output = output_dir();
    let name = output.path().to_str().expect("it is text");
    dump(output.path()).expect_failure(1, &["nobody records into", name]);
    let nowhere = output.path().join("nowhere");
    dump(&nowhere).expect_failure(1, &["nobody records into"]);

    let tracer = Attach::to(program.pid(), output.path()).attached();
    dump(output.path()).expect_failure(1, &["without --on-demand", name]);
    // It would have ended the recorder.
    tracer.signal(Signal::USR1);
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let denied = Attach::command(&["dump"]).arg(output.path()).under(&nobody);
    denied.outcome().expect_failure(3, &["not allowed", name]);
    tracer.interrupt().expect(0);
    assert!(program.exit().success());
}
