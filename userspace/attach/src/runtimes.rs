//! How many tasks a runtime has, and how many of them wait in its global queue.
//!
//! In: numbers and schedulers of runtimes, as ends of tasks tell them, and cores of
//! workers, as parks tell them. Out: the counters that Tokio keeps there, read from the
//! target's memory, and where the workers' queues are. Never: a write, a
//! stop of the target, a value from memory that is not laid out as the table says.
//!
//! `layout` has the table, and what must hold of a runtime's memory before anything
//! is taken from it, and again at each sample. A runtime that shuts down closes its
//! list of tasks first, so that memory which it has freed is taken for closed, or for
//! nobody's.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use crate::Target;
use layout::{Layout, Words};

mod layout;
mod queues;

/// How much of a scheduler is searched for its list of tasks, bytes: it has 0.4 to 1.2
/// KiB (Tokio 1.29 to 1.54).
const SCHEDULER_BYTES: usize = 2048;
/// Reads of one value: a queue changes under them.
const TRIES: usize = 3;
/// Runtimes that are sampled at a time, and cores that are remembered.
const MOST: usize = 64;
/// Cores that are looked at, before it is given up to find where the queue is.
const MOST_LOOKS: usize = 4096;
const NO_QUEUE: &str = "no worker has parked whose queue is known";

/// The runtimes of a target.
#[derive(Debug)]
pub struct Runtimes {
    /// The target's memory, which stays that of this program also when the process
    /// executes another.
    memory: Option<File>,
    layouts: Vec<&'static Layout>,
    live: Vec<Live>,
    /// Why there is nothing to sample.
    absent: Option<String>,
    has_found: bool,
    /// Whether the queues are others than when they were last asked for.
    has_new_queues: bool,
    /// Cores that nobody has looked at.
    cores: Vec<u64>,
    /// How many were looked at.
    looks: usize,
}

/// A runtime whose memory is laid out as known.
#[derive(Debug)]
struct Live {
    number: u64,
    /// Address of the number in the scheduler.
    at: u64,
    layout: &'static Layout,
    /// What never changes, as it was when it was found.
    constants: Vec<u64>,
    /// The queues of its workers; none of a current-thread one.
    queues: Vec<u64>,
}

/// A runtime's counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Tokio's number of the runtime.
    pub number: u64,
    /// Tasks in its global queue.
    pub global_queue: u32,
    /// Tasks that have not ended.
    pub alive_tasks: u32,
}

impl Runtimes {
    /// The runtimes of a target with this version of Tokio; none has been met.
    pub fn of(target: &Target, tokio_version: Option<&str>) -> Self {
        let layouts = layout::of_version(tokio_version);
        let memory = File::open(format!("/proc/{}/mem", target.pid()));
        let absent = match (&layouts, &memory) {
            (Err(reason), _) => Some(reason.clone()),
            (Ok(_), Err(error)) => Some(format!("the target's memory cannot be read: {error}")),
            (Ok(_), Ok(_)) => None,
        };
        Self {
            memory: memory.ok(),
            layouts: layouts.unwrap_or_default(),
            live: Vec::new(),
            absent,
            has_found: false,
            has_new_queues: false,
            cores: Vec::new(),
            looks: 0,
        }
    }

    /// Why nothing is sampled, where that is so.
    pub fn absent(&self) -> Option<&str> {
        self.absent.as_deref().filter(|_| !self.has_found)
    }

    /// Why no worker's queue is measured, if none is.
    pub fn no_queues(&self) -> &str {
        self.absent().unwrap_or(NO_QUEUE)
    }

    /// Where a worker's core most likely has the address of its queue, bytes; `None` where
    /// queues could not be told.
    pub fn likely_queue(&self) -> Option<u64> {
        (self.memory.is_some() && !self.layouts.is_empty()).then_some(queues::OFFSETS[0])
    }

    /// A worker has its core there, and no queue where it was looked for.
    pub fn see_core(&mut self, core: u64) {
        if self.cores.len() < MOST && !self.cores.contains(&core) {
            self.cores.push(core);
        }
    }

