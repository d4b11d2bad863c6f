//! How many tasks a runtime has, and how many of them wait in its global queue.
//!
//! In: numbers and schedulers of runtimes, as ends of tasks tell them. Out: the
//! counters that Tokio keeps there, read from the target's memory. Never: a write, a
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

/// How much of a scheduler is searched for its list of tasks, bytes: it has 0.4 to 1.2
/// KiB (Tokio 1.29 to 1.54).
const SCHEDULER_BYTES: usize = 2048;
/// Reads of one value: a queue changes under them.
const TRIES: usize = 3;
/// Runtimes that are sampled at a time.
const MOST: usize = 64;

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
        }
    }

    /// Why nothing is sampled, where that is so.
    pub fn absent(&self) -> Option<&str> {
        self.absent.as_deref().filter(|_| !self.has_found)
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
                    Read::Gone => return false,
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
        let mut bytes = [0; SCHEDULER_BYTES];
        let length = read(self.memory.as_ref()?, scheduler, &mut bytes).ok()?;
        let (at, layout) = layout::find(&bytes[..length], number, &self.layouts)?;
        let words = Words::new(&bytes[..length], at);
        Some(Live {
            number,
            at: scheduler + at as u64,
            layout,
            constants: layout.constants(words)?.collect(),
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
