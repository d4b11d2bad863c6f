//! Runtimes that stand still with known queues.
//!
//! `queues FILE`: says `ready PID`; on `hold` a multi-thread runtime and a
//! current-thread one end a task each, then have every thread of theirs blocked by a
//! task, with tasks in their queues. They stand like that for a second; then FILE gets,
//! for each runtime, a line of what Tokio says of it: the tasks in its global queue and
//! alive, and from when to when that was so, `CLOCK_MONOTONIC` ns. On `end` all go on.

use std::{
    env, fs,
    path::PathBuf,
    sync::{
        Arc, Barrier, Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use testprogs::script;
use tokio::runtime::{Builder, Handle, Runtime};

const HELD: Duration = Duration::from_secs(1);
const WORKERS: usize = 2;
/// Tasks that a blocked worker has spawned.
const LOCAL: usize = 5;
/// Tasks that came from outside.
const GLOBAL: usize = 7;

fn main() {
    let path = PathBuf::from(env::args_os().nth(1).expect("usage: queues FILE"));
    let several = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .build()
        .expect("a runtime can be built");
    let single = Builder::new_current_thread()
        .build()
        .expect("a runtime can be built");
    let handles = [several.handle().clone(), single.handle().clone()];
    let (end_single, is_single_to_end) = mpsc::channel();
    let (say, said) = mpsc::channel();
    script::say_ready();
    script::expect("hold");

    let single = thread::spawn(move || block_single(&single, &say, &is_single_to_end));
    said.recv().expect("it blocks");
    let end_several = block_several(&several);
    for handle in &handles {
        for _ in 0..GLOBAL {
            handle.spawn(async {});
        }
    }
    let since = now_ns();
    thread::sleep(HELD);
    let lines: String = handles.iter().map(|handle| line(handle, since)).collect();
    fs::write(path, lines).expect("the file can be written");
    script::say("held");
    script::expect("end");
    drop((end_several, end_single));
    single.join().expect("it ends");
}

/// Has every worker in a task that waits for the end of the sender, one of them with
/// tasks behind it.
fn block_several(runtime: &Runtime) -> Sender<()> {
    runtime.block_on(runtime.spawn(async {})).expect("it ends");
    let (end, is_to_end) = mpsc::channel::<()>();
    let is_to_end = Arc::new(Mutex::new(is_to_end));
    let all_blocked = Arc::new(Barrier::new(WORKERS));
    let (say, said) = mpsc::channel();
    for worker in 0..WORKERS {
        let (say, is_to_end) = (say.clone(), Arc::clone(&is_to_end));
        let all_blocked = Arc::clone(&all_blocked);
        runtime.spawn(async move {
            all_blocked.wait();
            if worker == 0 {
                spawn_behind();
                say.send(()).expect("it is waited for");
            }
            let _ = is_to_end.lock().map(|is_to_end| is_to_end.recv());
        });
    }
    said.recv().expect("they block");
    end
}

/// The same for the only thread.
fn block_single(runtime: &Runtime, say: &Sender<()>, is_to_end: &Receiver<()>) {
    runtime.block_on(async {
        tokio::spawn(async {}).await.expect("it ends");
        spawn_behind();
        say.send(()).expect("it is waited for");
        let _ = is_to_end.recv();
    });
}

fn spawn_behind() {
    for _ in 0..LOCAL {
        tokio::spawn(async {});
    }
}

fn line(handle: &Handle, since: u64) -> String {
    let metrics = handle.metrics();
    let (global, alive) = (metrics.global_queue_depth(), metrics.num_alive_tasks());
    format!("{global}\t{alive}\t{since}\t{}\n", now_ns())
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("after the boot")
}
