//! A small service on a runtime of its own.
//!
//! In: calls. Out: counted tasks of several kinds. Never: a task that runs while no
//! call does.

use std::sync::Arc;

use tokio::{
    runtime::{Builder, Runtime},
    sync::{Notify, Semaphore},
};

use crate::{
    count::{self, Task},
    spin::{ByRef, Spin},
};

/// Tasks of each kind in one [`Service::work`].
const EACH: u64 = 20;
/// Polls of one that spins.
const POLLS: u64 = 50;

/// The service.
#[derive(Debug)]
pub struct Service {
    runtime: Runtime,
    waits: Arc<Task>,
    notify: Arc<Notify>,
    heard: Arc<Semaphore>,
}

impl Service {
    /// Starts it with one task that waits.
    ///
    /// # Panics
    ///
    /// When the system has no threads left.
    pub fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .expect("a runtime can be built");
        let (notify, heard) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
        let (notified, tell) = (Arc::clone(&notify), Arc::clone(&heard));
        let (waiting, waits) = count::prepare("from-before", async move {
            loop {
                notified.notified().await;
                tell.add_permits(1);
            }
        });
        waits.identify(runtime.spawn(waiting).id());
        Self {
            runtime,
            waits,
            notify,
            heard,
        }
    }

    /// Ends the runtime, and with it the task that waits.
    pub fn stop(self) {
        self.waits.cancelled_without_entry();
        drop(self.runtime);
    }

    /// Spawns, wakes, blocks and panics, and waits for the end of all that.
    ///
    /// # Panics
    ///
    /// When something ends otherwise than it should.
    pub fn work(&self) {
        self.runtime.block_on(async {
            let mut joined = Vec::new();
            for _ in 0..EACH {
                let spin = |task| Spin::<ByRef>::new(task, POLLS);
                joined.push(count::spawn_metered(self.runtime.handle(), "spin", spin).0);
                joined.push(count::spawn("yields", tokio::task::yield_now()));
                joined.push(count::spawn_blocking("blocks", || ()));
                self.notify.notify_one();
                let heard = self.heard.acquire().await;
                heard.expect("it is never closed").forget();
            }
            for task in joined {
                task.await.expect("it does not panic");
            }
            let panics = count::spawn("panics", async { panic!("as it should") });
            panics.await.expect_err("it panics");
        });
    }
}
