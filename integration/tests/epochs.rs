//! A recording in epochs: its segments are one trace, and outlive the tracer.
//!
//! In: programs that count, `--rotate`, a tracer that is killed, a small spool, a
//! store that is a directory. Out: equal sums over the segments; a spool that
//! says what became of each. Never: a segment that is neither here nor told.

use std::{
    fs,
    path::{Path, PathBuf},
};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, Tracer, output_dir, require_root,
    segment::{TaskFacts, files, sealed_segments},
    truth::{self, TrueTask},
    wait,
};
use rustix::process::Signal;

fn rotating(program: &TestProgram, output: &Path) -> Attach {
    Attach::to(program.pid(), output).arg("--rotate").arg("1s")
}

fn serving() -> TestProgram {
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    program
}

fn names(dir: &Path) -> Vec<String> {
    let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    files(dir).iter().filter_map(name).collect()
}

fn expect_said(text: &str, words: &[&str]) {
    let found = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(text.lines().any(found), "no {words:?} in {text}");
}

#[test]
fn sums_over_the_segments_are_the_truth() {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = TestProgram::start_with("truth", Build::Plain, |command| {
        command.arg(&counted);
    });
    let tracer = rotating(&program, output.path()).attached();
    program.ask("go", "done");
    has_segments(output.path(), 3);
    tracer.interrupt().expect(0);
    assert!(program.exit().success());

    let segments = sealed_segments(output.path());
    assert!(segments.len() > 2, "{segments:?}");
    let mut end_ns = None;
    for segment in &segments {
        let facts = Facts::of(std::slice::from_ref(segment));
        // Neither a gap nor an overlap.
        assert_eq!(end_ns.unwrap_or(facts.first_ns), facts.first_ns);
        end_ns = Some(facts.last_ns);
        Attach::command(&["check"]).arg(segment).outcome().expect(0);
    }
    let facts = Facts::of(&segments);
    facts.expect_lossless().expect_at_rest();
    expect_sums(&truth::read(&counted), &facts);
}

/// A task is announced in each segment that has it; all else is there once.
fn expect_sums(truth: &[TrueTask], facts: &Facts) {
    let nothing = TaskFacts::default();
    for task in truth {
        let told = facts.tasks.get(&task.id).unwrap_or(&nothing);
        let (polls, runs) = if task.blocking {
            (0, task.entries)
        } else {
            (task.entries, 0)
        };
        assert_eq!((told.polls, told.blocking_runs), (polls, runs), "{task:?}");
        if !task.blocking {
            assert_eq!(told.wakes, task.wakes, "{task:?}");
        }
    }
}

/// Waits until so many segments are compressed.
fn has_segments(dir: &Path, count: usize) {
    wait::until("segments are compressed", || {
        let compressed = names(dir).iter().filter(|n| n.ends_with(".bin.gz")).count();
        (compressed >= count).then_some(())
    });
}

#[test]
fn what_a_killed_tracer_left_is_recovered() {
    require_root();
    let output = output_dir();
    let mut program = serving();
    let tracer: Tracer = rotating(&program, output.path()).attached();
    has_segments(output.path(), 1);
    tracer.signal(Signal::KILL);
    assert_eq!(tracer.outcome().code, None);
    let is_active = |name: &String| name.ends_with(".active");
    assert!(names(output.path()).iter().any(is_active));

    let second = Attach::to(program.pid(), output.path()).attached();
    program.wait_for_progress(100);
    let outcome = second.interrupt();
    outcome.expect(0);
    expect_said(&outcome.stderr.join("\n"), &["recovered 1", "discarded 0"]);
    assert!(!names(output.path()).iter().any(is_active));
    Facts::of_dir(output.path());
    assert!(program.exit().success());
}

