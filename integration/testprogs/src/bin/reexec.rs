//! A Tokio program that executes itself again, which begins another life of the
//! same process.
//!
//! Words: `work` is answered by `worked POLLS`, the polls of all tasks since the
//! last `ready`; `child` has a child process execute another program, and is
//! answered; `exec` and `exec-on-thread` are answered by the next life's `ready
//! PID`; `exit` ends the program.

use std::{
    env, io,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    thread,
};

use testprogs::{count, quiet, script};
use tokio::{
    runtime::{self, Runtime},
    task::yield_now,
};

const TASKS: usize = 500;

fn main() -> io::Result<()> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    quiet::wait_until_idle();
    script::say_ready();
    count::begin();
    loop {
        match script::hear().as_str() {
            "work" => {
                work(&runtime);
                script::say(&format!("worked {}", count::total_polls()));
            }
            "child" => {
                let child = Command::new("true").stdin(Stdio::null()).status()?;
                script::say(&format!("child {child}"));
            }
            "exec" => return Err(again()),
            "exec-on-thread" => {
                let error = thread::spawn(again).join();
                return Err(error.expect("it does not panic"));
            }
            _ => return Ok(()),
        }
    }
}

fn work(runtime: &Runtime) {
    runtime.block_on(async {
        for _ in 0..TASKS {
            let joined = count::spawn("work", yield_now());
            joined.await.expect("it does not panic");
        }
    });
    quiet::wait_until_idle();
}

/// Returns only where it fails.
fn again() -> io::Error {
    match env::current_exe() {
        Ok(program) => Command::new(program).exec(),
        Err(error) => error,
    }
}
