//! Future types that differ in name only, so that the compiler merges their
//! poll functions.
//!
//! In: a number of polls. Out: that many. Never: two of them with different
//! code.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use testprogs::count::{self, Meter, Task};
use tokio::{runtime::Handle, task::JoinHandle};

/// One of several types with one poll function.
struct Twin<const N: usize> {
    meter: Meter,
    left: u64,
}

impl<const N: usize> Future for Twin<N> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.meter.enter();
        if self.left == 0 {
            return self.meter.leave(Poll::Ready(()));
        }
        self.left -= 1;
        self.meter.task().woken(1);
        cx.waker().wake_by_ref();
        self.meter.leave(Poll::Pending)
    }
}

async fn async_twin<const N: usize>(left: u64) {
    for _ in 0..left {
        wake_once().await;
    }
}

async fn wake_once() {
    let mut woken = false;
    poll_fn(move |cx| {
        if woken {
            return Poll::Ready(());
        }
        woken = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

macro_rules! plain_twins {
    ($($name:ident)*) => {
        $(async fn $name() {})*

        fn spawn_plain(joined: &mut Vec<JoinHandle<()>>) {
            $(joined.push(count::spawn(stringify!($name), $name()));)*
        }
    };
}

plain_twins! { plain_a plain_b plain_c plain_d plain_e }

fn twin<const N: usize>(task: Arc<Task>, left: u64) -> Twin<N> {
    Twin {
        meter: Meter::new(task),
        left,
    }
}

/// Spawns all of them, each to be polled about `polls` times.
pub fn spawn_all(polls: u64) -> Vec<JoinHandle<()>> {
    let runtime = Handle::current();
    let mut joined = vec![
        count::spawn_metered(&runtime, "twin-0", |task| twin::<0>(task, polls)).0,
        count::spawn_metered(&runtime, "twin-1", |task| twin::<1>(task, polls)).0,
        count::spawn_metered(&runtime, "twin-2", |task| twin::<2>(task, polls)).0,
        count::spawn_metered(&runtime, "twin-3", |task| twin::<3>(task, polls)).0,
        count::spawn("async-twin-0", async_twin::<0>(polls)),
        count::spawn("async-twin-1", async_twin::<1>(polls)),
        count::spawn("async-twin-2", async_twin::<2>(polls)),
        count::spawn("async-twin-3", async_twin::<3>(polls)),
    ];
    for _ in 0..20 {
        spawn_plain(&mut joined);
    }
    joined
}