#[test]
fn the_next_tracer_uploads_what_a_killed_one_left_in_its_name() {
    require_root();
    let (output, store) = (output_dir(), output_dir());
    let (first, mut second) = (serving(), serving());
    let of = |program: &TestProgram, service: &str| {
        let attach = rotating(program, output.path()).arg("--service");
        attach.arg(service)
    };
    let tracer = of(&first, "killed").attached();
    has_segments(output.path(), 1);
    tracer.signal(Signal::KILL);
    assert_eq!(tracer.outcome().code, None);

    let upload = format!("file://{}", store.path().display());
    let tracer = of(&second, "next").arg("--upload").arg(upload).attached();
    second.wait_for_progress(100);
    let outcome = tracer.interrupt();
    outcome.expect(0);
    let said = outcome
        .stderr
        .iter()
        .filter(|line| line.contains("spool: "));
    assert_eq!(said.count(), 1, "{outcome:#?}");
    let mut objects = Vec::new();
    collect(store.path(), &mut objects);
    let keys = objects.iter().map(|object| object.display().to_string());
    let (killed, next): (Vec<_>, Vec<_>) = keys.partition(|key| key.contains("/service=killed/"));
    let boot = |program: &TestProgram| format!("-{}/", program.pid());
    assert!(killed.len() > 1 && killed.iter().all(|key| key.contains(&boot(&first))));
    assert!(!next.is_empty() && next.iter().all(|key| key.contains(&boot(&second))));
    assert!(first.exit().success() && second.exit().success());
}

#[test]
fn a_spool_has_one_tracer_whatever_the_process() {
    require_root();
    let output = output_dir();
    let (first, second) = (serving(), serving());
    let tracer = rotating(&first, output.path()).attached();
    let holder = format!("process {}", tracer.pid());
    let refused = rotating(&second, output.path()).outcome();
    refused.expect_failure(1, &["is the spool of", &holder]);
    has_segments(output.path(), 1);
    tracer.interrupt().expect(0);
    Facts::of_dir(output.path()).expect_lossless();
    assert!(first.exit().success() && second.exit().success());
}

#[test]
fn a_small_spool_evicts_the_oldest_and_says_so() {
    require_root();
    let output = output_dir();
    let mut program = serving();
    let outcome = rotating(&program, output.path())
        .arg("--spool-bytes")
        .arg("4KiB")
        .arg("--duration")
        .arg("4s")
        .outcome();
    outcome.expect(0);
    expect_said(&outcome.stdout, &["evicted", "segments"]);
    assert!(!names(output.path()).contains(&"trace.0.bin.gz".to_owned()));
    program.ask("rest", "resting");
    assert!(program.exit().success());
}

#[test]
fn an_upload_empties_the_spool() {
    require_root();
    let (output, store) = (output_dir(), output_dir());
    let program = serving();
    let outcome = rotating(&program, output.path())
        .arg("--upload")
        .arg(format!("file://{}", store.path().display()))
        .arg("--service")
        .arg("shop")
        .arg("--instance")
        .arg("blue")
        .arg("--duration")
        .arg("3s")
        .outcome();
    outcome.expect(0);
    expect_said(&outcome.stdout, &["left in the spool", "0 segments"]);
    let left = names(output.path());
    assert!(!left.iter().any(|n| n.starts_with("trace.")), "{left:?}");
    let mut objects = Vec::new();
    collect(store.path(), &mut objects);
    assert!(objects.len() > 2, "{objects:?}");
    for object in &objects {
        let key = object.display().to_string();
        for part in ["/version=1/date=", "/service=shop/", "/instance=blue/boot="] {
            assert!(key.contains(part), "{key}");
        }
    }
    let facts = Facts::of(&objects);
    assert!(facts.count("PollStartEvent") > 100, "{:?}", facts.counts);
    assert!(program.exit().success());
}

fn collect(dir: &Path, objects: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("it is there") {
        let path = entry.expect("it can be read on").path();
        if path.is_dir() {
            collect(&path, objects);
        } else {
            objects.push(path);
        }
    }
}
