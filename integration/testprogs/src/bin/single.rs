//! Current-thread runtimes that count what their one thread does.
//!
//! `single FILE`: says `ready PID`; on `go` two threads, each with a runtime of its
//! own and one of them with a `LocalSet`, let tasks talk to each other; then it writes
//! FILE (see [`testprogs::count::conclude`]) and, for each thread, a line `PARKS
//! UNPARKS` into FILE.parks, as Tokio's hooks have counted them.

use std::{
    env, fs,
    path::PathBuf,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use testprogs::{count, quiet, script};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
    task::{JoinHandle, LocalSet, spawn_local, yield_now},
    time::sleep,
};

const ROUNDS: u64 = 2000;

/// How often a thread has parked and gone on.
#[derive(Debug, Default)]
struct Parks {
    parks: AtomicU64,
    unparks: AtomicU64,
}

impl Parks {
    fn line(&self) -> String {
        let load = |count: &AtomicU64| count.load(Ordering::SeqCst);
        format!("{}\t{}\n", load(&self.parks), load(&self.unparks))
    }
}

fn main() {
    let path = PathBuf::from(env::args_os().nth(1).expect("usage: single FILE"));
    let counts = [Arc::<Parks>::default(), Arc::default()];
    let [here, there] = counts.each_ref().map(runtime);
    script::say_ready();
    script::expect("go");

    count::begin();
    let (to_here, from_there) = mpsc::channel(4);
    let (to_there, from_here) = mpsc::channel(4);
    let other = thread::spawn(move || {
        there.block_on(async {
            let pump = count::spawn("there", pump(to_here, from_here));
            count::spawn("there-timer", timer()).await.expect("it ends");
            pump.await.expect("it ends");
        });
    });
    let local = LocalSet::new();
    here.block_on(local.run_until(async {
        let locals: Vec<_> = (0..10).map(|_| local_task()).collect();
        let pump = count::spawn("here", pump(to_there, from_there));
        for local in locals {
            local.await.expect("it ends");
        }
        pump.await.expect("it ends");
    }));
    other.join().expect("it ends");
    quiet::wait_until_idle();
    let lines: String = counts.iter().map(|parks| parks.line()).collect();
    fs::write(path.with_extension("parks"), lines).expect("the file can be written");
    count::conclude(&path, "done");
}

fn runtime(parks: &Arc<Parks>) -> Runtime {
    let (parking, going_on) = (Arc::clone(parks), Arc::clone(parks));
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || _ = parking.parks.fetch_add(1, Ordering::SeqCst))
        .on_thread_unpark(move || _ = going_on.unparks.fetch_add(1, Ordering::SeqCst))
        .build()
        .expect("a runtime can be built")
}

/// Says something to the other thread and waits for what it says, over and over.
async fn pump(to: mpsc::Sender<u64>, mut from: mpsc::Receiver<u64>) {
    for round in 0..ROUNDS {
        to.send(round).await.expect("the other is there");
        from.recv().await.expect("the other says as much");
    }
}

async fn timer() {
    for _ in 0..50 {
        sleep(Duration::from_millis(1)).await;
        yield_now().await;
    }
}

/// A task that is bound to its thread.
fn local_task() -> JoinHandle<()> {
    let (future, task) = count::prepare("local", async {
        let bound = Rc::new(());
        timer().await;
        drop(bound);
    });
    let joined = spawn_local(future);
    task.identify(joined.id());
    joined
}
