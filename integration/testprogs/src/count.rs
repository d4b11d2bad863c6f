//! Tasks that count what happens to them.
//!
//! In: futures and closures, spawned through here. Out: [`write_truth`], one
//! line a task. Never: a call of a Tokio waker that is not counted first.
//!
//! An *entry* is a call of the task's poll function by the runtime. Each one
//! polls the future, but for the last entry of a task that was cancelled while
//! it was not being polled: that one only drops the future.

use std::{
    fmt::Write as _,
    fs,
    future::Future,
    io,
    path::Path,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use crate::{quiet, script};
use pin_project_lite::pin_project;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    runtime::Handle,
    task::{Id, JoinHandle},
};

static TASKS: Mutex<Vec<Arc<Task>>> = Mutex::new(Vec::new());
static MEASURING: AtomicBool = AtomicBool::new(false);

/// What is known of one task.
#[derive(Debug)]
pub struct Task {
    kind: &'static str,
    blocking: bool,
    spawned_before: bool,
    id: AtomicU64,
    entries: AtomicU64,
    wakes: AtomicU64,
    spawned_ns: u64,
    /// 0 while it is alive.
    ended_ns: AtomicU64,
    cancelled_without_entry: AtomicBool,
}

impl Task {
    fn register(kind: &'static str, blocking: bool) -> Arc<Self> {
        let task = Arc::new(Self {
            kind,
            blocking,
            spawned_before: !MEASURING.load(SeqCst),
            id: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            spawned_ns: now_ns(),
            ended_ns: AtomicU64::new(0),
            cancelled_without_entry: AtomicBool::new(false),
        });
        TASKS
            .lock()
            .expect("no panic under this lock")
            .push(Arc::clone(&task));
        task
    }

    /// Says which of Tokio's tasks this is.
    pub fn identify(&self, id: Id) {
        let id = id.to_string().parse().expect("a task id is a number");
        self.id.store(id, SeqCst);
    }

    /// Adds wakes that were, or are about to be, made on the task's own waker.
    pub fn woken(&self, times: u64) {
        self.wakes.fetch_add(times, SeqCst);
    }

    /// Says that the task is aborted while it is being polled, or shut down with
    /// its runtime: then no further entry follows.
    pub fn cancelled_without_entry(&self) {
        self.cancelled_without_entry.store(true, SeqCst);
    }

    /// Polls so far.
    pub fn entries(&self) -> u64 {
        self.entries.load(SeqCst)
    }
}

/// Counts the entries of one task; every future of a counted task owns one,
/// and drops it when the future is dropped.
#[derive(Debug)]
pub struct Meter {
    task: Arc<Task>,
    in_poll: bool,
    ready: bool,
}

impl Meter {
    /// A meter for a task of its own.
    pub fn new(task: Arc<Task>) -> Self {
        Self {
            task,
            in_poll: false,
            ready: false,
        }
    }

    /// The task.
    pub fn task(&self) -> &Arc<Task> {
        &self.task
    }

    /// The future's poll begins.
    pub fn enter(&mut self) {
        self.in_poll = true;
        self.task.entries.fetch_add(1, SeqCst);
    }

    /// The future's poll returns `outcome`.
    pub fn leave<T>(&mut self, outcome: Poll<T>) -> Poll<T> {
        self.in_poll = false;
        self.ready = outcome.is_ready();
        outcome
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // Still inside a poll: that poll panicked.
        let polled_to_its_end =
            self.ready || self.in_poll || self.task.cancelled_without_entry.load(SeqCst);
        if !polled_to_its_end {
            self.task.entries.fetch_add(1, SeqCst);
        }
        self.task.ended_ns.store(now_ns(), SeqCst);
    }
}

/// Counts the wakes of a task, and makes each of them on Tokio's own waker.
struct CountingWaker {
    task: Arc<Task>,
    tokio: Waker,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.task.woken(1);
        match Arc::try_unwrap(self) {
            Ok(last) => last.tokio.wake(),
            Err(shared) => shared.tokio.clone().wake(),
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.task.woken(1);
        self.tokio.wake_by_ref();
    }
}

pin_project! {
    /// A future whose polls and wakes are counted.
    pub struct Counted<F> {
        #[pin]
        future: F,
        meter: Meter,
        waker: Option<(Arc<CountingWaker>, Waker)>,
    }
}

