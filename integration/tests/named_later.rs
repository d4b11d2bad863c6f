//! Segments that do not get their names at once: their recorder is killed while it looks
//! for them, or nobody wants them until later.
//!
//! In: a program that is busy in functions of its own. Out: segments in which the addresses
//! of stacks have names. Never: one that has stacks and no names.

use std::{fs, path::Path, time::Duration};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram,
    called::names,
    output_dir, proc, require_root,
    segment::{sealed_segments, unpacked},
    wait,
};
use rustix::process::Signal;

fn busy(dir: &Path) -> TestProgram {
    require_root();
    let mut program = TestProgram::start_with("steady", Build::Plain, |command| {
        command.arg(dir.join("facts")).arg("50000");
    });
    program.say("go");
    assert_eq!(program.hear(), "going");
    program
}

/// A segment that is sealed, and not yet compressed: its names are being looked for.
fn is_being_named(output: &Path) -> bool {
    let entries = fs::read_dir(output).into_iter().flatten();
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.any(|path| path.extension().is_some_and(|extension| extension == "bin"))
}

/// Every segment with stacks has names; returns how many have.
fn expect_named(output: &Path) -> usize {
    let mut named = 0;
    for path in sealed_segments(output) {
        let mut facts = Facts::default();
        facts.add(&path).expect("it decodes");
        if facts.stacks.is_empty() {
            continue;
        }
        let (names, metadata) = names(&unpacked(&path).expect("it is whole"));
        let told = metadata.get("dial9-bpf.symbols.named").cloned();
        assert!(!names.is_empty(), "{}", path.display());
        assert_eq!(told, Some(names.len().to_string()), "{}", path.display());
        named += 1;
    }
    named
}

#[test]
fn a_recorder_that_is_killed_while_it_finds_names_leaves_them_to_the_next() {
    let output = output_dir();
    let facts = output_dir();
    let program = busy(facts.path());
    let tracer = Attach::to(program.pid(), output.path())
        .arg("--cpu-hz=499")
        .arg("--rotate=1s")
        .attached();
    // The first segment may end before the first stack.
    let has_worked = || (proc::cpu_ms(program.pid()) > 2000).then_some(());
    wait::until("it has worked", has_worked);
    // It is a short time; a kill at any other leaves a segment to be recovered.
    let is_time = || is_being_named(output.path()).then_some(());
    wait::try_until(Duration::from_secs(10), is_time);
    tracer.signal(Signal::KILL);
    let killed = tracer.outcome();
    assert_eq!(killed.code, None, "{killed:?}");
    drop(program);
    let idle = TestProgram::start("serve", Build::Plain);
    Attach::to(idle.pid(), output.path())
        .arg("--duration=1s")
        .outcome()
        .expect(0);
    assert!(expect_named(output.path()) > 0);
}

#[test]
fn a_dump_of_the_last_seconds_has_names() {
    let output = output_dir();
    let facts = output_dir();
    let program = busy(facts.path());
    let pid = program.pid().to_string();
    let tracer = Attach::command(&["attach", "--pid", &pid, "--on-demand=10s", "--cpu-hz=499"])
        .arg("--output")
        .arg(output.path())
        .attached();
    let before = proc::cpu_ms(program.pid());
    let has_worked = || (proc::cpu_ms(program.pid()) > before + 500).then_some(());
    wait::until("it has worked", has_worked);
    Attach::command(&["dump"])
        .arg(output.path())
        .outcome()
        .expect(0);
    assert!(expect_named(output.path()) > 0);
    tracer.interrupt().expect(0);
}