    /// Where a worker's core has the address of its queue, bytes, if that was found since
    /// this was last asked.
    pub fn find_queue(&mut self) -> Option<u64> {
        let memory = self.memory.as_ref()?;
        let queues = self.live.iter().flat_map(|live| &live.queues).copied();
        let queues: Vec<u64> = queues.collect();
        if queues.is_empty() || self.cores.is_empty() || self.looks > MOST_LOOKS {
            return None;
        }
        self.looks += self.cores.len();
        let mut cores = self.cores.drain(..);
        cores.find_map(|core| queues::offset_in(memory, core, &queues))
    }

    /// The queues of all workers, where they are others than when they were last asked for.
    pub fn new_queues(&mut self) -> Option<impl Iterator<Item = u64>> {
        let is_new = std::mem::take(&mut self.has_new_queues);
        let queues = self.live.iter().flat_map(|live| &live.queues).copied();
        is_new.then_some(queues)
    }

    /// A task of the runtime with this number has ended, whose scheduler's `ArcInner`
    /// was at this address: samples it from now on, if its memory is laid out as known.
    pub fn meet(&mut self, number: u64, scheduler: u64) {
        let is_known = self.live.iter().any(|live| live.number == number);
        if is_known || self.layouts.is_empty() || self.live.len() == MOST {
            return;
        }
        let found = (0..TRIES).find_map(|_| self.find(number, scheduler));
        match found {
            Some(live) => {
                self.has_new_queues |= !live.queues.is_empty();
                self.live.push(live);
                self.has_found = true;
            }
            None if self.absent.is_none() => {
                self.absent = Some(
                    "no runtime of which a task has ended is laid out as this version's are"
                        .to_owned(),
                );
            }
            None => {}
        }
    }

    /// Hands over the counters of every runtime that has not shut down.
    pub fn sample(&mut self, mut each: impl FnMut(Sample)) {
        let Some(memory) = &self.memory else { return };
        self.live.retain(|live| {
            for _ in 0..TRIES {
                match live.read(memory) {
                    Read::Gone => {
                        self.has_new_queues |= !live.queues.is_empty();
                        return false;
                    }
                    Read::Changing => {}
                    Read::Sample(sample) => {
                        each(sample);
                        break;
                    }
                }
            }
            true
        });
    }

    fn find(&self, number: u64, scheduler: u64) -> Option<Live> {
        let memory = self.memory.as_ref()?;
        let mut bytes = [0; SCHEDULER_BYTES];
        let length = read(memory, scheduler, &mut bytes).ok()?;
        let (at, layout) = layout::find(&bytes[..length], number, &self.layouts)?;
        let words = Words::new(&bytes[..length], at);
        let queues = layout
            .remotes(words)
            .and_then(|(address, workers)| queues::of_remotes(memory, address, workers));
        Some(Live {
            number,
            at: scheduler + at as u64,
            layout,
            constants: layout.constants(words)?.collect(),
            queues: queues.unwrap_or_default(),
        })
    }
}

/// What became of a read.
enum Read {
    Sample(Sample),
    /// It was read while it changed.
    Changing,
    /// The runtime is no more.
    Gone,
}

impl Live {
    fn read(&self, memory: &File) -> Read {
        let window = self.layout.window();
        let mut bytes = [0; layout::WINDOW_BYTES];
        let bytes = &mut bytes[..window.len()];
        let from = self.at.wrapping_add_signed(window.start.into());
        if read(memory, from, bytes).ok() != Some(bytes.len()) {
            return Read::Gone;
        }
        let words = Words::new(bytes, window.start.unsigned_abs() as usize);
        let same = (self.layout.constants(words))
            .is_some_and(|constants| constants.eq(self.constants.iter().copied()));
        if !same || words.at(0) != Some(self.number) || self.layout.is_closed(words) {
            return Read::Gone;
        }
        let counted = self.layout.counters(words);
        counted.map_or(Read::Changing, |(global_queue, alive_tasks)| {
            Read::Sample(Sample {
                number: self.number,
                global_queue,
                alive_tasks,
            })
        })
    }
}

/// Reads as much as there is; the length.
fn read(memory: &File, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    memory.read_at(bytes, address)
}
