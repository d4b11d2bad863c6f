//! The measured work: everything that tasks usually do, all at once.
//!
//! In: the tasks that were there before. Out: over a million polls of more
//! than thirty kinds of tasks. Never: a detached task that is not at rest when
//! [`run`] returns and every thread is asleep.

use std::{
    future::{pending, ready},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use testprogs::{
    amount::Amount,
    count,
    spin::{Burst, ByRef, ByValue, SelfWake, Spin},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Handle,
    sync::{Barrier, Mutex, mpsc, oneshot},
    task::{self, JoinHandle, JoinSet},
    time,
};

use crate::{alive::Alive, twins};

/// Does it all, and gives back what is still to be used.
pub async fn run(mut alive: Alive, amount: Amount) -> Alive {
    let mut joined = Vec::new();
    spin::<ByRef>("spin-by-ref", 4, amount.of(110_000), &mut joined);
    spin::<ByValue>("spin-by-value", 2, amount.of(110_000), &mut joined);
    spin::<Burst>("spin-burst", 2, amount.of(40_000), &mut joined);
    joined.extend(twins::spawn_all(amount.of(40_000)));
    for _ in 0..2 {
        joined.push(count::spawn("yield", yields(amount.of(3_000))));
    }
    joined.extend(channels(&alive, amount));
    joined.extend(timers());
    for _ in 0..8 {
        joined.push(count::spawn(
            "echo-client",
            talk(alive.echo, amount.of(300)),
        ));
    }
    joined.push(count::spawn(
        "blocking-caller",
        call_blocking(amount.of(200)),
    ));
    joined.push(count::spawn("join-set", join_set()));
    joined.push(count::spawn("mutex", contend(amount.of(2_000))));
    joined.push(count::spawn("select", select(amount.of(500))));
    joined.push(count::spawn("chain", chain(200)));
    joined.push(count::spawn("ready", ready(())));
    joined.push(count::spawn("large", large()));
    joined.push(count::spawn("budget", exhaust_budget()));
    let boxed: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(yields(100));
    joined.push(count::spawn("boxed", boxed));
    let panicking = spawn_panicking();
    spawn_from_outside(&Handle::current()).await;

    for task in joined {
        task.await.expect("it does not panic");
    }
    for task in panicking {
        assert!(task.await.is_err_and(|error| error.is_panic()));
    }
    end_readers(&mut alive).await;
    alive
}

fn spin<W: SelfWake>(kind: &'static str, tasks: u64, polls: u64, joined: &mut Vec<JoinHandle<()>>) {
    for _ in 0..tasks {
        let make = |task| Spin::<W>::new(task, polls);
        joined.push(count::spawn_metered(&Handle::current(), kind, make).0);
    }
}

async fn yields(times: u64) {
    for _ in 0..times {
        task::yield_now().await;
    }
}

/// Work for the tasks that were alive before.
fn channels(alive: &Alive, amount: Amount) -> Vec<JoinHandle<()>> {
    let mut joined = Vec::new();
    for _ in 0..3 {
        let sink = alive.sink.clone();
        joined.push(count::spawn("source", async move {
            for item in 0..amount.of(10_000) {
                sink.send(item).await.expect("the sink is there");
            }
        }));
    }
    let asked = alive.asked.clone();
    joined.push(count::spawn("ask", async move {
        for number in 0..amount.of(5_000) {
            let (reply, answer) = oneshot::channel();
            asked.send((number, reply)).expect("somebody answers");
            assert_eq!(answer.await, Ok(number + 1));
        }
    }));
    let (notify, permits) = (Arc::clone(&alive.notify), Arc::clone(&alive.permits));
    joined.push(count::spawn("notify", async move {
        for _ in 0..amount.of(5_000) {
            notify.notify_one();
            permits.acquire().await.expect("it is not closed").forget();
        }
    }));
    let (watched, broadcast) = (alive.watched.clone(), alive.broadcast.clone());
    joined.push(count::spawn("publish", async move {
        for number in 0..amount.of(2_000) {
            watched.send_replace(number);
            let _ = broadcast.send(number);
            task::yield_now().await;
        }
    }));
    joined
}

fn timers() -> Vec<JoinHandle<()>> {
    let mut joined = vec![count::spawn("interval", async {
        let mut ticks = time::interval(Duration::from_millis(2));
        for _ in 0..100 {
            ticks.tick().await;
        }
    })];
    for step in 0..50 {
        joined.push(count::spawn("sleep", async move {
            time::sleep(Duration::from_millis(step)).await;
        }));
        joined.push(count::spawn("timeout", async move {
            let never = pending::<()>();
            assert!(
                time::timeout(Duration::from_millis(step), never)
                    .await
                    .is_err()
            );
        }));
    }
    joined
}

async fn talk(echo: std::net::SocketAddr, times: u64) {
    let mut stream = TcpStream::connect(echo).await.expect("it listens");
    let mut back = [0; 16];
    for _ in 0..times {
        stream
            .write_all(&[7; 16])
            .await
            .expect("the other end is there");
        stream
            .read_exact(&mut back)
            .await
            .expect("the other end is there");
    }
}

async fn call_blocking(times: u64) {
    for number in 0..times {
        let doubled = count::spawn_blocking("blocking", move || number * 2);
        assert_eq!(doubled.await.expect("it does not panic"), number * 2);
    }
    let gone = count::spawn_blocking("blocking-panics", || panic!("on purpose"));
    assert!(gone.await.is_err());
}

/// A `JoinSet` wakes by a waker of its own, which wakes this task's.
async fn join_set() {
    let mut set = JoinSet::new();
    for _ in 0..100 {
        let (future, task) = count::prepare("joined", yields(2));
        task.identify(set.spawn(future).id());
    }
    while set.join_next().await.is_some() {}
}

async fn contend(times: u64) {
    let shared = Arc::new(Mutex::new(0));
    let barrier = Arc::new(Barrier::new(3));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let (shared, barrier) = (Arc::clone(&shared), Arc::clone(&barrier));
            count::spawn("locker", async move {
                barrier.wait().await;
                for _ in 0..times {
                    let mut held = shared.lock().await;
                    *held += 1;
                    if *held % 16 == 0 {
                        task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("it does not panic");
    }
}

async fn select(times: u64) {
    let (left, mut from_left) = mpsc::channel(1);
    let (right, mut from_right) = mpsc::channel(1);
    let senders = [("left", left), ("right", right)].map(|(kind, to)| {
        count::spawn(kind, async move {
            for number in 0..times {
                to.send(number).await.expect("somebody selects");
            }
        })
    });
    let mut got = 0;
    while got < 2 * times {
        tokio::select! {
            Some(_) = from_left.recv() => got += 1,
            Some(_) = from_right.recv() => got += 1,
        }
    }
    let [one, other] = senders;
    let (one, other) = tokio::join!(one, other);
    one.and(other).expect("they do not panic");
}

/// Each task spawns the next.
async fn chain(length: u64) {
    let (end, ended) = oneshot::channel();
    link(length, end);
    ended.await.expect("the last link says so");
}

fn link(left: u64, end: oneshot::Sender<()>) {
    count::spawn("link", async move {
        match left {
            0 => end.send(()).expect("it is awaited"),
            _ => link(left - 1, end),
        }
    });
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

/// Never has to wait, so Tokio makes it.
async fn exhaust_budget() {
    let (send, mut items) = mpsc::unbounded_channel();
    for item in 0..1_000 {
        send.send(item).expect("it is received below");
    }
    drop(send);
    while items.recv().await.is_some() {}
}

fn spawn_panicking() -> Vec<JoinHandle<()>> {
    let mut joined = Vec::new();
    for _ in 0..100 {
        joined.push(count::spawn("panic-first", async { panic!("on purpose") }));
        joined.push(count::spawn("panic-later", async {
            task::yield_now().await;
            panic!("on purpose");
        }));
    }
    joined
}

/// From a thread of our own, without a runtime around it.
async fn spawn_from_outside(runtime: &Handle) {
    let runtime = runtime.clone();
    let tasks = std::thread::spawn(move || {
        let spawn = |_| {
            count::spawn_metered(&runtime, "from-outside", |task| Spin::<ByRef>::new(task, 3)).0
        };
        (0..200).map(spawn).collect::<Vec<_>>()
    });
    for task in tasks.join().expect("it does not panic") {
        task.await.expect("it does not panic");
    }
}

/// Ends the tasks that wait for channels.
async fn end_readers(alive: &mut Alive) {
    let (gone, _) = mpsc::channel(1);
    alive.sink = gone;
    let (gone, _) = mpsc::unbounded_channel();
    alive.asked = gone;
    alive.watched = tokio::sync::watch::channel(0).0;
    alive.broadcast = tokio::sync::broadcast::channel(1).0;
    for reader in alive.readers.drain(..) {
        reader.await.expect("it does not panic");
    }
    alive.unblock.send(()).expect("it waits for this");
    (&mut alive.unblocked).await.expect("it does not panic");
}
