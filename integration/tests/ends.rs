//! How a target panics and ends is in its segment.
//!
//! In: a program that panics and ends in every way, and says of each panic what its
//! hook knows. Out: the same panics and the true end from the segment. Never: a
//! panic that the program does not know of.

use std::os::unix::process::ExitStatusExt as _;

use dial9_bpf_integration::{
    Attach, Build, Facts, Outcome, TestProgram, output_dir, require_root,
    segment::{EndFacts, PanicFacts},
};
use rustix::process::Signal;

/// What is copied of a message, bytes.
const MESSAGE_BYTES: usize = 504;

/// Recordings, where the kernel leaves the end out of one.
const ATTEMPTS: usize = 3;

/// What became of a program that was recorded until its end.
struct Recorded {
    facts: Facts,
    outcome: Outcome,
    /// The panics that it told.
    told: Vec<PanicFacts>,
    /// The thread that it told to be about to end it.
    on: Option<u64>,
    pid: u64,
    /// Its exit code, or the number of its signal.
    status: Result<i32, i32>,
}

/// Records `ends` from its start until `word` has ended it.
fn recorded(build: Build, word: &str) -> Recorded {
    recorded_until(build, |program| program.say(word))
}

/// Once more where the kernel says that it left out a run of the program that tells the end.
fn recorded_until(build: Build, mut end: impl FnMut(&mut TestProgram)) -> Recorded {
    require_root();
    let mut attempts = (0..ATTEMPTS).map(|_| recorded_once(build, &mut end));
    let recorded = attempts.find(|recorded| !recorded.has_lost_its_end());
    recorded.expect("the kernel runs the program that tells the end")
}

fn recorded_once(build: Build, end: impl FnOnce(&mut TestProgram)) -> Recorded {
    let output = output_dir();
    let mut program = TestProgram::start_with("ends", build, |command| {
        command.stderr(std::process::Stdio::null());
    });
    let pid = program.pid().into();
    let tracer = Attach::to(program.pid(), output.path()).attached();
    end(&mut program);
    let status = program.wait();
    let outcome = tracer.outcome();
    outcome.expect(0);
    let facts = Facts::of_dir(output.path());
    facts.expect_lossless();
    let rest = program.rest();
    Recorded {
        facts,
        outcome,
        told: rest.iter().filter_map(|line| panic_told(line)).collect(),
        on: rest
            .iter()
            .find_map(|line| line.strip_prefix("on ")?.parse().ok()),
        pid,
        status: status
            .code()
            .ok_or_else(|| status.signal().expect("it ended by one of both")),
    }
}

impl Recorded {
    /// Whether its end is absent, with the reason.
    fn has_lost_its_end(&self) -> bool {
        let left_out = "dial9-bpf.absent.runs.sched_process_exit";
        self.facts.end.is_none() && self.facts.metadata.contains_key(left_out)
    }

    /// Asserts how it ended, by the program's parent and by the segment, and that
    /// the summary has the line.
    #[track_caller]
    fn expect_end(&self, status: Result<i32, i32>, line: &str) -> &EndFacts {
        assert_eq!(self.status, status);
        let says = |text: &str| text.lines().any(|said| said == line);
        assert!(
            says(&self.outcome.stdout),
            "no {line:?}: {:#?}",
            self.outcome
        );
        self.facts.end.as_ref().expect("its end is in the segment")
    }
}

/// The panic that a line of the program tells.
fn panic_told(line: &str) -> Option<PanicFacts> {
    let mut words = line.strip_prefix("panic ")?.splitn(4, ' ');
    let mut next = || words.next().expect("it has four words");
    let tid = next().parse().expect("a thread id");
    let task: u64 = next().parse().expect("a task id");
    let place = Some(next().to_owned());
    let message = next();
    let cut = message.floor_char_boundary(MESSAGE_BYTES);
    Some(PanicFacts {
        tid,
        worker: None,
        task: (task > 0).then_some(task),
        place,
        message: (message != "-").then(|| message[..cut].to_owned()),
        is_cut: cut < message.len(),
    })
}

/// The panics of a segment without their workers, which the program does not know.
fn without_workers(panics: &[PanicFacts]) -> Vec<PanicFacts> {
    let without = |panic: &PanicFacts| PanicFacts {
        worker: None,
        ..panic.clone()
    };
    panics.iter().map(without).collect()
}

