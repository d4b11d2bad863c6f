//! The recording of one target, from its live links to its compressed segments.
//!
//! In: an attached tracer. Out: status lines, segments, a summary. Never: a
//! wait for whoever reads what is said.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use dial9_bpf_attach::{AttachError, Target, Tracer};
use dial9_bpf_trace::line::Pass;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    exit,
    forks::Forks,
    late::Late,
    recording::{Recorded, Recording},
    status::{self, Cost, Snapshot, StatusLine},
    stderr, stdout,
    summary::{self, Summary},
};

/// Time between two passes over the rings. The rings never wake us: a wake-up
/// costs the target microseconds a hit, a timer nothing.
pub(crate) const PASS_INTERVAL: Duration = Duration::from_millis(5);
/// Time between two status lines.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Interrupted,
    DurationOver,
    TargetExited,
    TargetExecuted,
    Stuck,
}

impl End {
    const fn reason(self) -> &'static str {
        match self {
            Self::Interrupted => "interrupted",
            Self::DurationOver => "the duration is over",
            Self::TargetExited => "the target exited",
            Self::TargetExecuted => "the target executed another program",
            Self::Stuck => "the output cannot be written",
        }
    }
}

/// What ends a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// A signal to us, the duration, or the target's end.
    Stopped,
    /// The duration or the target's end: the target is in the foreground, and what is
    /// said must not get into its output.
    Ended,
    /// As [`Until::Stopped`], and what is said is for the recorder that follows.
    Followed,
}

/// One recording of one target.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    target: &'a Target,
    recording: Recording,
    forks: Forks,
    late: Late,
    cost: Option<Cost>,
    /// When the links were live.
    began: Instant,
    until: Until,
}

impl<'a> Session<'a> {
    /// A recording whose links are live since `began`.
    pub(crate) fn new(
        target: &'a Target,
        (recording, (forks, late)): (Recording, (Forks, Late)),
        cost: Option<Cost>,
        (began, until): (Instant, Until),
    ) -> Self {
        Self {
            target,
            recording,
            forks,
            late,
            cost,
            began,
            until,
        }
    }

    /// Records, detaches, waits for the segments and sums up; the value is the
    /// exit code.
    ///
    /// # Errors
    /// When something cannot be written or read; what was written stays.
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
        self.late.stop();
        status.end();
        let Self {
            target,
            mut recording,
            mut forks,
            late,
            cost,
            began,
            until,
        } = self;
        let goes_on = matches!(end, Ok(End::TargetExited | End::TargetExecuted));
        let counted = forks.end(tracer, goes_on);
        let end = end.and_then(|end| counted.map(|()| end));
        recording.note_forked(forks.count());
        let recorded = recording.finish(tracer, stop);
        let dir = recorded.delivery.dir.display();
        let end = end.with_context(|| format!("what was recorded is in {dir}"));
        let beside = (forks.row(), late.rows());
        let code =
            end.and_then(|end| sum_up((target, cost), (end, window), (recorded, beside), until));
        let left = duration.map(|duration| duration.saturating_sub(began.elapsed()));
        let followed = forks.finish(tracer, (goes_on, left, stop), stderr::say);
        Ok(exit::first(code?, followed?))
    }

    /// Passes over the rings until the end.
    fn record(
        &mut self,
        tracer: &mut Tracer,
        stop: &AtomicBool,
        duration: Option<Duration>,
        status: &mut StatusLine<io::Stderr>,
    ) -> Result<End, AttachError> {
        let mut before = self.snapshot(Duration::ZERO);
        loop {
            let is_more_to_take = self.recording.pass(tracer) == Pass::Part;
            if tracer.has_executed()? {
                return Ok(End::TargetExecuted);
            }
            self.forks.pass(tracer)?;
            for text in self.late.hear(&mut self.recording, tracer, &mut self.cost) {
                status.end();
                stderr::say(text);
            }
            let elapsed = self.began.elapsed();
            if elapsed >= before.elapsed + STATUS_INTERVAL {
                let forked = self.forks.tick(tracer)?;
                self.recording.note_forked(self.forks.count());
                for text in self.recording.tick(tracer)?.into_iter().chain(forked) {
                    status.end();
                    stderr::say(text);
                }
                let now = self.snapshot(elapsed);
                if self.until == Until::Stopped {
                    status.show(&status::line(&before, &now));
                }
                before = now;
                if !self.target.is_same() && !has_exited(self.target, Duration::ZERO) {
                    return Ok(End::TargetExecuted);
                }
            }
            if self.recording.is_stuck() {
                return Ok(End::Stuck);
            }
            if self.until != Until::Ended && stop.load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            if duration.is_some_and(|duration| elapsed >= duration) {
                return Ok(End::DurationOver);
            }
            if !is_more_to_take && has_exited(self.target, PASS_INTERVAL) {
                return Ok(if tracer.has_executed()? {
                    End::TargetExecuted
                } else {
                    End::TargetExited
                });
            }
        }
    }

    fn snapshot(&self, elapsed: Duration) -> Snapshot {
        let (stats, losses) = (self.recording.stats(), self.recording.losses());
        Snapshot {
            elapsed,
            events: stats.events.total(),
            lost: self.recording.lost(),
            bytes: self.recording.bytes(),
            paid: self.cost.map(|cost| cost.of(&stats.records, &losses)),
        }
    }
}

/// Says what was recorded.
fn sum_up(
    (target, cost): (&Target, Option<Cost>),
    (end, window): (End, Duration),
    (recorded, (forked, objects)): (Recorded, (Option<String>, Vec<summary::Row>)),
    until: Until,
) -> anyhow::Result<u8> {
    let Recorded {
        finished,
        delivery,
        dumped,
        lost,
        left_out,
        missed_runs,
        failure,
    } = recorded;
    let stats = &finished.stats;
    let end_of_all = Snapshot {
        elapsed: window,
        events: stats.events.total(),
        lost,
        bytes: delivery.tally.raw_bytes,
        paid: cost.map(|cost| cost.of(&stats.records, &finished.losses)),
    };
    let summary = Summary {
        pid: target.pid(),
        executable: target.path(),
        end: end_of_all,
        reason: end.reason(),
        target_end: finished.target_end,
        stats,
        undecoded: finished.undecoded,
        unwritten: finished.unwritten,
        left_out,
        missed_runs,
        late: finished.unsorted,
        forked,
        objects: &objects,
        output: &summary::output(&finished, &delivery, dumped),
        written: dumped.map_or(stats.events.total(), |dumped| dumped.events),
        compressed_bytes: delivery.compressed_bytes(),
    };
    match until {
        Until::Stopped => stdout::print(&summary.render())?,
        Until::Ended | Until::Followed => stderr::say(summary.render().trim_end()),
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(exit::of_recording(lost, finished.undecoded)),
    }
}

/// Waits for the target's end, at most `timeout`, which is under a second.
pub(crate) fn has_exited(target: &Target, timeout: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let pidfd = target.pidfd();
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    // A signal ends the wait early: the caller looks at its flag.
    matches!(poll(&mut fds, Some(&timeout)), Ok(1))
}
