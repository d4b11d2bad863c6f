//! What the target forks: counted and told, and where asked for recorded exactly.
//!
//! In: a program that forks processes with a Tokio runtime of their own, and has
//! others be executed. Out: of each process that is followed what it counted itself;
//! of those that are not, nothing. Never: an event of one process in the segments of
//! another; a recorder or a breakpoint that is left behind.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, bpffs, driven::scanned, kernel::Loaded, output_dir,
    require_root, target_dir::test_program, tracer::Tracer, truth, wait,
};
use rustix::process::Signal;

const INT3: u8 = 0xcc;

fn start(tokio: bool) -> TestProgram {
    require_root();
    TestProgram::start_with("prefork", Build::Plain, |command| {
        command.args(tokio.then_some("tokio"));
    })
}

fn fork(program: &mut TestProgram, path: &str) -> u32 {
    let pid = program.ask(&format!("{path}fork"), "forked");
    pid.parse().expect("a pid")
}

/// A process works from a moment at which it is at rest; what it counted.
fn work(program: &mut TestProgram, path: &str, dir: &Path) -> Vec<truth::TrueTask> {
    let counted = dir.join("truth.tsv");
    program.ask(&format!("{path}begin"), "began");
    program.ask(&format!("{path}work"), "worked");
    program.ask(&format!("{path}truth {}", counted.display()), "written");
    truth::read(&counted)
}

fn followed(tracer: &mut Tracer, pid: u32) {
    let told = tracer.wait_until_said(&format!("fork {pid}: attached"));
    told.unwrap_or_else(|outcome| panic!("{pid} is not followed: {outcome:#?}"));
}

fn told(dir: &Path) -> Facts {
    let facts = Facts::of_dir(dir);
    facts.expect_lossless().expect_at_rest();
    facts
}

fn folder_of(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("fork-{pid}"))
}

/// Bytes at the sites in a process that is a copy of another.
fn traps(target: u32, pid: u32) -> usize {
    let (target, [object]) = scanned(target);
    let memory = File::open(format!("/proc/{pid}/mem")).expect("it runs");
    let sites = object.plan().sites.iter().filter(|site| {
        let at = target.code_address(site.file_offset).expect("it is mapped");
        let mut byte = [0];
        memory.read_exact_at(&mut byte, at).expect("it is mapped");
        byte == [INT3]
    });
    sites.count()
}

#[test]
fn a_process_that_is_not_followed_is_counted_and_told() {
    let mut program = start(true);
    let output = output_dir();
    let before = fork(&mut program, "");
    let mut tracer = Attach::to(program.pid(), output.path()).attached();
    program.ask("command", "ran");
    let pid = fork(&mut program, "");
    program.ask("brief", "brief");
    assert_eq!(traps(program.pid(), before), 0);
    assert_ne!(traps(program.pid(), pid), 0);
    let said = tracer.wait_until_said("the target has forked ");
    said.expect("it is told");
    work(&mut program, "to 1 ", output.path());
    let counted = work(&mut program, "", output.path());
    let outcome = tracer.interrupt();
    outcome.expect(0);
    let row = outcome
        .stdout
        .lines()
        .find(|line| line.contains("forked processes"));
    assert!(
        row.is_some_and(|row| row.ends_with(" 2, not traced")),
        "{outcome:#?}"
    );

    // It goes on, without the breakpoints that it had inherited.
    assert_eq!(traps(program.pid(), pid), 0);
    program.ask("to 1 work", "worked");
    assert!(program.exit().success());
    let facts = told(output.path());
    truth::expect_told(&counted, &facts, true);
    assert_eq!(facts.metadata["dial9-bpf.forked"], "2");
    assert!(!folder_of(output.path(), pid).exists());
}

/// `Command` forks, or not even that.
#[test]
fn what_is_forked_to_be_executed_is_no_fork() {
    let mut program = start(true);
    let output = output_dir();
    let tracer = Attach::to(program.pid(), output.path()).arg("--follow-forks");
    let tracer = tracer.attached();
    for _ in 0..5 {
        program.ask("command", "ran");
    }
    let outcome = tracer.interrupt();
    outcome.expect(0);
    let said = outcome
        .stdout
        .lines()
        .chain(outcome.stderr.iter().map(String::as_str));
    assert!(
        !said.clone().any(|line| line.contains("forked")),
        "{outcome:#?}"
    );
    assert!(program.exit().success());
    assert!(
        !told(output.path())
            .metadata
            .contains_key("dial9-bpf.forked")
    );
}

