//! Futures written by hand that wake themselves: most of the polls.
//!
//! In: a number of polls. Out: exactly one poll more. Never: a counting waker;
//! these call Tokio's, and count each call.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::count::{Meter, Task};

/// How a [`Spin`] wakes itself.
pub trait SelfWake: Unpin + Send + 'static {
    /// Calls of the waker in one poll.
    const CALLS: u64;
    /// Makes them.
    fn wake(waker: &Waker);
}

/// `wake_by_ref`.
pub struct ByRef;
/// `clone().wake()`.
pub struct ByValue;
/// Both, several times in a row: all but the first find the task notified.
pub struct Burst;

impl SelfWake for ByRef {
    const CALLS: u64 = 1;
    fn wake(waker: &Waker) {
        waker.wake_by_ref();
    }
}

impl SelfWake for ByValue {
    const CALLS: u64 = 1;
    fn wake(waker: &Waker) {
        waker.clone().wake();
    }
}

impl SelfWake for Burst {
    const CALLS: u64 = 5;
    fn wake(waker: &Waker) {
        waker.wake_by_ref();
        waker.clone().wake();
        waker.wake_by_ref();
        waker.wake_by_ref();
        waker.clone().wake();
    }
}

/// Is polled `left` times more than once.
pub struct Spin<W> {
    meter: Meter,
    left: u64,
    how: PhantomData<W>,
}

impl<W> Spin<W> {
    /// One that belongs to `task`.
    pub fn new(task: Arc<Task>, left: u64) -> Self {
        Self {
            meter: Meter::new(task),
            left,
            how: PhantomData,
        }
    }
}

impl<W: SelfWake> Future for Spin<W> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.meter.enter();
        if self.left == 0 {
            return self.meter.leave(Poll::Ready(()));
        }
        self.left -= 1;
        self.meter.task().woken(W::CALLS);
        W::wake(cx.waker());
        self.meter.leave(Poll::Pending)
    }
}
