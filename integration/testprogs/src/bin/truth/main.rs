//! A Tokio program that knows the truth: how often each of its tasks was
//! polled and woken, when it was spawned, and whether it ended.
//!
//! `truth FILE [PERCENT]`: says `ready PID` at rest, with tasks alive; on `go`
//! it works (PERCENT of the usual amount, which is over a million polls), comes
//! to rest, writes FILE (see [`testprogs::count::conclude`]) and says `done
//! POLLS`; on `exit` it ends. Between `ready` and `go`, and between `done` and
//! `exit`, nothing is polled or woken.

mod abort;
mod alive;
mod hammer;
mod twins;
mod work;

use std::{env, panic, path::PathBuf};

use testprogs::{amount::Amount, count, quiet, script};
use tokio::runtime;

fn main() {
    let mut args = env::args_os().skip(1);
    let path = PathBuf::from(args.next().expect("usage: truth FILE [PERCENT]"));
    let percent = args.next().map_or(100, |percent| {
        percent
            .to_str()
            .and_then(|percent| percent.parse().ok())
            .expect("PERCENT is a number")
    });
    // Hundreds of tasks panic, each on purpose.
    panic::set_hook(Box::new(|_| ()));

    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    let alive = runtime.block_on(alive::start());
    quiet::wait_until_idle();
    script::say_ready();
    script::expect("go");

    count::begin();
    let alive = runtime.block_on(work::run(alive, Amount { percent }));
    hammer::run(&runtime, percent);
    abort::run(&runtime, alive);
    count::conclude(&path, "done");
}