#[test]
fn each_process_has_a_recording_of_its_own() {
    for tokio in [true, false] {
        let mut program = start(tokio);
        let output = output_dir();
        let dir = output.path();
        let before = fork(&mut program, "");
        let attach = Attach::to(program.pid(), dir).arg("--follow-forks");
        let mut tracer = attach.attached();
        let pids: Vec<u32> = (0..2).map(|_| fork(&mut program, "")).collect();
        for _ in &pids {
            // In the order in which they come.
            tracer.wait_until_said("fork ").expect("it is followed");
        }
        program.ask("to 1 begin", "began");
        let grandchild = fork(&mut program, "to 1 ");
        followed(&mut tracer, grandchild);
        let counted = [
            (dir.to_owned(), work(&mut program, "", dir)),
            (folder_of(dir, pids[0]), work(&mut program, "to 1 ", dir)),
            (folder_of(dir, pids[1]), work(&mut program, "to 2 ", dir)),
            (
                folder_of(dir, grandchild),
                work(&mut program, "to 1 to 0 ", dir),
            ),
        ];
        program.ask("to 0 work", "worked");
        let outcome = tracer.interrupt();
        outcome.expect(0);
        let line = "forked processes: 3 recorded";
        assert!(
            outcome.stderr.iter().any(|said| said == line),
            "{outcome:#?}"
        );
        program.ask("to 1 to 0 work", "worked");
        for pid in pids.iter().chain([&grandchild]) {
            assert_eq!(traps(program.pid(), *pid), 0);
        }
        assert!(program.exit().success());

        let mut boots = Vec::new();
        for (folder, counted) in counted {
            let mut facts = told(&folder);
            truth::expect_told(&counted, &facts, true);
            boots.extend(facts.metadata.remove("boot_id"));
        }
        boots.sort();
        boots.dedup();
        assert_eq!(boots.len(), 4, "{boots:?}");
        assert!(!folder_of(dir, before).exists());
    }
}

/// Each keeps what is its own, and removes it at its end.
#[test]
fn each_process_has_rings_of_its_own_that_are_kept() {
    let mut program = start(true);
    bpffs::mount();
    let output = output_dir();
    let dir = output.path();
    let attach = Attach::to(program.pid(), dir).arg("--follow-forks");
    let mut tracer = attach.arg("--keep-rings").attached();
    let forked = fork(&mut program, "");
    followed(&mut tracer, forked);
    let [own, other] = [program.pid(), forked].map(bpffs::directory);
    assert!(own.is_some() && other.is_some(), "{own:?} {other:?}");
    assert_ne!(own, other);
    let counted = [
        (dir.to_owned(), work(&mut program, "", dir)),
        (folder_of(dir, forked), work(&mut program, "to 0 ", dir)),
    ];
    tracer.interrupt().expect(0);
    assert_eq!([program.pid(), forked].map(bpffs::directory), [None, None]);
    assert!(program.exit().success());
    for (folder, counted) in counted {
        truth::expect_told(&counted, &told(&folder), true);
    }
}