#[test]
fn every_panic_has_its_place_its_task_and_its_message() {
    let mut caught = 0;
    let recorded = recorded_until(Build::Plain, |program| {
        program.say("panics");
        caught = program.hear_until("panicked").parse().expect("a count");
        program.say("leave");
    });
    assert_eq!(caught, 21);
    let panics = &recorded.facts.panics;
    assert_eq!(without_workers(panics), recorded.told);
    assert_eq!(panics.len(), caught);
    assert_eq!(panics.iter().filter(|panic| panic.is_cut).count(), 3);
    assert_eq!(
        panics
            .iter()
            .filter(|panic| panic.message.is_none())
            .count(),
        3
    );
    // All but the blocking pool's are on workers.
    assert_eq!(
        panics.iter().filter(|panic| panic.worker.is_none()).count(),
        3
    );
    let end = recorded.expect_end(Ok(0), "the target ended: exit code 0");
    assert_eq!(end.exit_code, Some(0));
}

#[test]
fn a_stripped_program_has_the_messages() {
    let recorded = recorded_until(Build::Stripped, |program| {
        program.say("panics");
        program.hear_until("panicked");
        program.say("leave");
    });
    let told: Vec<PanicFacts> = recorded
        .told
        .iter()
        .map(|panic| PanicFacts {
            place: None,
            ..panic.clone()
        })
        .collect();
    assert_eq!(without_workers(&recorded.facts.panics), told);
    let reason = &recorded.facts.metadata["dial9-bpf.absent.panic"];
    assert!(reason.contains("no symbol table"), "{reason}");
}

#[test]
fn an_exit_of_a_task_has_its_code() {
    let recorded = recorded(Build::Plain, "exit 3");
    let end = recorded.expect_end(Ok(3), "the target ended: exit code 3");
    let expected = EndFacts {
        exit_code: Some(3),
        ..EndFacts::default()
    };
    assert_eq!(end, &expected);
}

#[test]
fn a_fault_has_its_thread_and_its_address() {
    let recorded = recorded(Build::Plain, "fault");
    let end = recorded
        .facts
        .end
        .as_ref()
        .expect("its end is in the segment");
    let tid = end.tid.expect("a fault is a thread's");
    let line = format!("the target ended: signal 11 (SIGSEGV), thread {tid}");
    recorded.expect_end(Err(11), &line);
    let expected = EndFacts {
        signal: Some((11, "SIGSEGV".to_owned())),
        tid: Some(tid),
        fault_address: Some(0x1230),
        ..EndFacts::default()
    };
    assert_eq!(end, &expected);
    assert_eq!(recorded.on, Some(tid), "it is the task's thread");
}

#[test]
fn an_abort_has_its_thread() {
    let recorded = recorded(Build::Plain, "abort");
    let end = recorded
        .facts
        .end
        .as_ref()
        .expect("its end is in the segment");
    let tid = end.tid.expect("an abort is a thread's");
    let line = format!("the target ended: signal 6 (SIGABRT), thread {tid}");
    recorded.expect_end(Err(6), &line);
    assert_eq!((end.fault_address, &end.place), (None, &None));
    assert_eq!(recorded.on, Some(tid));
}

#[test]
fn a_panic_that_aborts_has_its_place() {
    let recorded = recorded(Build::Abort, "panic");
    let [told] = &recorded.told[..] else {
        panic!("{:?}", recorded.told)
    };
    let line = format!("the target ended: signal 6 (SIGABRT), thread {}", told.tid);
    let end = recorded.expect_end(Err(6), &line);
    assert_eq!((end.tid, &end.place), (Some(told.tid), &told.place));
    let [panic] = &recorded.facts.panics[..] else {
        panic!("{:?}", recorded.facts.panics)
    };
    assert_eq!((panic.tid, panic.task), (told.tid, told.task));
    assert_eq!(panic.place, told.place);
    assert!(panic.worker.is_some());
    let reason = &recorded.facts.metadata["dial9-bpf.absent.panic-message"];
    assert!(reason.contains("panics abort"), "{reason}");
}

#[test]
fn a_panic_of_the_main_thread_is_an_exit() {
    let recorded = recorded(Build::Plain, "main goodbye");
    let end = recorded.expect_end(Ok(101), "the target ended: exit code 101");
    assert_eq!((end.exit_code, end.tid), (Some(101), None));
    assert_eq!(recorded.facts.panics, recorded.told);
    let [told] = &recorded.told[..] else {
        panic!("{:?}", recorded.told)
    };
    assert_eq!((told.tid, told.task), (recorded.pid, None));
    assert_eq!(
        told.message.as_deref(),
        Some("the main thread says \"goodbye\"")
    );
}

#[test]
fn a_signal_to_the_process_has_no_thread() {
    for (signal, name) in [(Signal::KILL, "SIGKILL"), (Signal::TERM, "SIGTERM")] {
        let recorded = recorded_until(Build::Plain, |program| program.signal(signal));
        let number = signal.as_raw();
        let line = format!("the target ended: signal {number} ({name})");
        let end = recorded.expect_end(Err(number), &line);
        let expected = EndFacts {
            signal: Some((u64::try_from(number).expect("positive"), name.to_owned())),
            ..EndFacts::default()
        };
        assert_eq!(end, &expected);
    }
}
