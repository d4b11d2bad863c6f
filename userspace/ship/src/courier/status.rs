//! How the courier is doing.
//!
//! In: what its stages did. Out: numbers that any thread can read at any time.
//! Never: a wait of the reader for the courier.

use std::time::Duration;

use tokio::sync::watch;

use crate::sink::FailureClass;

/// Longest text of an error that is kept, bytes: a store may answer anything.
const ERROR_BYTES: usize = 1000;

/// Numbers since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Segments compressed.
    pub compressed: u64,
    /// Segments put and unlinked.
    pub uploaded: u64,
    /// Their size, bytes.
    pub uploaded_bytes: u64,
    /// Attempts that failed.
    pub failures: Failures,
    /// Segments that the destination does not take, though it takes others.
    pub rejected: u64,
    /// Why the destination refuses whatever is put, while it does.
    pub degraded: Option<String>,
    /// The last failure, with its causes.
    pub last_error: Option<String>,
}

/// Failures by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// No answer.
    pub transport: u64,
    /// 429 and 503.
    pub throttled: u64,
    /// Other answers that pass.
    pub server: u64,
    /// Answers that do not pass by themselves.
    pub refused: u64,
    /// Of the spool's disk.
    pub local: u64,
}

impl Snapshot {
    pub(super) fn count(&mut self, class: FailureClass, error: &str) {
        let counter = match class {
            FailureClass::Transport => &mut self.failures.transport,
            FailureClass::Throttled => &mut self.failures.throttled,
            FailureClass::Server => &mut self.failures.server,
            FailureClass::Refused => &mut self.failures.refused,
        };
        *counter += 1;
        self.last_error = Some(cut(error));
    }

    pub(super) fn count_local(&mut self, error: &str) {
        self.failures.local += 1;
        self.last_error = Some(cut(error));
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(ERROR_BYTES)].to_owned()
}

/// Reads the status of a courier.
#[derive(Clone, Debug)]
pub struct Status(watch::Receiver<Snapshot>);

impl Status {
    /// The numbers now.
    pub fn snapshot(&self) -> Snapshot {
        self.0.borrow().clone()
    }

    /// Waits until the numbers are as wanted, or the time is over; returns the
    /// last ones in both cases. Blocks: not for a thread of a runtime.
    pub fn wait(&self, within: Duration, is_wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        match runtime {
            Ok(runtime) => runtime
                .block_on(self.wait_for(within, is_wanted))
                .unwrap_or_else(|last| last),
            Err(_) => self.snapshot(),
        }
    }

    /// The numbers as wanted, or the last ones when the time is over or the
    /// courier has ended.
    pub(super) async fn wait_for(
        &self,
        within: Duration,
        is_wanted: impl Fn(&Snapshot) -> bool,
    ) -> Result<Snapshot, Snapshot> {
        let mut receiver = self.0.clone();
        let waiting = receiver.wait_for(is_wanted);
        match tokio::time::timeout(within, waiting).await {
            Ok(Ok(wanted)) => Ok(wanted.clone()),
            _ => Err(self.snapshot()),
        }
    }

    #[cfg(test)]
    pub(super) fn ends_within(&self, within: Duration) -> bool {
        let start = std::time::Instant::now();
        self.wait(within, |_| false);
        start.elapsed() < within
    }
}

pub(super) fn channel() -> (watch::Sender<Snapshot>, Status) {
    let (writer, reader) = watch::channel(Snapshot::default());
    (writer, Status(reader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_counted_apart_and_texts_cut() {
        let mut snapshot = Snapshot::default();
        let long = "é".repeat(ERROR_BYTES);
        snapshot.count(FailureClass::Transport, &long);
        snapshot.count(FailureClass::Throttled, "b");
        snapshot.count(FailureClass::Server, "c");
        snapshot.count(FailureClass::Refused, "d");
        snapshot.count_local(&format!("x{long}"));
        let one_each = Failures {
            transport: 1,
            throttled: 1,
            server: 1,
            refused: 1,
            local: 1,
        };
        assert_eq!(snapshot.failures, one_each);
        assert_eq!(snapshot.last_error.map(|text| text.len()), Some(999));
    }
}
