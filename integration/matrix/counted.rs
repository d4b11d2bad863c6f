//! A Tokio program that counts what happens to each of its tasks.
//!
//! `counted FILE`: says `ready PID` at rest, with tasks alive; on `go` it works,
//! comes to rest, writes FILE and says `done POLLS`; on `exit` it ends. The
//! lines of FILE are those that `dial9_bpf_integration::truth` reads; the id is
//! 0 where this Tokio tells none (feature `ids`).
//!
//! One source for Tokio 1.20 to the latest and for Rust 1.63 to the latest, so
//! it uses nothing that came later, and no package but Tokio.

use std::{
    env,
    fmt::Write as _,
    fs,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    process,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        Arc, Mutex,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot, Notify, Semaphore},
    task::{self, JoinHandle},
    time,
};

#[path = "../testprogs/src/quiet.rs"]
mod quiet;
#[path = "../testprogs/src/script.rs"]
mod script;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let path = env::args_os().nth(1).expect("usage: counted FILE");
    // Tasks panic, each on purpose.
    std::panic::set_hook(Box::new(|_| ()));
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime can be built");
    let alive = runtime.block_on(async { Alive::spawn() });
    quiet::wait_until_idle();
    begin();
    script::say_ready();
    script::expect("go");
    let rest = runtime.block_on(work(alive, runtime.handle().clone()));
    quiet::wait_until_idle();
    fs::write(path, truth()).expect("the file can be written");
    script::say(&format!("done {}", total_polls()));
    script::expect("exit");
    drop(rest);
    process::exit(0);
}

// What is counted.

static TASKS: Mutex<Vec<Arc<Task>>> = Mutex::new(Vec::new());
static MEASURING: AtomicBool = AtomicBool::new(false);

struct Task {
    kind: &'static str,
    blocking: bool,
    spawned_before: bool,
    id: AtomicU64,
    entries: AtomicU64,
    wakes: AtomicU64,
    ended: AtomicBool,
}

impl Task {
    fn register(kind: &'static str, blocking: bool) -> Arc<Task> {
        let task = Arc::new(Task {
            kind,
            blocking,
            spawned_before: !MEASURING.load(SeqCst),
            id: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        TASKS.lock().expect("no panic here").push(task.clone());
        task
    }

    #[cfg(feature = "ids")]
    fn identify<T>(&self, joined: &JoinHandle<T>) {
        let id = joined.id().to_string().parse();
        self.id.store(id.expect("a task id is a number"), SeqCst);
    }

    #[cfg(not(feature = "ids"))]
    fn identify<T>(&self, _: &JoinHandle<T>) {}
}

/// Counts the entries into one task's poll function: each polls the future, but
/// for the last one of a task that was cancelled between polls, which drops it.
struct Meter {
    task: Arc<Task>,
    in_poll: bool,
    ready: bool,
}

impl Meter {
    fn new(task: Arc<Task>) -> Meter {
        Meter {
            task,
            in_poll: false,
            ready: false,
        }
    }

    fn enter(&mut self) {
        self.in_poll = true;
        self.task.entries.fetch_add(1, SeqCst);
    }

    fn leave<T>(&mut self, outcome: Poll<T>) -> Poll<T> {
        self.in_poll = false;
        self.ready = outcome.is_ready();
        outcome
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // Still inside a poll: that one panicked.
        if !self.ready && !self.in_poll {
            self.task.entries.fetch_add(1, SeqCst);
        }
        self.task.ended.store(true, SeqCst);
    }
}

/// Counts the wakes of a task, and makes each of them on Tokio's own waker.
struct CountingWaker {
    task: Arc<Task>,
    tokio: Waker,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.task.wakes.fetch_add(1, SeqCst);
        match Arc::try_unwrap(self) {
            Ok(last) => last.tokio.wake(),
            Err(shared) => shared.tokio.clone().wake(),
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.task.wakes.fetch_add(1, SeqCst);
        self.tokio.wake_by_ref();
    }
}

/// A future whose polls and wakes are counted.
struct Counted<T> {
    // Dropped before the meter says so.
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    meter: Meter,
    waker: Option<(Arc<CountingWaker>, Waker)>,
}

impl<T> Future for Counted<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        this.meter.enter();
        let is_same = match &this.waker {
            Some((counting, _)) => counting.tokio.will_wake(cx.waker()),
            None => false,
        };
        if !is_same {
            let counting = Arc::new(CountingWaker {
                task: this.meter.task.clone(),
                tokio: cx.waker().clone(),
            });
            this.waker = Some((counting.clone(), Waker::from(counting)));
        }
        let (_, waker) = this.waker.as_ref().expect("set just above");
        let outcome = this.future.as_mut().poll(&mut Context::from_waker(waker));
        this.meter.leave(outcome)
    }
}

