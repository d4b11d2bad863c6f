//! Targets and outputs that cannot be: one line of reason and an exit code.
//!
//! In: bad command lines, targets, users and folders. Out: codes 1, 2, 3, 5
//! and 6 (README lists them). Never: a target that is harmed by the attempt.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use dial9_bpf_integration::{
    Attach, Build, Facts, Outcome, TestProgram, mount, output_dir, proc, require_root,
    segment::{files, sealed_segments},
    target_dir::{test_program, tracer_binary},
    tracer::Tracer,
    wait,
};
use rustix::process::Signal;
use tempfile::TempDir;

#[test]
fn no_such_process() {
    require_root();
    let output = output_dir();
    let mut child = Command::new("true").spawn().expect("there is true");
    let pid = child.id();
    child.wait().expect("it ends");
    Attach::to(pid, output.path())
        .outcome()
        .expect_failure(5, &[&pid.to_string()]);
}

/// Ended, and nobody has asked how: there is a /proc/PID, without a program.
#[test]
fn a_process_that_has_ended() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("serve", Build::Plain);
    program.signal(Signal::KILL);
    wait::until("it is a zombie", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", program.pid())).ok()?;
        stat.rsplit(") ").next()?.starts_with('Z').then_some(())
    });
    let pid = program.pid().to_string();
    Attach::to(program.pid(), output.path())
        .outcome()
        .expect_failure(5, &[&pid]);
}

/// The kernel's programs would look for the target by another number.
#[test]
fn from_within_a_pid_namespace() {
    require_root();
    let output = output_dir();
    Attach::to(1, output.path())
        .under(&["unshare", "--pid", "--fork", "--mount-proc"])
        .outcome()
        .expect_failure(4, &["pid namespace"]);
}

#[test]
fn a_kernel_thread() {
    require_root();
    let output = output_dir();
    let comm = fs::read_to_string("/proc/2/comm").expect("process 2 is there");
    assert_eq!(comm.trim(), "kthreadd");
    Attach::to(2, output.path())
        .outcome()
        .expect_failure(5, &["2", "kernel thread"]);
}

#[test]
fn not_tokio() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("idle_std", Build::Plain);
    Attach::to(program.pid(), output.path())
        .outcome()
        .expect_failure(6, &["Tokio"]);
    assert!(program.exit().success());
}

/// With either it can be recorded.
#[test]
fn tokio_without_symbols_and_without_unwind_tables() {
    require_root();
    let output = output_dir();
    let built = test_program("serve", Build::Plain).expect("it can be built");
    let stripped = output.path().join("serve");
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["--strip-all", "--remove-section=.eh_frame*"]);
    let status = objcopy.args([&built, &stripped]).status();
    assert!(status.expect("there is objcopy").success());
    let program = TestProgram::start_at(&stripped, |_| ());
    let traces = output.path().join("traces");
    let attach = || Attach::to(program.pid(), &traces);
    for attach in [attach(), attach().arg("--dry-run")] {
        let outcome = attach.outcome();
        outcome.expect_failure(6, &["no site for polls", "no call of a poll function"]);
        assert_eq!(outcome.stdout, "");
    }
    assert!(!traces.exists(), "nothing is left behind");
    assert!(program.exit().success());
}

#[test]
fn a_target_that_ends_during_attach() {
    require_root();
    let mut codes = Vec::new();
    // The moment to hit is short: the tracer has opened the executable and is
    // not attached yet.
    for _ in 0..20 {
        let output = output_dir();
        let mut program = TestProgram::start("serve", Build::Plain);
        let tracer = Attach::to(program.pid(), output.path()).start();
        let stopped = stop_once_open(&tracer, program.path());
        program.signal(Signal::KILL);
        program.wait();
        tracer.signal(Signal::CONT);
        let outcome = tracer.outcome();
        let attached = outcome
            .stderr
            .iter()
            .any(|line| line.starts_with("attached"));
        match (stopped, attached) {
            (true, false) => {
                outcome.expect_failure(5, &[]);
                return;
            }
            _ => codes.push(outcome.code),
        }
    }
    panic!("never hit the moment: {codes:?}");
}

/// Stops the tracer as soon as it has the file open.
fn stop_once_open(tracer: &Tracer, executable: &Path) -> bool {
    let executable = fs::canonicalize(executable).expect("it is there");
    let opened = wait::try_until(wait::LIMIT / 10, || {
        proc::open_files(tracer.pid())
            .contains(&executable)
            .then_some(())
    });
    tracer.signal(Signal::STOP);
    opened.is_some()
}

#[test]
fn wrong_usage() {
    require_root();
    let output = output_dir();
    let path = output.path().to_str().expect("it is text");
    let one = std::process::id().to_string();
    for (args, word) in [
        (&["attach", "--pid", "0", "--output", path][..], "--pid"),
        (&["attach", "--pid", "-1", "--output", path], "-1"),
        (&["attach", "--pid", "ten", "--output", path], "--pid"),
        (&["attach", "--output", path], "--pid"),
        (
            &["attach", "--pid", &one, "--duration", "0", "--output", path],
            "--duration",
        ),
        (
            &[
                "attach",
                "--pid",
                &one,
                "--duration",
                "0s",
                "--output",
                path,
            ],
            "--duration",
        ),
        (
            &[
                "attach",
                "--pid",
                &one,
                "--ring-bytes",
                "many",
                "--output",
                path,
            ],
            "--ring-bytes",
        ),
        (&["check"], "FILE"),
        (&[], "attach"),
    ] {
        let outcome = Attach::command(args).outcome();
        outcome.expect(2);
        let said = outcome.stderr.join("\n");
        assert!(said.contains(word), "{args:?}: {outcome:#?}");
    }
}

