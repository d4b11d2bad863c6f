//! What the tasks do: most of what tasks usually do, all at once, and then with pauses.
//!
//! In: the tasks that were there before. Out: over a million polls. Never:
//! `block_in_place`, after which dial9's events of a worker are not always pairs; a
//! detached task that is not at rest when [`run`] returns.

use std::{
    future::{Future, pending, poll_fn},
    sync::Arc,
    task::Poll,
    thread,
    time::Duration,
};

use testprogs::amount::Amount;
use tokio::{
    sync::{Mutex, Notify, Semaphore, mpsc, oneshot},
    task::{self, JoinHandle, JoinSet},
    time,
};

/// Tasks that wait.
pub struct Alive {
    notify: Arc<Notify>,
    notified: Vec<JoinHandle<()>>,
    idle: Vec<JoinHandle<()>>,
}

/// Through dial9, which then has the task's wakes, or through Tokio alone.
fn spawn<F>(with_wakes: bool, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    if with_wakes {
        dial9::spawn(future)
    } else {
        tokio::spawn(future)
    }
}

/// Spawns the tasks that are there before the tracer.
pub async fn before() -> Alive {
    let notify = Arc::new(Notify::new());
    let notified = [true, false].map(|with_wakes| {
        let notify = Arc::clone(&notify);
        spawn(with_wakes, async move { notify.notified().await })
    });
    let idle = [true, false].map(|with_wakes| spawn(with_wakes, pending()));
    for _ in 0..8 {
        task::yield_now().await;
    }
    Alive {
        notify,
        notified: notified.into(),
        idle: idle.into(),
    }
}

/// Does it all; gives back tasks that are alive and at rest.
pub async fn run(alive: Alive, amount: Amount) -> Vec<JoinHandle<()>> {
    let mut joined = Vec::new();
    for with_wakes in [true, false] {
        let mut add = |task| joined.push(task);
        for _ in 0..2 {
            add(spawn(with_wakes, spins(amount.of(120_000), 1)));
            add(spawn(with_wakes, spins(amount.of(30_000), 3)));
            add(spawn(with_wakes, yields(amount.of(30_000))));
        }
        add(spawn(with_wakes, channel(with_wakes, amount.of(20_000))));
        add(spawn(with_wakes, questions(with_wakes, amount.of(20_000))));
        add(spawn(with_wakes, locks(with_wakes, amount.of(5_000))));
        add(spawn(
            with_wakes,
            short_lives(with_wakes, amount.of(20_000)),
        ));
        add(spawn(
            with_wakes,
            from_outside(with_wakes, amount.of(5_000)),
        ));
        add(spawn(with_wakes, cancelled(with_wakes, amount.of(2_000))));
        add(spawn(with_wakes, panics(with_wakes)));
        add(spawn(with_wakes, timers(with_wakes)));
    }
    for task in joined {
        task.await.expect("it does not panic");
    }
    placed(amount.of(200)).await;
    // One at a time, so that the workers have nothing else to do and park.
    for with_wakes in [true, false] {
        let one = spawn(with_wakes, blocking(amount.of(2_000)));
        one.await.expect("it does not panic");
        let one = spawn(with_wakes, from_outside(with_wakes, amount.of(2_000)));
        one.await.expect("it does not panic");
    }
    alive.notify.notify_waiters();
    for task in alive.notified {
        task.await.expect("it does not panic");
    }
    alive.idle
}

/// Tasks of types that Tokio's own functions alone spawn, each at one place: what dial9
/// spawns goes through `Handle::spawn` too, which has none.
async fn placed(times: u64) {
    let mut set = JoinSet::new();
    for number in 0..times {
        set.spawn(async move { yields(number % 3).await });
        let one = tokio::spawn(async move {
            task::yield_now().await;
            number
        });
        assert_eq!(one.await.expect("it does not panic"), number);
    }
    while set.join_next().await.is_some() {}
}

