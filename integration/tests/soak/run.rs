//! The run: load, kills, outages, and the memory of the recorder meanwhile.
//!
//! In: a plan. Out: what happened when. Never: a look into a segment.

use std::{
    fmt::Write as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use dial9_bpf_integration::{Attach, TestProgram, Tracer, proc, segment::files, wait};
use fastrand::Rng;
use rustix::{
    process::Signal,
    time::{ClockId, clock_gettime},
};

use crate::store::Store;

const STEP: Duration = Duration::from_millis(100);
const SAMPLE: Duration = Duration::from_secs(1);
/// The store's backoff may have to end first.
const BACKLOG: Duration = Duration::from_mins(6);
/// The most by which the largest sample may exceed the smallest, percent of the
/// median.
const FLAT_PERCENT: u64 = 10;

/// How a soak goes.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) length: Duration,
    /// How long a recorder's memory may grow.
    pub(crate) warm_up: Duration,
    pub(crate) kills: usize,
    /// Times in which the store refuses connections.
    pub(crate) outages: usize,
    pub(crate) seed: u64,
    /// Whether memory that grows is wrong.
    pub(crate) has_flat_memory: bool,
}

/// One recorder's life.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// When all links were known to be live, `CLOCK_MONOTONIC`.
    pub(crate) live_ns: u64,
    /// Index of its last segment, where it was killed.
    pub(crate) last_index: Option<u64>,
    /// Resident memory after the warm-up, KiB.
    resident_kib: Vec<u64>,
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) recorders: Vec<Recorder>,
    /// Begin and length of each outage.
    outages: Vec<(Duration, Duration)>,
    kills: Vec<Duration>,
    /// What the last recorder said at its end.
    summary: String,
    polls: String,
    pub(crate) wrong: Vec<String>,
}

/// Runs it all; afterwards the load rests and the store has what it is to have.
pub(crate) fn run(plan: &Plan, store: &Store, program: &mut TestProgram, spool: &Path) -> History {
    let mut rng = Rng::with_seed(plan.seed);
    let mut history = History {
        kills: random_times(&mut rng, plan.kills, plan.length),
        outages: outages(&mut rng, plan),
        ..History::default()
    };
    program.ask("go", "going");
    let mut tracer = start(store, program, spool, &mut history);
    let (begin, mut started) = (Instant::now(), Instant::now());
    let mut kills = history.kills.clone().into_iter().peekable();
    let mut sampled = begin;
    while begin.elapsed() < plan.length {
        thread::sleep(STEP);
        steer(store, &history.outages, begin.elapsed());
        if kills.next_if(|at| *at <= begin.elapsed()).is_some() {
            kill(tracer, spool, &mut history);
            tracer = start(store, program, spool, &mut history);
            started = Instant::now();
        }
        if sampled.elapsed() >= SAMPLE && started.elapsed() >= plan.warm_up {
            sampled = Instant::now();
            let recorder = history.recorders.last_mut().expect("one is running");
            recorder.resident_kib.push(proc::resident_kib(tracer.pid()));
        }
    }
    store.calm();
    history.polls = program.ask("rest", "resting");
    end(tracer, spool, &mut history);
    history
}

fn start(store: &Store, program: &TestProgram, spool: &Path, history: &mut History) -> Tracer {
    let words = ["--rotate", "2s", "--service", "soak"];
    let attach = words
        .iter()
        .fold(Attach::to(program.pid(), spool), |attach, word| {
            attach.arg(*word)
        });
    let tracer = store.uploading(attach).attached();
    let now = clock_gettime(ClockId::Monotonic);
    history.recorders.push(Recorder {
        live_ns: now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs(),
        last_index: None,
        resident_kib: Vec::new(),
    });
    tracer
}

fn kill(tracer: Tracer, spool: &Path, history: &mut History) {
    tracer.signal(Signal::KILL);
    let code = tracer.outcome().code;
    let recorder = history.recorders.last_mut().expect("it was running");
    recorder.last_index = active_index(spool);
    if code.is_some() || recorder.last_index.is_none() {
        let last = recorder.last_index;
        history.wrong.push(format!(
            "a kill: exit code {code:?}, active segment {last:?}"
        ));
    }
}

