//! A load that stays the same for as long as it is told: tasks that wake
//! themselves and end after a while, at a bounded rate.
//!
//! `steady FILE POLLS`: says `ready PID` at rest; on `go` it makes POLLS polls a
//! second, each with one wake, and says `going`; on `rest` it comes to rest,
//! writes FILE (see [`testprogs::count::conclude`]) and says `resting POLLS`;
//! on `exit` it ends.

use std::{
    env,
    future::poll_fn,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use testprogs::{count, quiet, script};
use tokio::{
    runtime,
    time::{self, Interval},
};

/// Tasks that are alive at a time.
const LANES: u64 = 8;
/// The rate holds over this time.
const TICK: Duration = Duration::from_millis(10);
/// Ticks that a task lives: a task that is in two epochs is no exception.
const TICKS_OF_A_TASK: u64 = 25;

fn main() {
    let mut args = env::args_os().skip(1);
    let path = PathBuf::from(args.next().expect("usage: steady FILE POLLS"));
    let polls = args.next().expect("usage: steady FILE POLLS");
    let polls: u64 = polls
        .to_str()
        .and_then(|polls| polls.parse().ok())
        .expect("POLLS is a number");
    let per_tick = polls / LANES * u64::try_from(TICK.as_millis()).expect("small") / 1000;
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    quiet::wait_until_idle();
    script::say_ready();
    script::expect("go");

    count::begin();
    let goes_on = Arc::new(AtomicBool::new(true));
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            let _runtime = runtime.enter();
            count::spawn("lane", lane(per_tick, Arc::clone(&goes_on)))
        })
        .collect();
    script::say("going");
    script::expect("rest");
    goes_on.store(false, SeqCst);
    for lane in lanes {
        runtime.block_on(lane).expect("it does not panic");
    }
    count::conclude(&path, "resting");
}

/// One task after the other, which share the ticks.
async fn lane(per_tick: u64, goes_on: Arc<AtomicBool>) {
    let mut ticks = time::interval(TICK);
    while goes_on.load(SeqCst) {
        let task = count::spawn("steady", work(ticks, per_tick));
        ticks = task.await.expect("it does not panic");
    }
}

async fn work(mut ticks: Interval, per_tick: u64) -> Interval {
    for _ in 0..TICKS_OF_A_TASK {
        ticks.tick().await;
        for _ in 1..per_tick {
            wake_self().await;
        }
    }
    ticks
}

/// Is polled once more, since it has woken itself.
async fn wake_self() {
    let mut is_woken = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut is_woken, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
