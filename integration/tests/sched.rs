//! Threads off their CPUs: how long, why, and who woke them.
//!
//! In: a program that sleeps, waits for locks that known threads hold, and crowds on
//! one CPU, by its own clock. Out: the same. Never: an interval too many inside those.

use std::{fs, path::Path, thread, time::Duration};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, require_root, segment::AwayFacts,
};
use rustix::process::Signal;

const BLOCKED: &str = "off-CPU: blocked";
const PREEMPTED: &str = "off-CPU: preempted";
const STOPPED: &str = "off-CPU: stopped";
/// How long the program is stopped.
const STOP: Duration = Duration::from_millis(300);

/// A line of the program's own account.
#[derive(Debug)]
struct Known {
    reason: String,
    tid: u64,
    times: [u64; 2],
    /// Who wakes it, or its CPU time.
    number: u64,
    task: u64,
}

impl Known {
    fn of(line: &str) -> Self {
        let (reason, rest) = line.split_once('\t').expect("a reason");
        let numbers: Vec<u64> = rest
            .split('\t')
            .map(|field| field.parse().expect("a number"))
            .collect();
        let [tid, begin, end, number, task] = numbers[..] else {
            panic!("{line:?}")
        };
        Self {
            reason: reason.to_owned(),
            tid,
            times: [begin, end],
            number,
            task,
        }
    }

    /// The intervals off the CPU that lie in it.
    fn inside<'a>(&self, facts: &'a Facts) -> Vec<&'a AwayFacts> {
        let [begin, end] = self.times;
        let is_inside = |away: &&AwayFacts| {
            away.tid == self.tid && away.times[0] >= begin && away.times[1] <= end
        };
        facts.away.iter().filter(is_inside).collect()
    }

    fn duration_ns(&self) -> u64 {
        self.times[1] - self.times[0]
    }
}

fn duration_ns(away: &AwayFacts) -> u64 {
    away.times[1] - away.times[0]
}

#[track_caller]
fn expect_within_5_percent(told_ns: u64, known_ns: u64, what: &Known) {
    let difference = told_ns.abs_diff(known_ns);
    assert!(
        difference * 20 <= known_ns,
        "{told_ns}, not {known_ns}: {what:?}"
    );
}

/// One wait by a lock or a timer: the longest interval is it.
fn expect_blocked(known: &Known, facts: &Facts) {
    let inside = known.inside(facts);
    let away = inside.iter().max_by_key(|away| duration_ns(away));
    let away = away.unwrap_or_else(|| panic!("nothing in {known:?}"));
    let all = inside.iter().map(|away| duration_ns(away)).sum();
    expect_within_5_percent(all, known.duration_ns(), known);
    assert_eq!(away.name, BLOCKED, "{known:?}");
    let by = (away.waker, away.by_interrupt);
    let waker = (known.number > 0).then_some(known.number);
    assert_eq!(by, (waker, Some(waker.is_none())), "{known:?}");
    assert!(
        away.wait_ns.is_some_and(|wait| wait <= duration_ns(away)),
        "{away:?}"
    );
    let task = (known.task > 0).then_some(known.task);
    assert_eq!(away.task, task, "{away:?}");
    assert!(task.is_none() || away.worker == Some(0), "{away:?}");
}

/// What is not on the CPU is off it.
fn expect_preempted(known: &Known, facts: &Facts) {
    let inside = known.inside(facts);
    let all = inside.iter().map(|away| duration_ns(away)).sum();
    expect_within_5_percent(all, known.duration_ns() - known.number, known);
    for away in inside {
        assert_eq!((away.name.as_str(), away.waker), (PREEMPTED, None));
        assert_eq!(away.wait_ns, Some(duration_ns(away)));
    }
}

fn recorded(signals: &str, output: &Path) -> (Vec<Known>, Facts) {
    require_root();
    let account = output.join("account.tsv");
    let traces = output.join("traces");
    let mut program = TestProgram::start_with("away", Build::Plain, |command| {
        command.arg(&account);
    });
    let tracer = Attach::to(program.pid(), &traces)
        .arg("--signals")
        .arg(signals)
        .attached();
    program.ask("go", "done");
    program.signal(Signal::STOP);
    thread::sleep(STOP);
    program.signal(Signal::CONT);
    // It is back once it answers.
    program.say("exit");
    assert!(program.wait().success());
    tracer.outcome().expect(0);
    let account = fs::read_to_string(account).expect("it is written");
    (
        account.lines().map(Known::of).collect(),
        Facts::of_dir(&traces),
    )
}

#[test]
fn absences_are_as_long_as_they_were_and_have_the_right_waker() {
    let output = output_dir();
    let (known, facts) = recorded("tokio,sched", output.path());
    facts.expect_lossless();
    assert_eq!(known.len(), 32);
    for known in &known {
        match known.reason.as_str() {
            "blocked" => expect_blocked(known, &facts),
            _ => expect_preempted(known, &facts),
        }
    }
    let stopped: Vec<_> = facts
        .away
        .iter()
        .filter(|away| away.name == STOPPED)
        .collect();
    let stop_ns = u64::try_from(STOP.as_nanos()).expect("short");
    assert!(
        stopped
            .iter()
            .any(|away| duration_ns(away) >= stop_ns * 9 / 10),
        "{stopped:?}"
    );
    assert_eq!(facts.metadata["sched.wait_sample_rate"], "1");
    assert_eq!(facts.count("ProcessResourceUsageEvent"), 0);
}

/// Without Tokio's probes: no event of a task, the same intervals.
#[test]
fn the_scheduler_alone() {
    let output = output_dir();
    let (known, facts) = recorded("sched", output.path());
    facts.expect_lossless();
    assert_eq!(
        (
            facts.count("PollStartEvent"),
            facts.count("WorkerParkEvent")
        ),
        (0, 0)
    );
    let untasked = known.iter().filter(|known| known.task == 0);
    for known in untasked.filter(|known| known.reason == "blocked") {
        expect_blocked(known, &facts);
    }
    assert_eq!(facts.metadata["dial9-bpf.signals"], "sched");
}

/// And the other way round: nothing of the scheduler.
#[test]
fn tokio_alone() {
    let output = output_dir();
    let (_, facts) = recorded("tokio", output.path());
    facts.expect_lossless();
    assert!(facts.count("PollStartEvent") > 0);
    assert_eq!(facts.count("OffCpuEvent"), 0);
    assert_eq!(facts.metadata.get("sched.wait_sample_rate"), None);
}

/// Ten samples a second of the process, and what its threads are called.
#[test]
fn the_process_as_a_whole() {
    let output = output_dir();
    let (_, facts) = recorded("res", output.path());
    facts.expect_lossless();
    assert_eq!(
        (facts.count("PollStartEvent"), facts.count("OffCpuEvent")),
        (0, 0)
    );
    let seconds = (facts.last_ns - facts.first_ns) / 1_000_000_000;
    let samples = facts.count("ProcessResourceUsageEvent");
    assert!(
        samples > 5 && samples <= 10 * (seconds + 1) + 1,
        "{samples} in {seconds} s"
    );
    let threads: Vec<_> = facts
        .metadata
        .iter()
        .filter(|(key, _)| key.starts_with("thread."))
        .map(|(_, name)| name.as_str())
        .collect();
    assert!(
        threads.contains(&"away") && threads.contains(&"tokio-rt-worker"),
        "{threads:?}"
    );
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("it is there");
    assert_eq!(facts.metadata["kernel.release"], kernel.trim());
}