/// Of the program that `run` starts: it hears its words by way of a pipe.
#[test]
fn what_a_launched_program_forks_is_recorded_too() {
    require_root();
    let output = output_dir();
    let (words, counted) = (output.path().join("words"), output.path().join("truth.tsv"));
    let made = Command::new("mkfifo").arg(&words).status();
    assert!(made.expect("there is mkfifo").success());
    let program = test_program("prefork", Build::Plain).expect("it can be built");
    let dir = output.path().join("traces");
    let hears = format!("exec \"$@\" < {}", words.display());
    let attach = Attach::command(&["run", "--follow-forks", "--rotate", "off", "--output"]);
    let attach = attach.arg(&dir).arg("--").arg(program).arg("tokio");
    let mut tracer = attach.under(&["sh", "-c", &hears, "sh"]).start();
    let mut words = File::create(&words).expect("it is heard");
    words.write_all(b"fork\n").expect("it hears");
    tracer.wait_until_said("fork ").expect("it is followed");
    let work = format!(
        "to 0 begin\nto 0 work\nto 0 truth {}\nwork\nexit\n",
        counted.display()
    );
    words.write_all(work.as_bytes()).expect("it hears");
    drop(words);
    let outcome = tracer.outcome();
    outcome.expect(0);
    let line = "forked processes: 1 recorded";
    let is_told = |said: &String| said.ends_with(line);
    assert!(outcome.stderr.iter().any(is_told), "{outcome:#?}");
    let own = Facts::of_dir(&dir);
    own.expect_lossless();
    assert!(own.count("PollStartEvent") > 0);
    let folders = fs::read_dir(&dir).expect("it is there");
    let folders = folders.map(|entry| entry.expect("it is there").path());
    let forked: Vec<_> = folders.filter(|path| path.is_dir()).collect();
    let [forked] = &forked[..] else {
        panic!("{forked:?}")
    };
    let facts = Facts::of_dir(forked);
    facts.expect_lossless();
    truth::expect_told(&truth::read(&counted), &facts, true);
}

#[test]
fn beyond_the_limit_they_wait() {
    let mut program = start(true);
    let output = output_dir();
    let attach = Attach::to(program.pid(), output.path()).arg("--follow-forks=1");
    let mut tracer = attach.attached();
    let first = fork(&mut program, "");
    followed(&mut tracer, first);
    let second = fork(&mut program, "");
    let waits = tracer.wait_until_said(&format!("fork {second} waits: 1 are followed"));
    waits.expect("it is told");
    // The place of one that has ended is free.
    program.ask("to 0 begin", "began");
    program.say("to 0 exit");
    program.hear();
    followed(&mut tracer, second);
    let third = fork(&mut program, "");
    let counted = work(&mut program, "to 1 ", output.path());
    let outcome = tracer.interrupt();
    outcome.expect(0);
    let line = "forked processes: 2 recorded, 1 beyond the limit";
    assert!(
        outcome.stderr.iter().any(|said| said == line),
        "{outcome:#?}"
    );
    assert!(program.exit().success());
    let facts = told(&folder_of(output.path(), second));
    truth::expect_told(&counted, &facts, true);
    assert!(!folder_of(output.path(), third).exists());
}

/// The target ends, a process that it forked goes on.
#[test]
fn the_recording_is_over_when_the_last_process_ends() {
    let mut program = start(true);
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let attach = Attach::to(program.pid(), output.path()).arg("--follow-forks");
    let mut tracer = attach.attached();
    let pid = fork(&mut program, "");
    followed(&mut tracer, pid);
    program.ask("to 0 begin", "began");
    program.ask(&format!("to 0 last {}", counted.display()), "noted");
    assert!(program.exit().success());
    let outcome = tracer.outcome();
    outcome.expect(0);
    let line = "forked processes: 1 recorded";
    assert!(
        outcome.stderr.iter().any(|said| said == line),
        "{outcome:#?}"
    );
    let facts = told(&folder_of(output.path(), pid));
    truth::expect_told(&truth::read(&counted), &facts, true);
    assert!(facts.end.is_some());
}

#[test]
fn a_recorder_that_is_killed_leaves_no_other() {
    let mut program = start(true);
    let output = output_dir();
    let attach = Attach::to(program.pid(), output.path()).arg("--follow-forks");
    let mut tracer = attach.attached();
    let pid = fork(&mut program, "");
    followed(&mut tracer, pid);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", tracer.pid()));
    let recorder: u32 = children.expect("it runs").trim().parse().expect("one");
    let mut ours = Loaded::of(recorder);
    ours.links.extend(Loaded::of(tracer.pid()).links);
    program.ask("to 0 begin", "began");
    tracer.signal(Signal::KILL);
    assert_eq!(tracer.outcome().code, None);
    wait::until("its recorder ends", || {
        (!Path::new(&format!("/proc/{recorder}")).exists()).then_some(())
    });
    wait::until("links and programs are gone", || {
        Loaded::now().also_in(&ours).is_empty().then_some(())
    });
    assert_eq!(traps(program.pid(), pid), 0);
    program.ask("to 0 work", "worked");
    assert!(program.exit().success());
    // What follows has sealed what it had.
    Facts::of_dir(&folder_of(output.path(), pid)).expect_lossless();
}
