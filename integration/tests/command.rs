//! The command as its users see it.
//!
//! In: command lines. Out: what they print. Never: an exact layout; only what
//! the README promises.

use std::{fs, path::Path};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, proc, require_root,
    segment::{files, sealed_segments, unpacked},
};
use rustix::process::Signal;

const PROBES: [&str; 7] = [
    "poll-start",
    "poll-end",
    "wake",
    "spawn",
    "terminate",
    "park",
    "unpark",
];

#[test]
fn a_dry_run_says_what_would_be_probed_and_what_it_costs() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("serve", Build::Plain);
    let traces = output.path().join("traces");
    let outcome = Attach::to(program.pid(), &traces)
        .arg("--dry-run")
        .arg("--signals")
        .arg("tokio,io")
        .outcome();
    outcome.expect(0);
    for of in ["block-io", "syncs"] {
        let is_there = |line: &str| match of {
            "syncs" => line.starts_with("files synced: "),
            _ => line.starts_with("block I/O: "),
        };
        let is_missing = |line: &str| line.starts_with(&format!("missing: {of}: "));
        let mut said = outcome.stdout.lines();
        assert!(
            said.any(|line| is_there(line) != is_missing(line)),
            "{of}: {}",
            outcome.stdout
        );
    }
    for word in PROBES {
        assert!(
            outcome.stdout.contains(word),
            "no {word}: {}",
            outcome.stdout
        );
    }
    for word in ["emulated", "1,000", "10,000", "100,000", "polls/s", "ns"] {
        assert!(
            outcome.stdout.contains(word),
            "no {word}: {}",
            outcome.stdout
        );
    }
    assert!(!traces.exists(), "a dry run writes nothing");
    let breakpoints = proc::changed_code(program.pid(), program.path());
    assert_eq!(breakpoints, 0, "a dry run attaches to nothing");
}

#[test]
fn a_dry_run_of_a_stripped_program_says_what_is_missing() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("serve", Build::Stripped);
    let outcome = Attach::to(program.pid(), output.path())
        .arg("--dry-run")
        .outcome();
    outcome.expect(0);
    assert!(outcome.stdout.contains("missing"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("spawn"), "{}", outcome.stdout);
}

#[test]
fn a_duration_ends_it() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let outcome = Attach::to(program.pid(), output.path())
        .arg("--duration")
        .arg("1s")
        .outcome();
    outcome.expect(0);
    let [segment] = &sealed_segments(output.path())[..] else {
        panic!("{outcome:#?}")
    };
    let name = segment
        .file_name()
        .and_then(|name| name.to_str())
        .expect("it is text");
    assert!(
        outcome.stdout.contains(name),
        "the summary names the file: {outcome:#?}"
    );
    let facts = Facts::of_dir(output.path());
    facts.expect_lossless();
    assert!(facts.broken.is_empty(), "{:?}", facts.broken);
    let seconds = (facts.last_ns - facts.first_ns) / 1_000_000_000;
    assert!(seconds < 30, "{seconds} s of trace");
}

/// A line that nobody can be told is no reason to end, nor to end otherwise.
#[test]
fn a_stderr_that_takes_nothing_changes_nothing() {
    require_root();
    let mut program = TestProgram::start("serve", Build::Plain);
    let idle = TestProgram::start("idle_std", Build::Plain);
    program.ask("load", "loaded");
    for stderr in ["2>/dev/full", "2>&-"] {
        let shell = ["sh", "-c", &format!("exec \"$@\" {stderr}"), "sh"];
        let output = output_dir();
        let attach = Attach::to(program.pid(), output.path()).under(&shell);
        attach.arg("--duration").arg("2s").outcome().expect(0);
        let facts = Facts::of_dir(output.path());
        facts.expect_lossless();
        assert!(facts.count("PollStartEvent") > 100, "{:?}", facts.counts);
        let refused = Attach::to(idle.pid(), output.path()).under(&shell);
        refused.outcome().expect(6);
    }
}