/// The newest of the segments that were being written; the one before may still
/// have to be committed.
fn active_index(spool: &Path) -> Option<u64> {
    let index = |path: &std::path::PathBuf| {
        let name = path.file_name()?.to_str()?;
        let index = name.strip_prefix("trace.")?.strip_suffix(".bin.active")?;
        index.parse().ok()
    };
    files(spool).iter().filter_map(index).max()
}

/// Waits until the store has all but the newest, and ends the recorder.
fn end(tracer: Tracer, spool: &Path, history: &mut History) {
    let waiting = || {
        let is_closed = |path: &&std::path::PathBuf| {
            let name = path.to_string_lossy();
            [".bin", ".bin.gz"].iter().any(|end| name.ends_with(end))
        };
        files(spool).iter().filter(is_closed).count()
    };
    if wait::try_until(BACKLOG, || (waiting() <= 1).then_some(())).is_none() {
        let left = waiting();
        history
            .wrong
            .push(format!("{left} segments still wait after {BACKLOG:?}"));
    }
    let outcome = tracer.interrupt();
    if outcome.code != Some(0) {
        history.wrong.push(format!("the end: {outcome:#?}"));
    }
    history.summary = outcome.stdout;
}

fn steer(store: &Store, outages: &[(Duration, Duration)], now: Duration) {
    let is_out = |(begin, length): &(Duration, Duration)| (*begin..*begin + *length).contains(&now);
    if outages.iter().any(is_out) {
        store.close();
    } else {
        store.open();
    }
}

/// So many times, each at random in the middle half of its share of the length.
fn random_times(rng: &mut Rng, count: usize, length: Duration) -> Vec<Duration> {
    let share = length.as_secs_f64() / count.max(1) as f64;
    let at = |slot| share * (slot as f64 + 0.25 + rng.f64() / 2.0);
    (0..count).map(at).map(Duration::from_secs_f64).collect()
}

fn outages(rng: &mut Rng, plan: &Plan) -> Vec<(Duration, Duration)> {
    let begins = random_times(rng, plan.outages, plan.length);
    let length = |begin| (begin, Duration::from_millis(rng.u64(2000..12_000)));
    begins.into_iter().map(length).collect()
}

impl History {
    /// What happened, and what is wrong with the memory.
    pub(crate) fn report(&mut self, plan: &Plan) -> String {
        let mut text = format!(
            "soak: {} s, seed {}, the program counted {} polls\nkills -9 at s:",
            plan.length.as_secs(),
            plan.seed,
            self.polls
        );
        for kill in &self.kills {
            let _ = write!(text, " {:.1}", kill.as_secs_f64());
        }
        text.push_str("\nstore refused connections from s, for s:");
        for (begin, length) in &self.outages {
            let (begin, length) = (begin.as_secs_f64(), length.as_secs_f64());
            let _ = write!(text, " {begin:.1} ({length:.1})");
        }
        let _ = writeln!(
            text,
            "\nresident memory after {} s of each recorder, KiB:",
            plan.warm_up.as_secs()
        );
        for recorder in &self.recorders {
            let _ = writeln!(text, "  {}", range_of(&recorder.resident_kib));
        }
        let mut all: Vec<u64> = self
            .recorders
            .iter()
            .flat_map(|r| &r.resident_kib)
            .copied()
            .collect();
        all.sort_unstable();
        let _ = writeln!(text, "  all: {}", range_of(&all));
        if plan.has_flat_memory && !is_flat(&all) {
            self.wrong
                .push("the recorder's memory is not flat".to_owned());
        }
        let _ = write!(text, "the last recorder said:\n{}", self.summary);
        text
    }
}

fn range_of(samples: &[u64]) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    match (sorted.first(), sorted.last()) {
        (Some(min), Some(max)) => {
            let median = sorted[sorted.len() / 2];
            format!(
                "min {min}, median {median}, max {max}, {} samples",
                sorted.len()
            )
        }
        _ => "no sample".to_owned(),
    }
}

/// Of sorted samples.
fn is_flat(sorted: &[u64]) -> bool {
    let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
        return false;
    };
    (max - min) * 100 <= sorted[sorted.len() / 2] * FLAT_PERCENT
}
