//! The recording of one target, from its live links to its compressed segment.
//!
//! In: an attached tracer. Out: status lines, a segment, a summary. Never: a
//! wait for whoever reads what is said.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use dial9_bpf_attach::{Target, Tracer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    exit,
    recording::Recording,
    status::{self, Cost, Snapshot, StatusLine},
    stdout,
    summary::Summary,
};

/// Time between two passes over the rings. The rings never wake us: a wake-up
/// costs the target microseconds a hit, a timer nothing.
const PASS_INTERVAL: Duration = Duration::from_millis(5);
/// Time between two status lines.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Interrupted,
    DurationOver,
    TargetExited,
    TargetExecuted,
}

impl End {
    const fn reason(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::DurationOver => "the duration is over",
            Self::TargetExited => "the target exited",
            Self::TargetExecuted => "the target executed another program",
        }
    }
}

/// One recording of one target.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    target: &'a Target,
    recording: Recording,
    cost: Option<Cost>,
    /// When the links were live.
    began: Instant,
    lost: u64,
}

impl<'a> Session<'a> {
    /// A recording whose links are live since `began`.
    pub(crate) fn new(
        target: &'a Target,
        recording: Recording,
        cost: Option<Cost>,
        began: Instant,
    ) -> Self {
        Self {
            target,
            recording,
            cost,
            began,
            lost: 0,
        }
    }

    /// Records, detaches, seals and sums up; the value is the exit code.
    ///
    /// # Errors
    /// When the segment cannot be written; what was written stays.
    pub(crate) fn run(
        mut self,
        tracer: &mut Tracer,
        stop: &AtomicBool,
        duration: Option<Duration>,
    ) -> anyhow::Result<u8> {
        let mut status = StatusLine::on_stderr();
        let end = self.record(tracer, stop, duration, &mut status);
        // Hits end where the detaching begins; that it takes a while is no part
        // of the window that rates are of.
        let window = self.began.elapsed();
        tracer.detach();
        status.end();
        let kept = kept_in(&self.recording.path());
        let end = end.with_context(|| kept.clone())?;
        self.recording
            .finish(tracer)
            .with_context(|| kept.clone())?;
        self.lost = self.recording.read_losses(tracer)?;
        self.seal(end, window, kept)
    }

    /// Passes over the rings until the end.
    fn record(
        &mut self,
        tracer: &mut Tracer,
        stop: &AtomicBool,
        duration: Option<Duration>,
        status: &mut StatusLine<io::Stderr>,
    ) -> anyhow::Result<End> {
        let mut before = self.snapshot(Duration::ZERO);
        loop {
            let is_empty = self.recording.pass(tracer)?;
            let elapsed = self.began.elapsed();
            if elapsed >= before.elapsed + STATUS_INTERVAL {
                self.recording.flush()?;
                self.lost = self.recording.read_losses(tracer)?;
                let now = self.snapshot(elapsed);
                status.show(&status::line(&before, &now));
                before = now;
                if !self.target.is_same() && !has_exited(self.target, Duration::ZERO) {
                    return Ok(End::TargetExecuted);
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            if duration.is_some_and(|duration| elapsed >= duration) {
                return Ok(End::DurationOver);
            }
            if is_empty && has_exited(self.target, PASS_INTERVAL) {
                return Ok(End::TargetExited);
            }
        }
    }

    /// Seals what was recorded, and says so.
    fn seal(self, end: End, window: Duration, kept: String) -> anyhow::Result<u8> {
        let (stats, undecoded) = (*self.recording.stats(), self.recording.undecoded());
        let late = self.recording.late();
        let last = self.snapshot(window);
        let sealed = self.recording.seal().context(kept)?;
        let end_of_all = Snapshot {
            bytes: sealed.bytes,
            ..last
        };
        let (file, compressed_bytes, failure) = match sealed.compress() {
            Ok(compressed) => (compressed.path, Some(compressed.bytes), None),
            Err(error) => (error.segment.path.clone(), None, Some(error)),
        };
        let summary = Summary {
            pid: self.target.pid(),
            executable: self.target.path(),
            end: end_of_all,
            reason: end.reason(),
            stats: &stats,
            undecoded,
            late,
            file: &file,
            compressed_bytes,
        };
        stdout::print(&summary.render())?;
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(exit::of_recording(self.lost, undecoded)),
        }
    }

    fn snapshot(&self, elapsed: Duration) -> Snapshot {
        let (stats, losses) = (self.recording.stats(), self.recording.losses());
        Snapshot {
            elapsed,
            events: stats.events.total(),
            lost: self.lost,
            bytes: self.recording.bytes(),
            paid: self.cost.map(|cost| cost.of(&stats.records, &losses)),
        }
    }
}

/// What a failure leaves behind.
fn kept_in(path: &Path) -> String {
    if path.exists() {
        format!("what was recorded is in {}", path.display())
    } else {
        format!("what was recorded is gone with {}", path.display())
    }
}

/// Waits for the target's end, at most `timeout`, which is under a second.
fn has_exited(target: &Target, timeout: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let pidfd = target.pidfd();
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    // A signal ends the wait early: the caller looks at its flag.
    matches!(poll(&mut fds, Some(&timeout)), Ok(1))
}