/// SIGHUP is what a terminal sends when it is closed.
#[test]
fn every_signal_that_asks_for_an_end_leaves_a_sealed_segment() {
    require_root();
    let program = TestProgram::start("serve", Build::Plain);
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM] {
        let output = output_dir();
        let tracer = Attach::to(program.pid(), output.path()).attached();
        tracer.signal(signal);
        tracer.outcome().expect(0);
        assert_eq!(sealed_segments(output.path()).len(), 1, "{signal:?}");
        Facts::of_dir(output.path()).expect_lossless();
    }
}

#[test]
fn a_hang_up_that_nohup_ignores_ends_nothing() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    let tracer = Attach::to(program.pid(), output.path())
        .under(&["nohup"])
        .attached();
    tracer.signal(Signal::HUP);
    program.ask("load", "loaded");
    program.wait_for_progress(1_000);
    program.ask("rest", "resting");
    tracer.interrupt().expect(0);
    let facts = Facts::of_dir(output.path());
    assert!(facts.count("PollStartEvent") > 1_000, "{:?}", facts.counts);
}

#[test]
fn it_ends_with_its_target() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("load", "loaded");
    program.wait_for_progress(1_000);
    program.ask("rest", "resting");
    assert!(program.exit().success());
    tracer.outcome().expect(0);
    Facts::of_dir(output.path()).expect_lossless();
}

#[test]
fn a_segment_is_checked() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("load", "loaded");
    program.wait_for_progress(1_000);
    program.ask("rest", "resting");
    tracer.interrupt().expect(0);

    let segment = sealed_segments(output.path()).remove(0);
    let outcome = check(&segment);
    outcome.expect(0);
    for schema in [
        "PollStartEvent",
        "WakeEventEvent",
        "ClockSyncEvent",
        "SegmentMetadataEvent",
    ] {
        assert!(
            outcome.stdout.contains(schema),
            "no {schema}: {}",
            outcome.stdout
        );
    }

    let bytes = unpacked(&segment).expect("it is whole");
    let broken = output.path().join("broken.bin");
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2..][..64].fill(0xff);
    for content in [&bytes[..bytes.len() - 3], &flipped, b"not a trace", b""] {
        fs::write(&broken, content).expect("it can be written");
        check(&broken).expect(1);
    }
    let packed = fs::read(&segment).expect("it is there");
    fs::write(&broken, &packed[..packed.len() / 2]).expect("it can be written");
    check(&broken).expect(1);
    check(&output.path().join("nothing.bin")).expect(1);
    // One bad file among good ones is enough, and all are looked at.
    let nothing = output.path().join("nothing.bin");
    let several = Attach::command(&["check"])
        .arg(&broken)
        .arg(&nothing)
        .arg("/dev/zero")
        .arg(&segment)
        .outcome();
    several.expect(1);
    for path in [&broken, &segment] {
        let path = path.to_str().expect("it is text");
        assert!(several.stdout.contains(path), "{several:#?}");
    }
    let [absent, device] = &several.stderr[..] else {
        panic!("{several:#?}")
    };
    assert!(absent.contains("nothing.bin"), "{several:#?}");
    assert!(
        device.contains("/dev/zero: not a regular file"),
        "{several:#?}"
    );
}

fn check(path: &Path) -> dial9_bpf_integration::Outcome {
    Attach::command(&["check"]).arg(path).outcome()
}

/// Files are for the one behind sudo, and for nobody else.
#[test]
fn files_belong_to_the_user_behind_sudo() {
    use std::os::unix::fs::MetadataExt as _;
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    let sudo = ["env", "SUDO_UID=65534", "SUDO_GID=65534"];
    let tracer = Attach::to(program.pid(), output.path())
        .under(&sudo)
        .attached();
    program.ask("load", "loaded");
    program.wait_for_progress(100);
    program.ask("rest", "resting");
    tracer.interrupt().expect(0);
    for path in files(output.path()).iter().filter(|path| is_segment(path)) {
        let found = fs::metadata(path).expect("it is there");
        assert_eq!(found.uid(), 65534, "{}", path.display());
        assert_eq!(found.mode() & 0o777, 0o600, "{}", path.display());
    }
    assert_eq!(sealed_segments(output.path()).len(), 1);
}

fn is_segment(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("trace."))
}
