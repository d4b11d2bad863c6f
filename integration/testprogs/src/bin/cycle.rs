//! The smallest poll cycle: one task that wakes itself and is polled again.
//!
//! In: lines of numbers on stdin. Out: for each `N`, the CPU time of `N` cycles
//! on the one worker thread, ns. What a probe adds to a cycle is what a
//! benchmark of the tracer measures.

use std::{
    future::Future,
    io::BufRead as _,
    pin::Pin,
    task::{Context, Poll},
};

use rustix::time::{ClockId, clock_gettime};

/// Polled `left` times more; each poll wakes its own task.
struct Cycles {
    left: u64,
}

impl Future for Cycles {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.left == 0 {
            return Poll::Ready(());
        }
        self.left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

async fn timed(cycles: u64) -> u64 {
    let before = thread_cpu_ns();
    Cycles { left: cycles }.await;
    thread_cpu_ns() - before
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

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
