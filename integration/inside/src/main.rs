//! A Tokio program that dial9's own recorder records from the inside.
//!
//! `inside DIR PERCENT...`: a runtime for each PERCENT, of the usual amount of work,
//! which is over a million polls; the first is a multi-thread runtime, the others are
//! current-thread ones, each on a thread of its own. Says `ready PID` at rest, with
//! tasks alive; on `go` they work, all at once, come to rest, and it says `done`; on
//! `exit` it ends, and DIR has dial9's trace. Between `ready` and `go`, and between
//! `done` and `exit`, nothing is polled or woken.

mod work;

use std::{
    env, panic,
    path::PathBuf,
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use dial9::{Dial9Handle, Dial9HandleTokioExt as _, DiskBuffer, TokioAttachOptions, recorder};
use testprogs::{amount::Amount, quiet, script};
use tokio::runtime::Builder;

/// dial9 flushes in the end what is left.
const SHUTDOWN: Duration = Duration::from_secs(20);

fn main() {
    let mut args = env::args_os().skip(1);
    let dir = PathBuf::from(args.next().expect("usage: inside DIR PERCENT..."));
    let amounts: Vec<_> = args
        .map(|percent| percent.to_str().and_then(|percent| percent.parse().ok()))
        .map(|percent| percent.expect("PERCENT is a number"))
        .map(|percent| Amount { percent })
        .collect();
    // Some tasks panic, each on purpose.
    panic::set_hook(Box::new(|_| ()));

    let trace = DiskBuffer::single_file(dir.join("inside.bin")).expect("DIR can be written");
    let recorder = recorder(trace).build();
    let step = Arc::new(Barrier::new(amounts.len() + 1));
    let runtimes: Vec<_> = amounts
        .into_iter()
        .enumerate()
        .map(|(index, amount)| {
            let (handle, step) = (recorder.handle().clone(), Arc::clone(&step));
            thread::spawn(move || run(index, amount, &handle, &step))
        })
        .collect();

    // Each of the runtimes has waited, worked, and ended at one of these steps.
    step.wait();
    quiet::wait_until_idle();
    script::say_ready();
    script::expect("go");
    step.wait();
    step.wait();
    quiet::wait_until_idle();
    script::say("done");
    script::expect("exit");
    step.wait();
    for runtime in runtimes {
        runtime.join().expect("it does not panic");
    }
    recorder.graceful_shutdown(SHUTDOWN);
}

/// A runtime from its begin to its end, driven by this thread.
fn run(index: usize, amount: Amount, recorder: &Dial9Handle, step: &Barrier) {
    let mut builder = match index {
        0 => Builder::new_multi_thread(),
        _ => Builder::new_current_thread(),
    };
    builder.worker_threads(2).enable_all();
    let options = TokioAttachOptions::builder()
        .runtime_name(format!("inside-{index}"))
        .task_tracking_enabled(true)
        .build();
    let runtime = recorder
        .attach_tokio_runtime(builder, options)
        .expect("a runtime can be built");
    let alive = dial9::block_on(&runtime, work::before());
    step.wait();
    step.wait();
    let idle = dial9::block_on(&runtime, work::run(alive, amount));
    step.wait();
    step.wait();
    drop(idle);
}