/// The command as anybody may run it, and a folder where anybody may write.
fn for_anybody() -> (TempDir, PathBuf) {
    let dir = output_dir();
    let open = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("it is ours");
    };
    open(dir.path());
    let binary = dir.path().join("dial9-bpf");
    fs::copy(tracer_binary().expect("it is built"), &binary).expect("it can be copied");
    open(&binary);
    (dir, binary)
}

const AS_NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

#[test]
fn an_ordinary_user_and_a_process_of_root() {
    require_root();
    let (dir, binary) = for_anybody();
    let program = TestProgram::start("serve", Build::Plain);
    let output = dir.path().join("traces");
    let attach = Attach::to(program.pid(), &output)
        .binary(binary)
        .under(&AS_NOBODY);
    attach.outcome().expect_failure(3, &["not permitted"]);
    assert!(program.exit().success());
}

#[test]
fn an_ordinary_user_and_a_process_of_theirs() {
    require_root();
    let (dir, binary) = for_anybody();
    let mut program = TestProgram::start_with("serve", Build::Plain, |command| {
        use std::os::unix::process::CommandExt as _;
        command.uid(65534).gid(65534);
    });
    let output = dir.path().join("traces");
    let attach = Attach::to(program.pid(), &output)
        .binary(binary)
        .under(&AS_NOBODY);
    attach.outcome().expect_failure(3, &["CAP_BPF"]);
    program.ask("load", "loaded");
    program.wait_for_progress(100);
}

#[test]
fn root_without_the_capabilities() {
    require_root();
    let output = output_dir();
    let program = TestProgram::start("serve", Build::Plain);
    let without = ["setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin"];
    let attach = Attach::to(program.pid(), output.path()).under(&without);
    attach.outcome().expect_failure(3, &["CAP_BPF"]);
    assert!(program.exit().success());
}

/// `uprobe_multi` links (Linux 6.6) need two capabilities and no more.
#[test]
fn root_without_cap_sys_admin_may() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    let without = ["setpriv", "--bounding-set=-sys_admin"];
    let tracer = Attach::to(program.pid(), output.path())
        .under(&without)
        .attached();
    program.ask("load", "loaded");
    program.wait_for_progress(100);
    program.ask("rest", "resting");
    tracer.interrupt().expect(0);
    Facts::of_dir(output.path())
        .expect_lossless()
        .expect_sound();
}

#[test]
fn a_folder_that_cannot_be_written() {
    require_root();
    let scratch = output_dir();
    let program = TestProgram::start("serve", Build::Plain);
    let file = scratch.path().join("file");
    fs::write(&file, "").expect("it can be written");
    let below_file = file.join("traces");
    let read_only = mount::tmpfs(scratch.path(), "ro");
    for output in [
        below_file,
        read_only.path().to_owned(),
        read_only.path().join("traces"),
    ] {
        let outcome = Attach::to(program.pid(), &output).outcome();
        outcome.expect_failure(1, &[output.to_str().expect("it is text")]);
    }
    assert!(program.exit().success());
}

#[test]
fn a_disk_that_is_full() {
    require_root();
    let scratch = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let small = mount::tmpfs(scratch.path(), "size=2m");
    let tracer = Attach::to(program.pid(), small.path()).attached();
    // It ends by itself when the disk is full.
    let outcome: Outcome = tracer.outcome();
    outcome.expect(1);
    let reason = outcome.stderr.last().expect("it says why");
    assert!(reason.contains("No space left"), "{outcome:#?}");
    program.wait_for_progress(100);
    program.ask("rest", "resting");
    assert!(program.exit().success());

    // Sealed or not, each file is whole as far as it goes.
    let mut polls = 0;
    for trace in files(small.path())
        .into_iter()
        .filter(|path| is_trace(path))
    {
        let facts = Facts::of(&[trace]);
        assert!(facts.broken.is_empty(), "{:?}", facts.broken);
        polls += facts.count("PollStartEvent");
    }
    assert!(polls > 10_000, "{polls}");
}

fn is_trace(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("trace."))
}

#[test]
fn a_second_tracer_on_the_same_target_and_output() {
    require_root();
    let (output, other) = (output_dir(), output_dir());
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let first = Attach::to(program.pid(), output.path()).attached();
    let pid = program.pid().to_string();
    Attach::to(program.pid(), output.path())
        .outcome()
        .expect_failure(1, &[&pid]);
    let second = Attach::to(program.pid(), other.path()).attached();
    program.wait_for_progress(1_000);
    first.interrupt().expect(0);
    program.wait_for_progress(100);
    second.interrupt().expect(0);
    program.ask("rest", "resting");
    assert!(program.exit().success());
    for output in [output, other] {
        assert_eq!(sealed_segments(output.path()).len(), 1);
        let facts = Facts::of_dir(output.path());
        facts.expect_lossless();
        assert!(facts.broken.is_empty() && facts.count("PollStartEvent") > 100);
    }
}
