//! Every way to be on a thread without being its worker's task, timed.
//!
//! `flavours FILE`: says `ready PID`; on `go` closures run on the blocking pool, plain
//! ones and such as run a runtime of their own, tasks block in place, and threads block
//! on futures; then it writes FILE (see [`testprogs::count::conclude`]) and into
//! FILE.runs a line `WHAT ID TID BEGIN END` for each: `closure` or `host` with the
//! closure's task id, `block-on` or `panicked` and what is `inside` with 0, `woken` with the id of the task
//! that a closure wakes. The times are clock reads inside a closure, and outside a
//! `block_on` (see [`Run`]).

use std::{
    env, fs,
    future::poll_fn,
    hint::black_box,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Arc, Barrier, Mutex, mpsc},
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use rustix::thread::gettid;
use testprogs::{
    count::{self, now_ns},
    script,
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::{JoinHandle, LocalSet, block_in_place, spawn_local, yield_now},
    time::sleep,
};

const SHORT: Duration = Duration::from_millis(2);
/// Closures that run at a time; more than the pool has idle threads before.
const AT_ONCE: usize = 3;

static RUNS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// One run of something, from its making to its drop.
struct Run {
    what: &'static str,
    id: u64,
    begin_ns: u64,
}

impl Run {
    fn of(what: &'static str, id: u64) -> Self {
        let begin_ns = now_ns();
        Self { what, id, begin_ns }
    }

    fn of_closure(what: &'static str) -> Self {
        let id = tokio::task::id().to_string();
        Self::of(what, id.parse().expect("a task id is a number"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let end_ns = now_ns();
        let Self { what, id, begin_ns } = self;
        let tid = gettid().as_raw_nonzero();
        let line = format!("{what}\t{id}\t{tid}\t{begin_ns}\t{end_ns}\n");
        RUNS.lock().expect("no panic under this lock").push(line);
    }
}

fn main() {
    let path = PathBuf::from(env::args_os().nth(1).expect("usage: flavours FILE"));
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async { count::spawn("before", yield_now()).await.expect("it ends") });
    script::say_ready();
    script::expect("go");

    count::begin();
    let handle = runtime.handle().clone();
    blocked_on(|| {
        runtime.block_on(async {
            count::spawn("main", pool()).await.expect("it ends");
        });
    });
    thread::spawn(move || threads(&handle))
        .join()
        .expect("it ends");
    let runs = RUNS.lock().expect("no panic under this lock").concat();
    fs::write(path.with_extension("runs"), runs).expect("the file can be written");
    count::conclude(&path, "done");
}

/// What the pool's threads and the worker do.
async fn pool() {
    // The thread of the worker's loop, which began before, goes to the pool.
    block_in_place(wait_for_another);
    let barrier = Arc::new(Barrier::new(AT_ONCE));
    let closures: Vec<_> = (0..AT_ONCE).map(|_| waking(&barrier)).collect();
    for (woken, closure) in closures {
        closure.await.expect("it ends");
        woken.await.expect("it ends");
    }
    let hosts = (0..AT_ONCE).map(|_| count::spawn_blocking("host", host));
    for host in hosts.collect::<Vec<_>>() {
        host.await.expect("it ends");
    }
    // A runtime of one thread inside a poll.
    block_in_place(|| {
        wait_for_another();
        blocked_on(|| single().block_on(talk()));
    });
}

/// Returns once another thread is the worker: one that comes too late for that would be
/// a closure that does nothing.
fn wait_for_another() {
    let (tell, told) = mpsc::channel();
    let task = count::spawn(
        "over",
        async move { tell.send(()).expect("it is waited for") },
    );
    told.recv().expect("it runs");
    drop(task);
}

/// A closure that wakes a task, at a time with others.
fn waking(barrier: &Arc<Barrier>) -> (JoinHandle<()>, JoinHandle<()>) {
    let (give, take) = mpsc::channel::<Waker>();
    let mut give = Some(give);
    let sleeper = poll_fn(move |cx| match give.take() {
        Some(give) => {
            give.send(cx.waker().clone()).expect("the closure waits");
            Poll::Pending
        }
        None => Poll::Ready(()),
    });
    let woken = count::spawn("woken", sleeper);
    let id = woken.id().to_string().parse().expect("a number");
    let barrier = Arc::clone(barrier);
    let closure = count::spawn_blocking("closure", move || {
        let _run = Run::of_closure("closure");
        barrier.wait();
        let waker = take.recv().expect("the task is polled");
        drop(Run::of("woken", id));
        waker.wake();
        thread::sleep(SHORT);
    });
    (woken, closure)
}

/// A closure with a runtime of its own.
fn host() {
    let _run = Run::of_closure("host");
    blocked_on(|| single().block_on(talk()));
    thread::sleep(SHORT);
}

/// Blocks on futures in all ways.
fn threads(handle: &Handle) {
    blocked_on(|| handle.block_on(inside()));
    let single = single();
    blocked_on(|| single.block_on(talk()));
    blocked_on(|| single.block_on(async {}));
    blocked_on(|| LocalSet::new().block_on(&single, local_talk()));
    let panics = async {
        inside().await;
        // The compiler is not to know that it does not end.
        assert!(!black_box(true), "as the test wants");
    };
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _run = Run::of("panicked", 0);
        handle.block_on(panics);
    }));
    drop(caught);
    blocked_on(|| single.block_on(talk()));
}

fn blocked_on<R>(block: impl FnOnce() -> R) -> R {
    let _run = Run::of("block-on", 0);
    block()
}

fn single() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built")
}

async fn inside() {
    let _run = Run::of("inside", 0);
    sleep(SHORT).await;
}

async fn talk() {
    let _run = Run::of("inside", 0);
    count::spawn("talk", async {
        sleep(SHORT).await;
        yield_now().await;
    })
    .await
    .expect("it ends");
}

async fn local_talk() {
    let (future, task) = count::prepare("local", async { sleep(SHORT).await });
    let joined = spawn_local(future);
    task.identify(joined.id());
    joined.await.expect("it ends");
}
