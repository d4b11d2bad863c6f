//! The spool as the loop sees it.
//!
//! In: work on the spool and on its files. Out: its result. Never: a wait for
//! the disk on the loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A spool that is worked on by other threads, one at a time.
pub(super) struct Shelf<P>(Arc<Mutex<P>>);

impl<P> Clone for Shelf<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Send + 'static> Shelf<P> {
    pub(super) fn new(spool: P) -> Self {
        Self(Arc::new(Mutex::new(spool)))
    }

    /// The spool, once whoever has it is done.
    pub(super) fn lock(&self) -> MutexGuard<'_, P> {
        // Who panicked has ended the courier, too.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what waits for the disk.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        let shelf = self.clone();
        match tokio::task::spawn_blocking(move || work(&shelf)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is ending, and this task with it.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
