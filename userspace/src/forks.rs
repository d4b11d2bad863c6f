//! What is done about the processes that the target forks.
//!
//! In: a tracer. Out: how many there are that execute no program; a line that says
//! so, or recorders that follow them. Never: an alarm about a fork that is there to
//! execute a program.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use dial9_bpf_attach::{AttachError, Tracer, forks::Forked};
use dial9_bpf_trace::clock::monotonic_ns;

use crate::{
    exit,
    follow::{Followers, SETTLE_NS},
};

/// How old a process has to be before it is told of, ns: on a busy machine one that
/// is to execute a program waits for a CPU first.
const TOLD_NS: u64 = 1_000_000_000;
/// Time between two looks at the recorders, once the target is gone.
const PAUSE: Duration = Duration::from_millis(5);
/// Pids in the line that tells of forks.
const SHOWN: usize = 4;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// Told.
    Tell,
    /// Followed, so many at a time.
    Follow(usize),
    /// Only counted: whoever follows the target sees them, too.
    Count,
}

/// The forks of one target.
#[derive(Debug)]
pub(crate) struct Forks {
    followers: Option<Followers>,
    is_to_tell: bool,
    /// What the kernel has counted when its list was last read.
    seen: u64,
    alive: Vec<Forked>,
    /// Processes that execute no program; `None` where the kernel does not tell.
    count: Option<u64>,
    unkept: u64,
}

impl Forks {
    /// None yet.
    pub(crate) fn new(care: Care) -> Self {
        let followers = match care {
            Care::Follow(limit) => Some(Followers::new(limit)),
            Care::Tell | Care::Count => None,
        };
        Self {
            followers,
            is_to_tell: care == Care::Tell,
            seen: 0,
            alive: Vec::new(),
            count: None,
            unkept: 0,
        }
    }

    /// Follows what is to be followed.
    ///
    /// # Errors
    /// [`AttachError`] when the kernel's list cannot be read.
    pub(crate) fn pass(&mut self, tracer: &Tracer) -> Result<(), AttachError> {
        let Some(followers) = &self.followers else {
            return Ok(());
        };
        if tracer.forked()? != self.seen || followers.lacks(&self.alive) {
            self.read(tracer, SETTLE_NS)?;
        }
        let Some(followers) = &mut self.followers else {
            return Ok(());
        };
        followers.follow(&self.alive, monotonic_ns());
        followers.reap();
        Ok(())
    }

    /// What is due once a second: returns what there is to say.
    ///
    /// # Errors
    /// As [`Forks::pass`].
    pub(crate) fn tick(&mut self, tracer: &Tracer) -> Result<Vec<String>, AttachError> {
        self.read(tracer, TOLD_NS)?;
        if let Some(followers) = &self.followers {
            return Ok(followers.said());
        }
        let count = self.count.unwrap_or(0);
        if count == 0 || !std::mem::take(&mut self.is_to_tell) {
            return Ok(Vec::new());
        }
        let before_ns = monotonic_ns().saturating_sub(TOLD_NS);
        let alive = self.alive.iter();
        let alive = alive.filter(|forked| forked.forked_ns < before_ns);
        Ok(vec![told(count, alive.map(|forked| forked.pid).collect())])
    }

    /// Processes that execute no program.
    pub(crate) fn count(&self) -> u64 {
        self.count.unwrap_or(0)
    }

    /// Counts once more, and ends what follows them unless it `goes_on` without the
    /// target.
    ///
    /// # Errors
    /// As [`Forks::pass`].
    pub(crate) fn end(&mut self, tracer: &Tracer, goes_on: bool) -> Result<(), AttachError> {
        if !goes_on && let Some(followers) = &mut self.followers {
            followers.stop();
        }
        self.read(tracer, SETTLE_NS)
    }

    /// A row of the summary, where there is something to be told.
    pub(crate) fn row(&self) -> Option<String> {
        let count = self.count.filter(|count| *count > 0)?;
        let how = if self.followers.is_some() {
            "followed"
        } else {
            "not traced"
        };
        let unkept = match self.unkept {
            0 => String::new(),
            more => format!("; {more} more, too many to look after"),
        };
        Some(format!("{count}, {how}{unkept}"))
    }

    /// Waits for the recorders, and meanwhile, if it `goes_on` without the target,
    /// follows what is forked by whom they record, for so long. `stop` ends that, set
    /// again it hurries, and then kills. What they say is said by `say`; the value is
    /// the exit code that stands for all.
    ///
    /// # Errors
    /// As [`Forks::pass`].
    pub(crate) fn finish(
        mut self,
        tracer: &Tracer,
        (goes_on, left, stop): (bool, Option<Duration>, &AtomicBool),
        mut say: impl FnMut(String),
    ) -> Result<u8, AttachError> {
        let began = Instant::now();
        let mut is_going_on = goes_on;
        let mut stops = u32::from(!goes_on);
        loop {
            if is_going_on {
                self.pass(tracer)?;
            }
            let Some(followers) = &mut self.followers else {
                return Ok(exit::DONE);
            };
            followers.reap();
            followers.said().into_iter().for_each(&mut say);
            let is_more = is_going_on && followers.lacks(&self.alive);
            if followers.are_done() && !is_more {
                break;
            }
            let is_over = left.is_some_and(|left| began.elapsed() >= left) && stops == 0;
            if is_over || stop.swap(false, Ordering::Relaxed) {
                is_going_on = false;
                stops += 1;
                match stops {
                    1 => followers.stop(),
                    2 => followers.cut(),
                    _ => followers.kill(),
                }
            }
            thread::sleep(PAUSE);
        }
        self.read(tracer, SETTLE_NS)?;
        let Some(followers) = self.followers else {
            return Ok(exit::DONE);
        };
        let tally = followers.tally();
        let text = tally.of(self.count.unwrap_or(0)).to_string();
        if !text.is_empty() {
            say(format!("forked processes: {text}"));
        }
        Ok(tally.code())
    }

    fn read(&mut self, tracer: &Tracer, settle_ns: u64) -> Result<(), AttachError> {
        let Some(forks) = tracer.forks()? else {
            return Ok(());
        };
        self.count = Some(forks.count(monotonic_ns().saturating_sub(settle_ns)));
        self.unkept = forks.unkept();
        self.seen = forks.forked();
        self.alive = forks.alive;
        Ok(())
    }
}

fn told(count: u64, mut alive: Vec<u32>) -> String {
    let (noun, execute) = if count == 1 {
        ("process", "executes")
    } else {
        ("processes", "execute")
    };
    alive.truncate(SHOWN);
    let mut pids: Vec<String> = alive.iter().map(u32::to_string).collect();
    if (pids.len() as u64) < count {
        pids.push("…".to_owned());
    }
    format!(
        "the target has forked {count} {noun} ({}) that {execute} no other program: not traced, \
         and slowed by the breakpoints that were inherited (--follow-forks traces them)",
        pids.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_are_told_in_one_line() {
        assert!(told(1, vec![1]).starts_with("the target has forked 1 process (1) that executes"));
        assert!(told(9, (1..9).collect()).contains("9 processes (1, 2, 3, 4, …) that execute no"));
        assert!(told(2, Vec::new()).contains("2 processes (…) that execute"));
    }
}
