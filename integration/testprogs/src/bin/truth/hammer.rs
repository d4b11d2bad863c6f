//! One task, woken by threads outside the runtime as fast as they can.
//!
//! In: the runtime. Out: wakes that collide on the task's state word, with
//! each other and with its polls; and wakes of a task that is over. Never: a
//! wake after [`run`] has returned.

use std::{
    future::Future,
    hint,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
};

use testprogs::count::{self, Meter, Task};
use tokio::runtime::Runtime;

const THREADS: u64 = 2;
const BY_REF: u64 = 200_000;
const BY_VALUE: u64 = 50_000;
const AFTER_THE_END: u64 = 1_000;

/// Hands out its waker and is polled until told to end.
struct Anvil {
    meter: Meter,
    hand_out: Option<mpsc::Sender<Waker>>,
    end: Arc<AtomicBool>,
}

impl Future for Anvil {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.meter.enter();
        if let Some(hand_out) = self.hand_out.take() {
            hand_out
                .send(cx.waker().clone())
                .expect("the hammer waits for it");
        }
        let outcome = if self.end.load(SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        };
        for _ in 0..50 {
            hint::spin_loop();
        }
        self.meter.leave(outcome)
    }
}

/// Strikes.
pub fn run(runtime: &Runtime, percent: u64) {
    let end = Arc::new(AtomicBool::new(false));
    let (hand_out, taken) = mpsc::channel();
    let (joined, task) = count::spawn_metered(runtime.handle(), "anvil", |task| Anvil {
        meter: Meter::new(task),
        hand_out: Some(hand_out),
        end: Arc::clone(&end),
    });
    let waker = taken.recv().expect("it is polled");

    let by_ref = BY_REF * percent / 100;
    let by_value = BY_VALUE * percent / 100;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| strike(&task, &waker, by_ref, by_value));
        }
    });
    end.store(true, SeqCst);
    strike(&task, &waker, 1, 0);
    runtime.block_on(joined).expect("it does not panic");

    strike(&task, &waker, AFTER_THE_END, AFTER_THE_END);
    // The last reference to the task: this wake frees it.
    task.woken(1);
    waker.wake();
}

fn strike(task: &Task, waker: &Waker, by_ref: u64, by_value: u64) {
    for _ in 0..by_ref {
        waker.wake_by_ref();
    }
    for _ in 0..by_value {
        waker.clone().wake();
    }
    task.woken(by_ref + by_value);
}
