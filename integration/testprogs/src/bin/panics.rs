//! Tasks that panic, one after the other, each caught by Tokio.
//!
//! Words: `load` and `rest` start and stop them, `count` asks how many were
//! caught, `panic` starts a single one, `exit` ends the program; it fails when
//! anything but a panic was caught. Each word is answered by a line, `panic`
//! only where the program survives it.

use std::{
    io,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use testprogs::{quiet, script};
use tokio::{
    runtime, spawn,
    task::{JoinHandle, yield_now},
};

#[derive(Default)]
struct Tally {
    caught: AtomicU64,
    other: AtomicU64,
    loaded: AtomicBool,
}

fn main() -> io::Result<ExitCode> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let tally = Arc::new(Tally::default());
    runtime.block_on(async { spawn(async {}).await.expect("it does not panic") });
    quiet::wait_until_idle();
    script::say_ready();

    let mut load = None;
    loop {
        match script::hear().as_str() {
            "load" => {
                tally.loaded.store(true, SeqCst);
                load = Some(runtime.spawn(panic_on(Arc::clone(&tally))));
                script::say("loaded");
            }
            "rest" => {
                tally.loaded.store(false, SeqCst);
                if let Some(load) = load.take() {
                    runtime.block_on(load).expect("it catches them");
                }
                script::say("resting");
            }
            "count" => script::say(&format!("count {}", tally.caught.load(SeqCst))),
            "panic" => {
                runtime.block_on(async { judge(&tally, spawn(deep(8))).await });
                script::say("survived");
            }
            _ => {
                let sound = tally.other.load(SeqCst) == 0 && tally.caught.load(SeqCst) > 0;
                script::say(&format!("caught {}", tally.caught.load(SeqCst)));
                return Ok(if sound {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                });
            }
        }
    }
}

async fn panic_on(tally: Arc<Tally>) {
    while tally.loaded.load(SeqCst) {
        judge(&tally, spawn(async { panic!("on purpose, at once") })).await;
        judge(
            &tally,
            spawn(async {
                yield_now().await;
                panic!("on purpose, in the second poll");
            }),
        )
        .await;
        judge(&tally, spawn(deep(16))).await;
        judge(&tally, spawn(async { std::panic::panic_any(42u32) })).await;
    }
}

/// Panics below a few frames, with something to drop in each.
async fn deep(depth: u32) {
    let kept = vec![depth];
    if depth == 0 {
        panic!("on purpose, deep down");
    }
    Box::pin(deep(depth - 1)).await;
    drop(kept);
}

async fn judge<T>(tally: &Tally, task: JoinHandle<T>) {
    match task.await {
        Err(error) if error.is_panic() => tally.caught.fetch_add(1, SeqCst),
        _ => tally.other.fetch_add(1, SeqCst),
    };
}
