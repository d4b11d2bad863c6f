//! A program that panics and ends in every way.
//!
//! Words: `panics` lets tasks panic in several ways, each caught by Tokio, and is
//! answered by `panicked N`; `stall MS` has a poll last so long and is answered by
//! `stalled TASK`; the other words end the program: `exit N` and `fault`
//! by a task, `abort` by a thread, `panic` by a task where panics abort, `main` by
//! the main thread's panic. Each panic is told by a line as its hook knows it:
//! `panic TID TASK FILE:LINE:COLUMN MESSAGE`, with task 0 outside tasks and `-` for
//! a payload that is no text.

#![expect(unsafe_code, reason = "a fault is what is tested")]

use std::{io, panic, panic::PanicHookInfo, process, ptr, thread, time::Duration};

use testprogs::{quiet, script};
use tokio::{
    runtime::{Builder, Runtime},
    spawn, task,
    task::{spawn_blocking, yield_now},
};

/// Longer than what is copied of a message, which ends in the midst of a letter.
const LONG: usize = 300;

fn main() -> io::Result<()> {
    panic::set_hook(Box::new(|info| script::say(&told(info))));
    let runtime = Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(async { spawn(async {}).await.expect("it does not panic") });
    quiet::wait_until_idle();
    script::say_ready();
    loop {
        let heard = script::hear();
        let (word, rest) = heard.split_once(' ').unwrap_or((&heard, ""));
        match word {
            "panics" => script::say(&format!("panicked {}", runtime.block_on(panics()))),
            "stall" => {
                let task = runtime.spawn(stall(rest.parse().unwrap_or(0)));
                let id = task.id();
                ends(&runtime, async { task.await.expect("it does not panic") });
                script::say(&format!("stalled {id}"));
            }
            "exit" => ends(&runtime, exit(rest.parse().unwrap_or(0))),
            "fault" => ends(&runtime, fault()),
            "panic" => ends(&runtime, literal()),
            "abort" => drop(thread::spawn(abort).join()),
            "main" => panic!("the main thread says {rest:?}"),
            _ => return Ok(()),
        }
    }
}

fn told(info: &PanicHookInfo<'_>) -> String {
    let tid = thread_id();
    let task = task::try_id().map_or("0".to_owned(), |id| id.to_string());
    let location = info.location().expect("a panic has one");
    let message = info.payload_as_str().unwrap_or("-");
    format!("panic {tid} {task} {location} {message}")
}

/// A task that ends the program.
fn ends(runtime: &Runtime, task: impl Future<Output = ()> + Send + 'static) {
    // Whether it does is for the test to see.
    let _ = runtime.block_on(runtime.spawn(task));
}

/// How many of these tasks Tokio catches.
async fn panics() -> usize {
    let mut caught = 0;
    let mut judge = |result: Result<(), task::JoinError>| {
        caught += usize::from(result.is_err_and(|error| error.is_panic()));
    };
    for round in 0..3 {
        judge(spawn(literal()).await);
        judge(spawn(formatted(round)).await);
        judge(spawn(long()).await);
        judge(spawn(out_of_bounds(round)).await);
        judge(spawn(unwrapped()).await);
        judge(spawn(no_text()).await);
        judge(spawn_blocking(|| panic!("in the blocking pool")).await);
    }
    caught
}

async fn stall(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

async fn literal() {
    panic!("a literal");
}

async fn formatted(round: usize) {
    yield_now().await;
    panic!("round {round} of several, in the second poll");
}

async fn long() {
    panic!("{}", "é".repeat(LONG));
}

async fn out_of_bounds(round: usize) {
    let few = [1, 2, 3];
    assert_eq!(few[round + 3], 0, "there is none");
}

async fn unwrapped() {
    let none = "no number".parse::<u32>();
    none.unwrap();
}

async fn no_text() {
    panic::panic_any(42_u32);
}

async fn exit(code: i32) {
    process::exit(code);
}

fn abort() {
    say_thread();
    process::abort();
}

/// Tells the thread that is about to end the program.
fn say_thread() {
    script::say(&format!("on {}", thread_id()));
}

fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

async fn fault() {
    say_thread();
    // SAFETY: none; the program is to end here.
    unsafe { ptr::without_provenance_mut::<u64>(0x1230).write_volatile(1) }
}