/// Wakes itself `times` times in each of `polls` polls. All but the first find the
/// task notified.
async fn spins(polls: u64, times: u32) {
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        for _ in 0..times {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
}

async fn yields(times: u64) {
    for _ in 0..times {
        task::yield_now().await;
    }
}

/// Several to one.
async fn channel(with_wakes: bool, items: u64) {
    let (send, mut received) = mpsc::channel(4);
    for _ in 0..3 {
        let send = send.clone();
        spawn(with_wakes, async move {
            for item in 0..items {
                send.send(item).await.expect("it is received");
            }
        });
    }
    drop(send);
    while received.recv().await.is_some() {}
}

/// One to one and back, each time through a channel of its own.
async fn questions(with_wakes: bool, times: u64) {
    let (ask, mut asked) = mpsc::unbounded_channel::<(u64, oneshot::Sender<u64>)>();
    let answers = spawn(with_wakes, async move {
        while let Some((number, reply)) = asked.recv().await {
            reply.send(number + 1).expect("it is awaited");
        }
    });
    for number in 0..times {
        let (reply, answer) = oneshot::channel();
        ask.send((number, reply)).expect("it is answered");
        assert_eq!(answer.await, Ok(number + 1));
    }
    drop(ask);
    answers.await.expect("it does not panic");
}

async fn locks(with_wakes: bool, times: u64) {
    let shared = Arc::new(Mutex::new(0));
    let lockers = [0; 3].map(|_| {
        let shared = Arc::clone(&shared);
        spawn(with_wakes, async move {
            for _ in 0..times {
                let mut held = shared.lock().await;
                *held += 1;
                if *held % 16 == 0 {
                    task::yield_now().await;
                }
            }
        })
    });
    for locker in lockers {
        locker.await.expect("it does not panic");
    }
}

/// Tasks that end, one after the other and many at once; one spawns the next.
async fn short_lives(with_wakes: bool, tasks: u64) {
    for _ in 0..tasks / 2 {
        spawn(with_wakes, async {})
            .await
            .expect("it does not panic");
    }
    let mut set = JoinSet::new();
    for _ in 0..tasks / 4 {
        set.spawn(yields(1));
    }
    while set.join_next().await.is_some() {}
    let (end, ended) = oneshot::channel();
    link(with_wakes, tasks / 4, end);
    ended.await.expect("the last link says so");
}

fn link(with_wakes: bool, left: u64, end: oneshot::Sender<()>) {
    spawn(with_wakes, async move {
        match left {
            0 => end.send(()).expect("it is awaited"),
            _ => link(with_wakes, left - 1, end),
        }
    });
}

/// Wakes by a thread that is no worker.
async fn from_outside(with_wakes: bool, times: u64) {
    let permits = Arc::new(Semaphore::new(0));
    let (send, mut received) = mpsc::channel(2);
    let given = Arc::clone(&permits);
    let giver = thread::spawn(move || {
        for item in 0..times {
            given.add_permits(1);
            send.blocking_send(item).expect("it is received");
        }
    });
    let taker = spawn(with_wakes, async move {
        for _ in 0..times {
            permits.acquire().await.expect("it is not closed").forget();
        }
    });
    while received.recv().await.is_some() {}
    taker.await.expect("it does not panic");
    giver.join().expect("it does not panic");
}

/// Wakes by the threads of the blocking pool.
async fn blocking(times: u64) {
    for number in 0..times {
        let doubled = task::spawn_blocking(move || number * 2).await;
        assert_eq!(doubled.expect("it does not panic"), number * 2);
    }
}

/// Tasks that are aborted: before their first poll, at rest, and awake.
async fn cancelled(with_wakes: bool, times: u64) {
    for number in 0..times {
        let notify = Arc::new(Notify::new());
        let waits = Arc::clone(&notify);
        let task = spawn(with_wakes, async move {
            loop {
                waits.notified().await;
            }
        });
        if number % 3 != 0 {
            task::yield_now().await;
        }
        if number % 3 == 1 {
            notify.notify_one();
        }
        task.abort();
        assert!(task.await.is_err_and(|error| error.is_cancelled()));
    }
}

async fn panics(with_wakes: bool) {
    for _ in 0..100 {
        let task = spawn(with_wakes, async {
            task::yield_now().await;
            panic!("on purpose");
        });
        let outcome: Result<(), _> = task.await;
        assert!(outcome.is_err_and(|error| error.is_panic()));
    }
}

async fn timers(with_wakes: bool) {
    let sleepers: Vec<_> = (0..100)
        .map(|step| {
            spawn(with_wakes, async move {
                time::sleep(Duration::from_millis(step)).await;
                let never = time::timeout(Duration::from_millis(step % 7), pending::<()>());
                assert!(never.await.is_err());
            })
        })
        .collect();
    let mut ticks = time::interval(Duration::from_millis(2));
    for _ in 0..100 {
        ticks.tick().await;
    }
    for sleeper in sleepers {
        sleeper.await.expect("it does not panic");
    }
}
