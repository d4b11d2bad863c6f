//! A worker whose queue is as deep as this program makes it.
//!
//! `deep FILE`: says `ready PID`. On `go` a runtime with one worker goes through rounds. In
//! each a task that came from outside spawns tasks on the worker, which then wait for one
//! moment together, and end. The last that is spawned, or woken, is in the LIFO slot, the
//! others are in the queue: so each poll finds one task less. FILE gets a line for each
//! poll of those tasks: the task's id, which of its polls it is, and how many are in the
//! queue. A round in which the moment came too early has none.

use std::{
    env,
    fmt::Write as _,
    fs,
    future::{Future as _, poll_fn},
    path::PathBuf,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use testprogs::script;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep_until},
};

const ROUNDS: usize = 60;
/// Until the tasks of a round go on.
const WAIT: Duration = Duration::from_millis(30);
/// Until the next round, so that the worker parks.
const PAUSE: Duration = Duration::from_millis(10);
/// Tasks of a round, at most.
const MOST: usize = 12;

/// A task, its poll, the queue then.
type Told = (u64, usize, usize);

fn main() {
    let path = PathBuf::from(env::args_os().nth(1).expect("usage: deep FILE"));
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime can be built");
    script::say_ready();
    script::expect("go");
    let mut lines = String::new();
    for round in 0..ROUNDS {
        let told = runtime.block_on(runtime.spawn(run(1 + round % MOST)));
        for (task, poll, depth) in told.expect("it ends") {
            writeln!(lines, "{task}\t{poll}\t{depth}").expect("to a string");
        }
        thread::sleep(PAUSE);
    }
    fs::write(path, lines).expect("the file can be written");
    script::say("done");
    script::expect("end");
}

async fn run(tasks: usize) -> Vec<Told> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let polls = Arc::new([0, 1].map(|_| AtomicUsize::new(0)));
    let moment = Instant::now() + WAIT;
    let spawned: Vec<_> = (0..tasks)
        .map(|_| {
            let (told, polls) = (Arc::clone(&told), Arc::clone(&polls));
            tokio::spawn(async move {
                let mut sleep = pin!(sleep_until(moment));
                let mut poll = 0;
                poll_fn(move |cx| {
                    let before = polls[poll].fetch_add(1, Ordering::Relaxed);
                    let told_now = (tokio::task::id(), poll, tasks - 1 - before);
                    told.lock().expect("nobody panics").push(told_now);
                    poll += 1;
                    sleep.as_mut().poll(cx)
                })
                .await;
            })
        })
        .collect();
    for task in spawned {
        task.await.expect("it ends");
    }
    let told = Arc::into_inner(told).expect("all have ended");
    let told = told.into_inner().expect("nobody panics");
    let is_whole = (0..2).all(|poll| told.iter().filter(|told| told.1 == poll).count() == tasks);
    let id = |(task, poll, depth): (tokio::task::Id, usize, usize)| {
        let id = task.to_string().parse().expect("a number");
        (id, poll, depth)
    };
    let told = told.into_iter().filter(|_| is_whole).map(id);
    told.collect()
}
