//! Where Tokio's schedulers have their counters.
//!
//! In: bytes of a scheduler. Out: where in it the list of tasks is, and the counters.
//! Never: an offset that was not read from the DWARF of a build of that version, a
//! layout that only seems to fit.
//!
//! The structs are not `repr(C)`. `cargo xtask layouts` builds every minor version and
//! prints the offsets. What is around `Shared` changes with features and versions, so
//! that all is relative to the number of the list of tasks (`OwnedTasks::id`), which
//! the task's header has as well: it is searched for. The words around it must be what
//! they can only be there. In the multi-thread scheduler three numbers of workers agree,
//! one on each side of the counters; in both, the lists of tasks are as many as their
//! mask says, and the global queue has a first and a last task where it has a length.

use std::ops::{Range, RangeInclusive};

/// Largest distance between the first and the last word of a layout, bytes.
pub(super) const WINDOW_BYTES: usize = 640;
/// Addresses of the first page are nobody's.
const LOWEST_ADDRESS: u64 = 4096;
/// More workers, shards or references are not believed.
const MOST: u64 = 1 << 32;

/// A scheduler's words, bytes from the number of its list of tasks.
#[derive(Debug)]
pub(super) struct Layout {
    /// Minor versions of Tokio 1.
    minors: RangeInclusive<u32>,
    /// `OwnedTasks`: tasks alive (`src/runtime/task/list.rs`).
    count: i32,
    /// `OwnedTasks`: a `bool`.
    closed: i32,
    tasks: Tasks,
    /// The multi-thread scheduler's: lengths of `remotes` and of `worker_metrics`, and
    /// `idle.num_workers` (`src/runtime/scheduler/multi_thread/worker.rs`).
    workers: Option<[i32; 3]>,
    queue: Queue,
}

/// How the tasks are listed.
#[derive(Debug)]
enum Tasks {
    /// In one list: its first and last task.
    List { head: i32, tail: i32 },
    /// In several: how many, behind their address, and the mask
    /// (`src/util/sharded_list.rs`).
    Sharded { lists: i32, mask: i32 },
}

/// The global queue (`src/runtime/scheduler/inject.rs`).
#[derive(Debug)]
struct Queue {
    len: i32,
    /// The first task.
    head: i32,
    /// The last.
    tail: i32,
    /// A `bool`.
    is_closed: i32,
}

const fn queue(len: i32, [head, tail, is_closed]: [i32; 3]) -> Queue {
    Queue {
        len,
        head,
        tail,
        is_closed,
    }
}

/// One whose tasks are in lists as their number, at `lists`, and a mask say.
const fn sharded(
    minors: RangeInclusive<u32>,
    lists: i32,
    workers: Option<[i32; 3]>,
    queue: Queue,
) -> Layout {
    Layout {
        minors,
        count: -16,
        closed: 8,
        tasks: Tasks::Sharded { lists, mask: -8 },
        workers,
        queue,
    }
}

/// By version: the multi-thread scheduler's, then the current-thread one's. Where there
/// are two of a kind, one is that with `tokio_unstable`. Of the current-thread scheduler
/// before 1.35 too little would have to be so for it to be recognized, and of that of
/// 1.54 with `tokio_unstable`.
static LAYOUTS: [Layout; 11] = [
    Layout {
        minors: 30..=34,
        count: 32,
        closed: 40,
        tasks: Tasks::List { head: 16, tail: 24 },
        workers: Some([-8, 56, 80]),
        queue: queue(64, [120, 128, 136]),
    },
    sharded(35..=38, -24, Some([-40, 24, 48]), queue(32, [88, 96, 104])),
    sharded(39..=53, -32, Some([-48, 24, 48]), queue(32, [88, 96, 104])),
    sharded(
        49..=53,
        -32,
        Some([-48, 24, 48]),
        queue(32, [112, 120, 128]),
    ),
    sharded(
        54..=54,
        -32,
        Some([-80, -64, -272]),
        queue(-376, [-400, -392, -384]),
    ),
    sharded(
        54..=54,
        -32,
        Some([-80, -64, -496]),
        queue(-600, [-624, -616, -608]),
    ),
    sharded(35..=38, -24, None, queue(48, [24, 32, 40])),
    sharded(35..=38, -24, None, queue(64, [40, 48, 56])),
    sharded(39..=53, -32, None, queue(48, [24, 32, 40])),
    sharded(39..=39, -32, None, queue(-48, [-72, -64, -56])),
    sharded(54..=54, -32, None, queue(-48, [-72, -64, -56])),
];

/// The layouts of a version such as `1.54.1`, or why there are none.
pub(super) fn of_version(version: Option<&str>) -> Result<Vec<&'static Layout>, String> {
    let version = version.ok_or("Tokio's version is not in the binary")?;
    let minor = version.strip_prefix("1.").and_then(|rest| {
        let (minor, _) = rest.split_once('.')?;
        minor.parse().ok()
    });
    let of_minor = |minor: u32| {
        let layouts = LAYOUTS.iter();
        layouts
            .filter(|layout| layout.minors.contains(&minor))
            .collect()
    };
    let layouts: Vec<_> = minor.map(of_minor).unwrap_or_default();
    if layouts.is_empty() {
        return Err(format!(
            "the layout of Tokio {version}'s runtimes is not known"
        ));
    }
    Ok(layouts)
}

