//! The smallest poll cycle: one task that wakes itself and is polled again.
//!
//! In: lines of numbers on stdin. Out: for each `N`, the CPU time of `N` cycles
//! on the one worker thread, ns. What a probe adds to a cycle is what a
//! benchmark of the tracer measures.

use std::io::BufRead as _;

use testprogs::cycles::timed;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .expect("a runtime can be built");
    println!("ready {}", std::process::id());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(cycles) = line.trim().parse() else {
            return;
        };
        let ns = runtime.block_on(async { tokio::spawn(timed(cycles)).await });
        println!("{}", ns.expect("the task ends well"));
    }
}
