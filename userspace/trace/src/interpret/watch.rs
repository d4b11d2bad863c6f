//! Polls that take too long.
//!
//! In: polls of tasks that began and ended in sight. Out: the longest above a
//! limit. Never: one that a gap has closed: how long it was is not known.

use std::fmt;
use std::time::Duration;

/// A poll above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongPoll {
    /// How long it was, ns.
    pub duration_ns: u64,
    /// Whose poll.
    pub task_id: u64,
    /// The thread.
    pub tid: u32,
}

impl fmt::Display for LongPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            duration_ns,
            task_id,
            tid,
        } = self;
        let duration = Duration::from_nanos(*duration_ns);
        write!(f, "a poll of {duration:.1?}, task {task_id}, thread {tid}")
    }
}

#[derive(Debug)]
pub(super) struct Watch {
    pub(super) limit_ns: u64,
    pub(super) longest: Option<LongPoll>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            limit_ns: u64::MAX,
            longest: None,
        }
    }
}

impl Watch {
    #[inline]
    pub(super) fn see(&mut self, poll: LongPoll) {
        let longest_ns = self.longest.map_or(self.limit_ns, |poll| poll.duration_ns);
        if poll.duration_ns >= longest_ns {
            self.longest = Some(poll);
        }
    }
}
