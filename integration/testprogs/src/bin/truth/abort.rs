//! Aborts, each at a known moment of the task's life.
//!
//! In: the runtime at rest, and tasks at rest. Out: tasks cancelled before
//! their first poll, at rest, when notified, and in a poll by themselves or by
//! another. Never: an abort that races with a poll.

use std::{
    future::{Future, pending, poll_fn},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Poll, Waker},
};

use testprogs::{count, quiet};
use tokio::{runtime::Runtime, sync::oneshot, task::AbortHandle};

use crate::alive::{Alive, spawn_knowing};

const EACH: usize = 50;

/// Aborts, and wakes what is over.
pub fn run(runtime: &Runtime, alive: Alive) {
    let Alive {
        idle,
        over: (over, waker),
        ..
    } = alive;
    quiet::wait_until_idle();
    for abort in idle {
        abort.abort();
    }
    at_rest(runtime);
    runtime.block_on(by_themselves());
    runtime.block_on(in_a_poll());
    runtime.block_on(with_both_workers_busy());

    over.woken(3);
    waker.wake_by_ref();
    waker.clone().wake();
    waker.wake();
}

/// Polled once, then aborted from outside the runtime.
fn at_rest(runtime: &Runtime) {
    let _inside = runtime.enter();
    let aborts: Vec<AbortHandle> = (0..EACH)
        .map(|_| count::spawn("abort-at-rest", pending::<()>()).abort_handle())
        .collect();
    quiet::wait_until_idle();
    for abort in aborts {
        abort.abort();
    }
    quiet::wait_until_idle();
}

/// A task that aborts itself is not entered again.
async fn by_themselves() {
    for _ in 0..EACH {
        let (tell, told) = oneshot::channel::<AbortHandle>();
        let joined = spawn_knowing("abort-itself", |task| async move {
            let own: AbortHandle = told.await.expect("it is told below");
            task.cancelled_without_entry();
            own.abort();
            pending::<()>().await;
        });
        let _ = tell.send(joined.abort_handle());
        assert!(joined.await.is_err_and(|error| error.is_cancelled()));
    }
}

/// Aborted by another thread while its poll is going on.
async fn in_a_poll() {
    for _ in 0..EACH {
        let (started, has_started) = oneshot::channel();
        let aborted = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&aborted);
        let mut started = Some(started);
        let joined = spawn_knowing("abort-in-poll", |task| async move {
            task.cancelled_without_entry();
            if let Some(started) = started.take() {
                let _ = started.send(());
            }
            while !until.load(SeqCst) {
                std::thread::yield_now();
            }
            pending::<()>().await;
        });
        let _ = has_started.await;
        joined.abort();
        aborted.store(true, SeqCst);
        assert!(joined.await.is_err_and(|error| error.is_cancelled()));
    }
}

/// With one task in each worker's hands nothing else is polled: what is spawned
/// and aborted here has never been polled, what is woken and aborted here is
/// not polled in between.
async fn with_both_workers_busy() {
    let mut resting = Vec::new();
    let mut wakers = Vec::new();
    for _ in 0..EACH {
        let (abort, waker) = spawn_resting();
        resting.push(abort);
        wakers.push(waker.await.expect("it is polled"));
    }
    // From outside the runtime's threads: they may all come to rest.
    quiet::wait_until_idle();

    let both = Arc::new(Barrier::new(2));
    let over = Arc::new(Barrier::new(2));
    let (other_both, other_over) = (Arc::clone(&both), Arc::clone(&over));
    let other = count::spawn("occupy-other", async move {
        other_both.wait();
        other_over.wait();
    });
    let one = count::spawn("occupy-one", async move {
        both.wait();
        for _ in 0..EACH {
            count::spawn("abort-unpolled", async {}).abort();
        }
        for waker in wakers {
            waker.wake();
        }
        for abort in resting {
            abort.abort();
        }
        over.wait();
    });
    other.await.expect("it does not panic");
    one.await.expect("it does not panic");
}

/// A task that hands out its (counting) waker and then rests.
fn spawn_resting() -> (AbortHandle, oneshot::Receiver<Waker>) {
    let (send, waker) = oneshot::channel();
    let mut send = Some(send);
    let abort = count::spawn(
        "abort-notified",
        hand_out(move |waker| {
            if let Some(send) = send.take() {
                let _ = send.send(waker);
            }
        }),
    )
    .abort_handle();
    (abort, waker)
}

fn hand_out(mut give: impl FnMut(Waker) + Send) -> impl Future<Output = ()> + Send {
    poll_fn(move |cx| {
        give(cx.waker().clone());
        Poll::Pending
    })
}