fn spawn<F>(kind: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let task = Task::register(kind, false);
    let joined = tokio::spawn(Counted {
        future: Box::pin(future),
        meter: Meter::new(task.clone()),
        waker: None,
    });
    task.identify(&joined);
    joined
}

fn spawn_blocking(kind: &'static str, closure: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let task = Task::register(kind, true);
    let inner = task.clone();
    let joined = task::spawn_blocking(move || {
        let mut meter = Meter::new(inner);
        meter.enter();
        closure();
        let _ = meter.leave(Poll::Ready(()));
    });
    task.identify(&joined);
    joined
}

fn begin() {
    for task in TASKS.lock().expect("no panic here").iter() {
        task.entries.store(0, SeqCst);
        task.wakes.store(0, SeqCst);
    }
    MEASURING.store(true, SeqCst);
}

fn total_polls() -> u64 {
    let tasks = TASKS.lock().expect("no panic here");
    let polled = tasks.iter().filter(|task| !task.blocking);
    polled.map(|task| task.entries.load(SeqCst)).sum()
}

fn truth() -> String {
    let mut text = String::new();
    for task in TASKS.lock().expect("no panic here").iter() {
        let _ = writeln!(
            text,
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t0\t0",
            task.id.load(SeqCst),
            task.kind,
            if task.blocking { "blocking" } else { "task" },
            if task.spawned_before {
                "before"
            } else {
                "after"
            },
            task.entries.load(SeqCst),
            task.wakes.load(SeqCst),
            if task.ended.load(SeqCst) {
                "ended"
            } else {
                "alive"
            },
        );
    }
    text
}

// Futures written by hand that wake themselves: the compiler sees which waker.

trait SelfWake: Unpin + Send + 'static {
    const CALLS: u64;
    fn wake(waker: &Waker);
}

struct ByRef;
struct ByValue;
/// All but the first of its wakes find the task notified.
struct Burst;

impl SelfWake for ByRef {
    const CALLS: u64 = 1;
    fn wake(waker: &Waker) {
        waker.wake_by_ref();
    }
}

#[allow(clippy::waker_clone_wake)]
impl SelfWake for ByValue {
    const CALLS: u64 = 1;
    fn wake(waker: &Waker) {
        waker.clone().wake();
    }
}

#[allow(clippy::waker_clone_wake)]
impl SelfWake for Burst {
    const CALLS: u64 = 4;
    fn wake(waker: &Waker) {
        waker.wake_by_ref();
        waker.clone().wake();
        waker.wake_by_ref();
        waker.clone().wake();
    }
}

struct Spin<W> {
    meter: Meter,
    left: u64,
    how: PhantomData<W>,
}

impl<W: SelfWake> Future for Spin<W> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.meter.enter();
        if self.left == 0 {
            return self.meter.leave(Poll::Ready(()));
        }
        self.left -= 1;
        self.meter.task.wakes.fetch_add(W::CALLS, SeqCst);
        W::wake(cx.waker());
        self.meter.leave(Poll::Pending)
    }
}

fn spin<W: SelfWake>(runtime: &Handle, kind: &'static str, left: u64) -> JoinHandle<()> {
    let task = Task::register(kind, false);
    let joined = runtime.spawn(Spin {
        meter: Meter::new(task.clone()),
        left,
        how: PhantomData::<W>,
    });
    task.identify(&joined);
    joined
}

/// An asynchronous function that counts its own wakes, as programs have them.
async fn steps(mut meter: Meter, times: u64) {
    for _ in 0..times {
        meter.enter();
        meter.task.wakes.fetch_add(1, SeqCst);
        let _ = meter.leave(Poll::<()>::Pending);
        Once(false).await;
    }
    meter.enter();
    let _ = meter.leave(Poll::Ready(()));
}

/// Wakes its task and lets others go first.
struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

// What it does.

/// Tasks that are there before.
struct Alive {
    sink: mpsc::Sender<u64>,
    asked: mpsc::UnboundedSender<(u64, oneshot::Sender<u64>)>,
    notify: Arc<Notify>,
    notified: JoinHandle<()>,
    readers: Vec<JoinHandle<()>>,
    aborted: Vec<JoinHandle<()>>,
    idle: JoinHandle<()>,
}

impl Alive {
    fn spawn() -> Alive {
        let (sink, mut items) = mpsc::channel::<u64>(4);
        let (asked, mut questions) = mpsc::unbounded_channel::<(u64, oneshot::Sender<u64>)>();
        let notify = Arc::new(Notify::new());
        let permits = notify.clone();
        let notified = spawn("notified", async move {
            for _ in 0..300 {
                permits.notified().await;
            }
        });
        let readers = vec![
            spawn("sink", async move { while items.recv().await.is_some() {} }),
            spawn("answer", async move {
                while let Some((number, reply)) = questions.recv().await {
                    let _ = reply.send(number + 1);
                }
            }),
        ];
        let aborted = (0..5).map(|_| spawn("aborted", std::future::pending()));
        Alive {
            sink,
            asked,
            notify,
            notified,
            readers,
            aborted: aborted.collect(),
            idle: spawn("idle", std::future::pending()),
        }
    }
}