impl<F> Counted<F> {
    /// Counts for `task`.
    pub fn new(task: Arc<Task>, future: F) -> Self {
        Self {
            future,
            meter: Meter::new(task),
            waker: None,
        }
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.meter.enter();
        // The same waker in every poll, so that `will_wake` answers as it does
        // for Tokio's.
        if !this
            .waker
            .as_ref()
            .is_some_and(|(counting, _)| counting.tokio.will_wake(cx.waker()))
        {
            let task = Arc::clone(this.meter.task());
            let counting = Arc::new(CountingWaker {
                task,
                tokio: cx.waker().clone(),
            });
            let waker = Waker::from(Arc::clone(&counting));
            *this.waker = Some((counting, waker));
        }
        let (_, waker) = this.waker.as_ref().expect("set just above");
        let outcome = this.future.poll(&mut Context::from_waker(waker));
        this.meter.leave(outcome)
    }
}

/// A counted future, for what spawns in a way of its own; it has to be
/// identified.
pub fn prepare<F>(kind: &'static str, future: F) -> (Counted<F>, Arc<Task>) {
    let task = Task::register(kind, false);
    (Counted::new(Arc::clone(&task), future), task)
}

/// Spawns `future`, counted, on the current runtime.
pub fn spawn<F>(kind: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    spawn_metered(&Handle::current(), kind, |task| Counted::new(task, future)).0
}

/// Spawns what `make` builds: a future that counts for itself, by a [`Meter`].
pub fn spawn_metered<F>(
    runtime: &Handle,
    kind: &'static str,
    make: impl FnOnce(Arc<Task>) -> F,
) -> (JoinHandle<F::Output>, Arc<Task>)
where
    F: Future<Output: Send> + Send + 'static,
{
    let task = Task::register(kind, false);
    let joined = runtime.spawn(make(Arc::clone(&task)));
    task.identify(joined.id());
    (joined, task)
}

/// Runs `closure` on the blocking pool, counted.
pub fn spawn_blocking<R: Send + 'static>(
    kind: &'static str,
    closure: impl FnOnce() -> R + Send + 'static,
) -> JoinHandle<R> {
    let task = Task::register(kind, true);
    let inner = Arc::clone(&task);
    let joined = tokio::task::spawn_blocking(move || {
        let mut meter = Meter::new(inner);
        meter.enter();
        let Poll::Ready(result) = meter.leave(Poll::Ready(closure())) else {
            unreachable!()
        };
        result
    });
    task.identify(joined.id());
    joined
}

/// Forgets everything counted so far; what is spawned from here on was not
/// there before. Only for a program at rest.
pub fn begin() {
    let tasks = TASKS.lock().expect("no panic under this lock");
    for task in tasks.iter() {
        task.entries.store(0, SeqCst);
        task.wakes.store(0, SeqCst);
    }
    MEASURING.store(true, SeqCst);
}

/// Forgets all tasks, as a process does that was forked: they are not its own.
pub fn forget() {
    TASKS.lock().expect("no panic under this lock").clear();
}

/// Polls of async tasks since [`begin`].
pub fn total_polls() -> u64 {
    let tasks = TASKS.lock().expect("no panic under this lock");
    tasks
        .iter()
        .filter(|task| !task.blocking)
        .map(|task| task.entries())
        .sum()
}

/// `CLOCK_MONOTONIC`, as the kernel stamps hits.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Waits until nothing runs, writes one line a task to `path` (see [`write_truth`]),
/// says `WORD POLLS`, and waits for `exit`.
///
/// # Panics
///
/// When the file cannot be written.
pub fn conclude(path: &Path, word: &str) {
    quiet::wait_until_idle();
    write_truth(path).expect("the file can be written");
    script::say(&format!("{word} {}", total_polls()));
    script::expect("exit");
}

/// Writes one line a task.
///
/// The fields of a line are separated by tabs: id, kind, `task` or `blocking`,
/// `before` or `after`, entries, wakes, `ended` or `alive`, and the times before
/// its spawn and of its end. `ended` of a task from before counts only where
/// there was an entry since [`begin`].
///
/// # Errors
///
/// The system's.
pub fn write_truth(path: &Path) -> io::Result<()> {
    let tasks = TASKS.lock().expect("no panic under this lock");
    let mut text = String::new();
    for task in tasks.iter() {
        let Task {
            kind,
            blocking,
            spawned_before,
            id,
            entries,
            wakes,
            spawned_ns,
            ended_ns,
            ..
        } = &**task;
        let ended_ns = ended_ns.load(SeqCst);
        let _ = writeln!(
            text,
            "{}\t{kind}\t{}\t{}\t{}\t{}\t{}\t{spawned_ns}\t{ended_ns}",
            id.load(SeqCst),
            if *blocking { "blocking" } else { "task" },
            if *spawned_before { "before" } else { "after" },
            entries.load(SeqCst),
            wakes.load(SeqCst),
            if ended_ns > 0 { "ended" } else { "alive" },
        );
    }
    fs::write(path, text)
}
