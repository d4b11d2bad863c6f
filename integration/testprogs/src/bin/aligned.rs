//! Tasks whose ids lie at different offsets: futures of more than a word's
//! alignment move everything behind the task's header.
//!
//! `aligned FILE`: the same conversation as `truth` (see there), with a few
//! thousand polls.

use std::{
    env,
    future::Future,
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
};

use testprogs::{
    count, quiet, script,
    spin::{ByRef, Spin},
};
use tokio::{runtime, task::JoinHandle};

const POLLS: u64 = 500;

/// A [`Spin`] as large as `A` makes it.
struct Aligned<A> {
    spin: Spin<ByRef>,
    _aligned: A,
}

#[derive(Default)]
#[repr(align(64))]
struct Line;

#[derive(Default)]
#[repr(align(256))]
struct FourLines;

impl<A: Unpin> Future for Aligned<A> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.spin).poll(cx)
    }
}

fn spawn<A>(runtime: &runtime::Handle, kind: &'static str) -> JoinHandle<()>
where
    A: Default + Unpin + Send + 'static,
{
    let aligned = |task| Aligned {
        spin: Spin::new(task, POLLS),
        _aligned: A::default(),
    };
    count::spawn_metered(runtime, kind, aligned).0
}

fn main() {
    let path = PathBuf::from(env::args_os().nth(1).expect("usage: aligned FILE"));
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime can be built");
    quiet::wait_until_idle();
    script::say_ready();
    script::expect("go");

    count::begin();
    for _ in 0..4 {
        let handle = runtime.handle();
        let joined = [
            spawn::<()>(handle, "word"),
            spawn::<Line>(handle, "line"),
            spawn::<FourLines>(handle, "four-lines"),
        ];
        for task in joined {
            runtime.block_on(task).expect("it does not panic");
        }
    }
    count::conclude(&path, "done");
}
