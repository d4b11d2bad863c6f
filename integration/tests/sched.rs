//! Threads off their CPUs: how long, why, and who woke them.
//!
//! In: a program that sleeps, waits for locks that known threads hold, and crowds on
//! one CPU, by its own clock. Out: the same. Never: an interval too many inside those.

use std::{collections::BTreeMap, fs, path::Path, thread, time::Duration};

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
    /// Who wakes it, or how many times.
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

fn is_within_5_percent(told_ns: u64, known_ns: u64) -> bool {
    told_ns.abs_diff(known_ns) * 20 <= known_ns
}

/// One wait by a lock or a timer: the longest interval is it. Returns whether all that is
/// in it is as long as it; nothing where there is none.
fn expect_blocked(known: &Known, facts: &Facts) -> Option<bool> {
    let inside = known.inside(facts);
    let away = inside.iter().max_by_key(|away| duration_ns(away))?;
    let all = inside.iter().map(|away| duration_ns(away)).sum();
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
    Some(is_within_5_percent(all, known.duration_ns()))
}

/// One in ten may be off: between the program's look at its clock and its sleep a virtual
/// machine may itself be away. None is absent but what the kernel did not tell.
fn expect_all_blocked(known: &[&Known], facts: &Facts) {
    let count = known.len();
    let judged = known
        .iter()
        .map(|known| (expect_blocked(known, facts), known));
    let (absent, found): (Vec<_>, Vec<_>) = judged.partition(|(judged, _)| judged.is_none());
    assert!(absent.len() as u64 <= untold(facts), "{absent:?}");
    let wrong = found.iter().filter(|(judged, _)| *judged == Some(false));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.len() * 10 <= count, "{wrong:?}");
}

/// All of one thread: as many intervals as the kernel counted. Returns how long they are
/// together, and how long the program could not look at its clock, ns.
fn expect_preempted(tid: u64, known: &[&Known], facts: &Facts) -> [u64; 2] {
    let spans = joined(known);
    let is_inside = |away: &&AwayFacts| {
        away.tid == tid
            && spans
                .iter()
                .any(|[begin, end]| away.times[0] >= *begin && away.times[1] <= *end)
    };
    let inside: Vec<_> = facts.away.iter().filter(is_inside).collect();
    let counted: u64 = known.iter().map(|known| known.number).sum();
    let absent = counted.checked_sub(inside.len() as u64);
    let absent = absent.unwrap_or_else(|| panic!("{known:?}: {inside:?}"));
    assert!(absent <= untold(facts), "{known:?}: {inside:?}");
    assert!(counted > 0, "two threads share one CPU");
    let told = inside.iter().map(|away| duration_ns(away)).sum();
    let blind = spans.iter().map(|[begin, end]| end - begin).sum();
    assert!(told <= blind, "{told}, not {blind}: {known:?}");
    for away in inside {
        assert_eq!((away.name.as_str(), away.waker), (PREEMPTED, None));
        assert_eq!(away.wait_ns, Some(duration_ns(away)));
    }
    [told, blind]
}

/// For each of the two threads what [`expect_preempted`] returns.
fn expect_all_preempted(known: &[Known], facts: &Facts) -> Vec<[u64; 2]> {
    let mut by_thread = BTreeMap::<u64, Vec<&Known>>::new();
    for known in known.iter().filter(|known| known.reason == "preempted") {
        by_thread.entry(known.tid).or_default().push(known);
    }
    assert_eq!(by_thread.len(), 2);
    let threads = by_thread.iter();
    threads
        .map(|(tid, known)| expect_preempted(*tid, known, facts))
        .collect()
}

/// Intervals that are not in the trace, and why.
fn untold(facts: &Facts) -> u64 {
    let untold = facts.metadata.get("dial9-bpf.untold_absences");
    untold.map_or(0, |untold| untold.parse().expect("a number"))
}

/// The times of all; two that overlap are one.
fn joined(known: &[&Known]) -> Vec<[u64; 2]> {
    let mut spans: Vec<[u64; 2]> = Vec::new();
    for Known {
        times: [begin, end],
        ..
    } in known
    {
        match spans.last_mut() {
            Some(last) if *begin <= last[1] => last[1] = *end,
            _ => spans.push([*begin, *end]),
        }
    }
    spans
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
    let blocked = known.iter().filter(|known| known.reason == "blocked");
    let blocked: Vec<_> = blocked.collect();
    assert_eq!(blocked.len(), 30);
    expect_all_blocked(&blocked, &facts);
    for [told, blind] in expect_all_preempted(&known, &facts) {
        assert!(
            is_within_5_percent(told, blind) || untold(&facts) > 0,
            "{told}, not {blind}: {known:?}"
        );
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
    let blocked: Vec<_> = untasked.filter(|known| known.reason == "blocked").collect();
    expect_all_blocked(&blocked, &facts);
    expect_all_preempted(&known, &facts);
    assert_eq!(facts.metadata["dial9-bpf.signals"], "sched");
    // Neither is said of polls, or of runtimes.
    let of_tokio = |key: &&String| key.contains("tokio.poll") || key.contains("runtime-metrics");
    assert_eq!(facts.metadata.keys().find(of_tokio), None);
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