/// Returns what has to stay alive.
async fn work(alive: Alive, runtime: Handle) -> (JoinHandle<()>, JoinHandle<()>) {
    let mut joined = Vec::new();
    for index in 0..4 {
        joined.push(spin::<ByRef>(&runtime, "spin-by-ref", 1_000 + 7 * index));
        joined.push(spin::<ByValue>(&runtime, "spin-by-value", 600 + 5 * index));
        joined.push(spin::<Burst>(&runtime, "spin-burst", 300 + 3 * index));
        let task = Task::register("steps", false);
        let future = steps(Meter::new(task.clone()), 400 + 11 * index);
        let step = runtime.spawn(future);
        task.identify(&step);
        joined.push(step);
        joined.push(spawn("yields", async move {
            for _ in 0..200 + 13 * index {
                task::yield_now().await;
            }
        }));
    }
    let (sink, asked, notify) = (
        alive.sink.clone(),
        alive.asked.clone(),
        alive.notify.clone(),
    );
    joined.push(spawn("source", async move {
        for item in 0..1_000 {
            sink.send(item).await.expect("the sink is there");
        }
    }));
    joined.push(spawn("ask", async move {
        for number in 0..500 {
            let (reply, answer) = oneshot::channel();
            asked.send((number, reply)).ok().expect("somebody answers");
            assert_eq!(answer.await, Ok(number + 1));
        }
    }));
    joined.push(spawn("notify", async move {
        for _ in 0..299 {
            notify.notify_one();
            task::yield_now().await;
        }
    }));
    joined.extend(contend());
    joined.push(spawn("parent", parent()));
    joined.push(spawn("blocking-caller", async {
        for _ in 0..30 {
            let closure = spawn_blocking("blocking", || drop(vec![1u8; 64]));
            closure.await.expect("it does not panic");
        }
    }));
    for step in 0..20 {
        joined.push(spawn("sleep", time::sleep(Duration::from_millis(step))));
    }
    joined.push(spawn("ready", async {}));
    joined.push(spawn("large", large()));
    outside(&runtime, &mut joined);
    let panicking = panics();
    for task in joined {
        task.await.expect("it does not panic");
    }
    for task in panicking {
        assert!(task.await.is_err());
    }
    let late = spawn("aborted-late", std::future::pending());
    for task in alive.aborted {
        task.abort();
        assert!(task.await.is_err());
    }
    drop((alive.sink, alive.asked));
    for task in alive.readers {
        task.await.expect("it does not panic");
    }
    alive.notify.notify_one();
    let _ = time::timeout(Duration::from_millis(1), alive.notified).await;
    (late, alive.idle)
}

/// Three tasks, one permit.
fn contend() -> Vec<JoinHandle<()>> {
    let permits = Arc::new(Semaphore::new(1));
    let contender = |_| {
        let permits = permits.clone();
        spawn("contender", async move {
            for round in 0..200 {
                let permit = permits.acquire().await.expect("it is not closed");
                if round % 8 == 0 {
                    task::yield_now().await;
                }
                drop(permit);
            }
        })
    };
    (0..3).map(contender).collect()
}

/// Spawns from inside a task, and awaits what it spawned.
async fn parent() {
    for index in 0..40 {
        let child = spawn("child", async move {
            for _ in 0..index % 5 {
                task::yield_now().await;
            }
        });
        child.await.expect("it does not panic");
    }
}

/// Too large for Tokio to keep in place.
async fn large() {
    let ballast = [1u8; 40_000];
    task::yield_now().await;
    assert_eq!(
        ballast.iter().map(|&byte| u64::from(byte)).sum::<u64>(),
        40_000
    );
}

/// Spawns from a thread that is no worker.
fn outside(runtime: &Handle, joined: &mut Vec<JoinHandle<()>>) {
    let runtime = runtime.clone();
    let spawned = thread::spawn(move || {
        let spawn = |_| spin::<ByRef>(&runtime, "from-outside", 3);
        (0..50).map(spawn).collect::<Vec<_>>()
    });
    joined.extend(spawned.join().expect("it does not panic"));
}

#[cfg(panic = "unwind")]
fn panics() -> Vec<JoinHandle<()>> {
    let mut joined = Vec::new();
    for _ in 0..10 {
        joined.push(spawn("panics", async { panic!("on purpose") }));
        joined.push(spawn("panics-later", async {
            task::yield_now().await;
            panic!("on purpose");
        }));
    }
    joined
}

#[cfg(not(panic = "unwind"))]
fn panics() -> Vec<JoinHandle<()>> {
    Vec::new()
}
