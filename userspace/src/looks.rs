//! When to look at what code the target has mapped.
//!
//! In: how much code it has, which takes no lock of its memory to read. Out: whether it may
//! have other code than before, or a thread that looks then. Never: a look at the mappings of
//! its own, which takes one.

use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use dial9_bpf_attach::mapped;

/// Time between two looks at how much code the target has.
pub(crate) const LOOK: Duration = Duration::from_millis(250);
/// Time between two looks at what code it has, where that much did not change.
const FULL_LOOK: Duration = Duration::from_secs(10);

/// What was there at the last look.
#[derive(Debug)]
pub(crate) struct Looks {
    pid: u32,
    library_kib: Option<u64>,
    looked: Instant,
}

impl Looks {
    /// Of a process that is looked at now.
    pub(crate) fn begin(pid: u32) -> Self {
        Self {
            pid,
            library_kib: mapped::library_kib(pid),
            looked: Instant::now(),
        }
    }

    /// Whether to look again; if so, now.
    pub(crate) fn is_due(&mut self) -> bool {
        let library_kib = mapped::library_kib(self.pid);
        if library_kib == self.library_kib && self.looked.elapsed() < FULL_LOOK {
            return false;
        }
        *self = Self {
            pid: self.pid,
            library_kib,
            looked: Instant::now(),
        };
        true
    }
}

/// A thread that looks whenever it is due; dropped, it ends.
#[derive(Debug)]
pub(crate) struct Looking {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Looking {
    /// Looks for the first time after `first`; the time between two doubles up to [`LOOK`].
    /// The thread ends where `look` says that nobody wants more.
    ///
    /// # Errors
    /// The system's, when it has no thread left.
    pub(crate) fn start(
        name: &str,
        mut looks: Looks,
        first: Duration,
        mut look: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            let mut wait = first;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = LOOK.min(wait * 2);
                if looks.is_due() && !look() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(run)?),
        })
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has no result.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_changed_is_not_due() {
        let mut looks = Looks::begin(std::process::id());
        assert!(!looks.is_due());
        looks.library_kib = None;
        assert!(looks.is_due());
        assert!(!looks.is_due());
    }
}
