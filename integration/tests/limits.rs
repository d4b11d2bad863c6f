//! Limits of the system that are met while recording.
//!
//! In: a server under load; limits on files, descriptors and memory. Out: one
//! line that names the cause, a code, a target that goes on. Never: a tracer
//! that a signal ends.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, mount, output_dir, require_root,
    segment::{files, sealed_segments},
    wait,
};

#[test]
fn a_file_may_not_grow_beyond_a_limit() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let outcome = Attach::to(program.pid(), output.path())
        .under(&["prlimit", "--fsize=100000"])
        .outcome();
    outcome.expect(1);
    let reason = outcome.stderr.last().expect("it says why");
    assert!(reason.contains("File too large"), "{outcome:#?}");
    program.wait_for_progress(100);
    assert!(!files(output.path()).is_empty(), "what was whole stays");
}

#[test]
fn too_few_descriptors() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let outcome = Attach::to(program.pid(), output.path())
        .under(&["prlimit", "--nofile=20"])
        .outcome();
    outcome.expect_failure(1, &["no more than 20 files may be open"]);
    let times = outcome.stderr[0].matches("Too many open files").count();
    assert_eq!(times, 1, "{outcome:#?}");
    program.wait_for_progress(100);
}

/// Whatever is short, it is not the target that is missing.
#[test]
fn too_few_descriptors_at_any_step() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("serve", Build::Plain);
    let enough = (5..120).find(|descriptors| {
        let outcome = Attach::to(program.pid(), output.path())
            .under(&["prlimit", &format!("--nofile={descriptors}")])
            .arg("--duration")
            .arg("1ms")
            .outcome();
        let attached = outcome.code == Some(0);
        if !attached {
            outcome.expect_failure(1, &["Too many open files"]);
        }
        attached
    });
    assert!(enough.is_some());
}

/// Shells start us with less than they are allowed.
#[test]
fn the_hard_limit_of_descriptors_is_what_counts() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("serve", Build::Plain);
    Attach::to(program.pid(), output.path())
        .under(&["prlimit", "--nofile=20:1024"])
        .arg("--duration")
        .arg("1s")
        .outcome()
        .expect(0);
}

/// Each ring is a power of two: of 3 pages for each CPU, 2 are used.
#[test]
fn the_memory_that_is_used_is_said() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("serve", Build::Plain);
    let cpus = thread::available_parallelism().expect("Linux says").get();
    let outcome = Attach::to(program.pid(), output.path())
        .arg("--ring-bytes")
        .arg(format!("{}KiB", 12 * cpus))
        .arg("--duration")
        .arg("1ms")
        .outcome();
    let used = format!(", {}.0 KiB of rings, 4.0 MiB for stacks", 8 * cpus);
    assert!(outcome.expect(0).stderr[0].ends_with(&used), "{outcome:#?}");
}

#[test]
fn more_memory_than_there_is() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("serve", Build::Plain);
    let outcome = Attach::to(program.pid(), output.path())
        .arg("--ring-bytes")
        .arg("100TiB")
        .outcome();
    outcome.expect_failure(2, &["rings are too many"]);
    assert!(program.exit().success());
}

#[test]
fn a_disk_that_is_full_for_a_while() {
    require_root();
    let scratch = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let small = mount::tmpfs(scratch.path(), "size=6m");
    let filler = small.path().join("filler");
    fs::write(&filler, vec![1; 4 << 20]).expect("there is room");
    let mut tracer = Attach::to(program.pid(), small.path())
        .arg("--rotate")
        .arg("1s")
        .attached();
    let told = tracer.wait_until_said("nothing can be written for now");
    told.expect("it goes on");
    program.ask("rest", "resting");
    let before = compressed(small.path());
    fs::remove_file(filler).expect("it is there");
    wait::until("segments are compressed again", || {
        (compressed(small.path()) > before + 1).then_some(())
    });
    let outcome = tracer.interrupt();
    outcome.expect(1);
    let reason = outcome.stderr.last().expect("it says why");
    assert!(reason.contains("No space left"), "{outcome:#?}");
    assert!(outcome.stdout.contains("unwritten"), "{outcome:#?}");
    let facts = Facts::of(&sealed_segments(small.path()));
    assert!(facts.count("UnwrittenEvent") >= 1, "{:?}", facts.counts);
    assert!(program.exit().success());
}

fn compressed(dir: &Path) -> usize {
    let is_compressed = |path: &&PathBuf| path.extension().is_some_and(|end| end == "gz");
    files(dir).iter().filter(is_compressed).count()
}
