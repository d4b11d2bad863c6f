//! The smallest poll cycle, timed.
//!
//! In: a number of cycles. Out: the CPU time that they took. Never: a count of them.

use std::{
    future::Future,
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

/// CPU time of so many cycles of the task that awaits this, on one thread, ns.
pub async fn timed(cycles: u64) -> u64 {
    let before = thread_cpu_ns();
    Cycles { left: cycles }.await;
    thread_cpu_ns() - before
}

/// CPU time of this thread, ns.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