/// Where in a scheduler's `ArcInner` the number is, and how the rest lies around it.
/// `None` where nothing fits, or more than one thing.
pub(super) fn find<'a>(
    bytes: &[u8],
    number: u64,
    layouts: &[&'a Layout],
) -> Option<(usize, &'a Layout)> {
    let arc = Words::new(bytes, 0);
    let is_count = |word: Option<u64>| word.is_some_and(|word| (1..MOST).contains(&word));
    if !is_count(arc.at(0)) || !is_count(arc.at(8)) {
        return None;
    }
    let places = (16..bytes.len()).step_by(8);
    let mut fits = places.flat_map(|at| {
        let words = Words::new(bytes, at);
        let is_number = words.at(0) == Some(number);
        let layouts = layouts
            .iter()
            .filter(move |layout| is_number && layout.fits(words));
        layouts.map(move |layout| (at, *layout))
    });
    let found = fits.next()?;
    fits.next().is_none().then_some(found)
}

/// The words around one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    bytes: &'a [u8],
    origin: usize,
}

impl<'a> Words<'a> {
    /// The words of `bytes`, by their distance from `origin`.
    pub(super) fn new(bytes: &'a [u8], origin: usize) -> Self {
        Self { bytes, origin }
    }

    /// The word there; `None` outside.
    pub(super) fn at(&self, offset: i32) -> Option<u64> {
        let at = self.origin.checked_add_signed(offset as isize)?;
        let word = self.bytes.get(at..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*word))
    }

    fn byte(&self, offset: i32) -> Option<u8> {
        self.at(offset).map(|word| word.to_ne_bytes()[0])
    }
}

impl Layout {
    /// What [`Layout::counters`] and the rest need, bytes from the number.
    pub(super) fn window(&self) -> Range<i32> {
        let offsets = self.offsets();
        let (least, most) = offsets.fold((0, 0), |(least, most), offset| {
            (i32::min(least, offset), i32::max(most, offset))
        });
        least..most + 8
    }

    /// What is the same for as long as the runtime is.
    pub(super) fn constants<'a>(
        &'a self,
        words: Words<'a>,
    ) -> Option<impl Iterator<Item = u64> + 'a> {
        let shards = match self.tasks {
            Tasks::List { .. } => None,
            Tasks::Sharded { lists, mask } => Some([lists - 8, lists, mask]),
        };
        let offsets = move || {
            let shards = shards.into_iter().flatten();
            shards.chain(self.workers.into_iter().flatten())
        };
        let is_whole = offsets().all(|offset| words.at(offset).is_some());
        is_whole.then(move || offsets().filter_map(move |offset| words.at(offset)))
    }

    /// Whether the runtime shuts down or has.
    pub(super) fn is_closed(&self, words: Words<'_>) -> bool {
        words.byte(self.closed) != Some(0)
    }

    /// Tasks in the global queue and tasks alive; `None` where the words contradict
    /// each other, as they do when they change in between.
    pub(super) fn counters(&self, words: Words<'_>) -> Option<(u32, u32)> {
        let Queue {
            len, head, tail, ..
        } = self.queue;
        let (len, alive) = (words.at(len)?, words.at(self.count)?);
        let mut agree = are_ends(len, [words.at(head)?, words.at(tail)?]);
        if let Tasks::List { head, tail } = self.tasks {
            agree &= are_ends(alive, [words.at(head)?, words.at(tail)?]);
        }
        if !agree {
            return None;
        }
        Some((len.try_into().ok()?, alive.try_into().ok()?))
    }

    /// Where the multi-thread scheduler's remotes are, and how many.
    pub(super) fn remotes(&self, words: Words<'_>) -> Option<(u64, u64)> {
        let [remotes, ..] = self.workers?;
        Some((words.at(remotes - 8)?, words.at(remotes)?))
    }

    fn fits(&self, words: Words<'_>) -> bool {
        let is_bool = |offset| words.byte(offset).is_some_and(|byte| byte <= 1);
        is_bool(self.closed)
            && is_bool(self.queue.is_closed)
            && self.shards_fit(words)
            && self.workers_fit(words)
            && self.counters(words).is_some()
    }

    fn shards_fit(&self, words: Words<'_>) -> bool {
        let Tasks::Sharded { lists, mask } = self.tasks else {
            return true;
        };
        let (Some(address), Some(count), Some(mask)) =
            (words.at(lists - 8), words.at(lists), words.at(mask))
        else {
            return false;
        };
        is_address(address) && count.is_power_of_two() && count < MOST && mask == count - 1
    }

    fn workers_fit(&self, words: Words<'_>) -> bool {
        let Some([remotes, metrics, idle]) = self.workers else {
            return true;
        };
        let (Some(workers), Some(first)) = (words.at(remotes), words.at(remotes - 8)) else {
            return false;
        };
        (1..MOST).contains(&workers)
            && is_address(first)
            && [metrics, idle].map(|offset| words.at(offset)) == [Some(workers); 2]
    }

    fn offsets(&self) -> impl Iterator<Item = i32> + use<> {
        let tasks = match self.tasks {
            Tasks::List { head, tail } => [head, tail, 0],
            Tasks::Sharded { lists, mask } => [lists - 8, lists, mask],
        };
        let Queue {
            len,
            head,
            tail,
            is_closed,
        } = self.queue;
        let own = [self.count, self.closed, len, head, tail, is_closed];
        let workers = self.workers.into_iter().flatten();
        own.into_iter().chain(tasks).chain(workers)
    }
}

/// Whether these are the first and the last of so many tasks. Tasks are aligned to 128
/// bytes on x86-64 (`src/runtime/task/core.rs`).
fn are_ends(count: u64, ends: [u64; 2]) -> bool {
    if count == 0 {
        return ends == [0; 2];
    }
    ends.iter()
        .all(|&end| is_address(end) && end.is_multiple_of(128))
        && (count == 1) == (ends[0] == ends[1])
}

/// Whether a word can be the address of a struct with words in it.
const fn is_address(word: u64) -> bool {
    word >= LOWEST_ADDRESS && word >> 47 == 0 && word.is_multiple_of(8)
}

#[cfg(test)]
mod tests;
