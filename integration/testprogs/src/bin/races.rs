//! Tasks that are woken while they end, each where the one before it was in
//! memory, and runtimes that come and go: whoever remembers which task an
//! address is has an old one soon.
//!
//! `races FILE`: says `ready PID` at rest; on `go` it works, comes to rest,
//! writes FILE (see [`testprogs::count::conclude`]) and says `done POLLS`; on
//! `exit` it ends.

use std::{
    env,
    future::{Future, pending},
    path::Path,
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Waker},
    thread,
};

use testprogs::{
    count::{self, Counted, Meter, Task},
    quiet, script,
};
use tokio::{
    runtime::{self, Handle, Runtime},
    task::yield_now,
};

const DRIVERS: usize = 2;
/// Brief tasks of each driver, one after the other.
const BRIEF: usize = 15_000;
const RUNTIMES: usize = 60;
/// Tasks of each kind in each of them.
const EACH: usize = 10;

fn main() {
    let path = env::args_os().nth(1).expect("usage: races FILE");
    let runtime = runtime_of(2);
    runtime.block_on(async {
        count::spawn("first", async {})
            .await
            .expect("it does not panic");
    });
    quiet::wait_until_idle();
    script::say_ready();
    script::expect("go");

    count::begin();
    thread::scope(|scope| {
        for _ in 0..DRIVERS {
            let (keep, kept) = mpsc::sync_channel(1);
            scope.spawn(|| wake_late(kept));
            scope.spawn(|| drive(runtime.handle(), keep));
        }
        scope.spawn(|| (1..=RUNTIMES).for_each(come_and_go));
    });
    count::conclude(Path::new(&path), "done");
}

fn runtime_of(workers: usize) -> Runtime {
    runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("a runtime can be built")
}

/// Hands out its waker in the first poll, and ends in the second.
struct Brief {
    meter: Meter,
    hand_out: Option<mpsc::Sender<Waker>>,
}

impl Future for Brief {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.meter.enter();
        let outcome = match self.hand_out.take() {
            Some(hand_out) => {
                let waker = cx.waker().clone();
                hand_out.send(waker).expect("the driver waits for it");
                Poll::Pending
            }
            None => Poll::Ready(()),
        };
        self.meter.leave(outcome)
    }
}

/// Wakes each task until it is over, then starts the next.
fn drive(runtime: &Handle, keep: mpsc::SyncSender<(Arc<Task>, Waker)>) {
    let (hand_out, taken) = mpsc::channel();
    for _ in 0..BRIEF {
        let (joined, task) = count::spawn_metered(runtime, "brief", |task| Brief {
            meter: Meter::new(task),
            hand_out: Some(hand_out.clone()),
        });
        let waker = taken.recv().expect("it is polled");
        // Only where the other thread has time for it: a waker keeps the
        // task's memory from the next one.
        let _ = keep.try_send((Arc::clone(&task), waker.clone()));
        let mut wakes = 0;
        while !joined.is_finished() {
            waker.wake_by_ref();
            wakes += 1;
        }
        task.woken(wakes);
    }
}

/// Wakes tasks that end meanwhile or have ended.
fn wake_late(kept: mpsc::Receiver<(Arc<Task>, Waker)>) {
    for (task, waker) in kept {
        task.woken(3);
        waker.wake_by_ref();
        waker.wake_by_ref();
        waker.wake();
    }
}

/// A runtime with tasks that end, tasks that are idle when it is shut down, and
/// tasks that come too late.
fn come_and_go(round: usize) {
    let runtime = match round % 3 {
        0 => runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime can be built"),
        workers => runtime_of(workers),
    };
    let handle = runtime.handle().clone();
    runtime.block_on(async {
        let left_over: Vec<_> = (0..EACH).map(|_| spawn_pending(&handle)).collect();
        let joined: Vec<_> = (0..EACH)
            .map(|_| count::spawn("in-passing", yield_now()))
            .collect();
        for joined in joined {
            joined.await.expect("it does not panic");
        }
        // One that is still queued may be entered after it was shut down.
        while left_over.iter().any(|task| task.entries() == 0) {
            yield_now().await;
        }
    });
    if round.is_multiple_of(2) {
        runtime.shutdown_background();
        return;
    }
    drop(runtime);
    for _ in 0..EACH {
        spawn_pending(&handle);
    }
}

/// A task that only the shutdown of its runtime ends.
fn spawn_pending(runtime: &Handle) -> Arc<Task> {
    let (_, task) = count::spawn_metered(runtime, "pending", |task| {
        task.cancelled_without_entry();
        Counted::new(task, pending::<()>())
    });
    task
}
