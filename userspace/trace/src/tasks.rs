//! Which tasks are known, and what a segment has said of them.
//!
//! In: sightings of task ids, in order of time. Out: announcements: one
//! `TaskSpawnEvent` for each task and segment, with the task's own spawn time
//! also in later segments. Never: more memory than live tasks, the last
//! [`RECENT`] ended ones and a bounded rest whose end was lost.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use crate::event::Event;
use crate::location::LocationId;

/// Ended tasks that are remembered, since a waker can outlive its task.
const RECENT: usize = 64 << 10;
/// Known tasks above which those unseen for a segment are forgotten.
const MOST: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    spawned_ns: u64,
    location: LocationId,
    /// Segment that has the task's announcement; 0 for none.
    announced: u32,
    /// Segment of the last sighting.
    seen: u32,
    state: State,
    is_blocking: bool,
    is_first_sighting: bool,
    /// In `untyped`.
    is_queued: bool,
}

impl Task {
    fn announcement(&self, task_id: u64, worker: Option<u32>) -> Event {
        Event::Spawn {
            ts_ns: self.spawned_ns,
            task_id,
            location: self.location,
            worker,
            first_sighting: self.is_first_sighting,
        }
    }
}

/// What a sighting of a task calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sighting {
    /// The segment knows the task.
    Known,
    /// The segment has to be told first.
    Announce(Event),
    /// The task is a closure of the blocking pool.
    Blocking,
}

/// Known tasks.
#[derive(Debug)]
pub(crate) struct Tasks {
    by_id: HashMap<u64, Task, RandomState>,
    /// Ended tasks, oldest first.
    ended: VecDeque<u64>,
    /// Tasks only woken so far: announced once their type is known, or at the
    /// segment's end.
    untyped: Vec<u64>,
    segment: u32,
}

impl Tasks {
    pub(crate) fn new() -> Self {
        Self {
            by_id: HashMap::default(),
            ended: VecDeque::new(),
            untyped: Vec::new(),
            segment: 1,
        }
    }

    /// A task is polled for the first time or again.
    #[inline]
    pub(crate) fn poll(&mut self, task_id: u64, ts_ns: u64, location: LocationId) -> Sighting {
        let segment = self.segment;
        let task = self.enter(task_id, ts_ns);
        task.is_blocking = false;
        if task.location == LocationId::NOT_POLLED {
            task.location = location;
        }
        announce_once(task, task_id, segment)
    }

    /// A closure of the blocking pool begins; whatever its id was taken for.
    pub(crate) fn block(&mut self, task_id: u64, ts_ns: u64, location: LocationId) {
        let task = self.enter(task_id, ts_ns);
        task.is_blocking = true;
        task.location = location;
    }

    /// A task is woken.
    #[inline]
    pub(crate) fn wake(&mut self, task_id: u64, ts_ns: u64) -> Sighting {
        let segment = self.segment;
        let task = self.enter(task_id, ts_ns);
        if task.location != LocationId::NOT_POLLED || task.state == State::Ended {
            return announce_once(task, task_id, segment);
        }
        if !std::mem::replace(&mut task.is_queued, true) {
            self.untyped.push(task_id);
        }
        Sighting::Known
    }

    /// A task is bound to a runtime; `None` when it was known already.
    pub(crate) fn spawn(
        &mut self,
        task_id: u64,
        ts_ns: u64,
        location: LocationId,
        worker: Option<u32>,
    ) -> Option<Event> {
        let segment = self.segment;
        let task = self.enter(task_id, ts_ns);
        if task.announced != 0 || task.state == State::Ended {
            return None;
        }
        task.is_first_sighting = false;
        task.location = location;
        task.spawned_ns = ts_ns;
        task.announced = segment;
        Some(task.announcement(task_id, worker))
    }

    /// A task ends.
    pub(crate) fn end(&mut self, task_id: u64, ts_ns: u64) -> Sighting {
        let segment = self.segment;
        let task = self.enter(task_id, ts_ns);
        let sighting = announce_once(task, task_id, segment);
        if task.state == State::Live {
            task.state = State::Ended;
            if self.ended.len() == RECENT
                && let Some(oldest) = self.ended.pop_front()
            {
                self.by_id.remove(&oldest);
            }
            self.ended.push_back(task_id);
        }
        sighting
    }

    /// Ends the segment: announces what was only woken, then begins the next.
    /// Returns how many tasks were forgotten to bound memory.
    pub(crate) fn rotate(&mut self, mut announce: impl FnMut(&Event)) -> u64 {
        for task_id in self.untyped.drain(..) {
            let Some(task) = self.by_id.get_mut(&task_id) else {
                continue;
            };
            task.is_queued = false;
            // Also where it has turned out to be blocking: a wake names it.
            if task.announced != self.segment {
                task.announced = self.segment;
                announce(&task.announcement(task_id, None));
            }
            // Perhaps a waker kept long after its task's end: only a poll
            // makes it a task worth remembering.
            if task.location == LocationId::NOT_POLLED && task.state == State::Live {
                self.by_id.remove(&task_id);
            }
        }
        let segment = self.segment;
        self.segment += 1;
        if self.by_id.len() <= MOST {
            return 0;
        }
        let before = self.by_id.len();
        self.by_id
            .retain(|_, task| task.seen == segment || task.state == State::Ended);
        (before - self.by_id.len()) as u64
    }

    fn enter(&mut self, task_id: u64, ts_ns: u64) -> &mut Task {
        let task = self.by_id.entry(task_id).or_insert(Task {
            spawned_ns: ts_ns,
            location: LocationId::NOT_POLLED,
            announced: 0,
            seen: 0,
            state: State::Live,
            is_blocking: false,
            is_first_sighting: true,
            is_queued: false,
        });
        task.seen = self.segment;
        task
    }
}

#[inline]
fn announce_once(task: &mut Task, task_id: u64, segment: u32) -> Sighting {
    if task.is_blocking {
        return Sighting::Blocking;
    }
    if task.announced == segment {
        return Sighting::Known;
    }
    task.announced = segment;
    Sighting::Announce(task.announcement(task_id, None))
}
