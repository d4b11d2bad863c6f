//! How far a recorder came, where its successor finds it: words in a map that no
//! program uses.
//!
//! In: what is kept, and how far it was recorded. Out: the same, after a crash at
//! any instruction. Never: half of a change; there are two places, and one word
//! says which is valid.
//!
//! | word | |
//! |---|---|
//! | 0 | 1 while everything is there to be taken over |
//! | 1..4 | object, executable, plan |
//! | 4 | changes; the last bit says which place is valid |
//! | 5.. | two places: a time, positions by CPU, losses by CPU and counter |

use std::{os::fd::AsFd as _, sync::atomic::Ordering};

use aya::maps::{MapData, MapError};
use aya_obj::generated::{BPF_F_MMAPABLE, bpf_map_type::BPF_MAP_TYPE_ARRAY};
use dial9_bpf_abi::loss::{COUNTERS, counter_index};
use rustix::mm::ProtFlags;

use crate::{ring::Pages, tracer::Loss};

const COMPLETE: usize = 0;
const IDENTITY: usize = 1;
const CHANGES: usize = 4;
const PLACES: usize = 5;
const COUNTERS_EACH: usize = COUNTERS as usize;

/// What is kept: values that agree for the same object, executable and plan.
pub(crate) type Identity = [u64; 3];

/// The map, in memory.
pub(crate) struct Progress {
    map: MapData,
    words: Pages,
    cpus: usize,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

impl Progress {
    /// A new one, for so many CPUs.
    ///
    /// # Errors
    /// What the kernel answered.
    pub(crate) fn create(cpus: usize, identity: Identity) -> Result<Self, MapError> {
        let words = u32::try_from(words(cpus)).unwrap_or(u32::MAX);
        let map =
            aya_obj::Map::new_from_params(BPF_MAP_TYPE_ARRAY as u32, 4, 8, words, BPF_F_MMAPABLE);
        let progress = Self::open(MapData::create(map, "dial9_progress", None)?, cpus)?;
        for (index, value) in identity.into_iter().enumerate() {
            progress.set(IDENTITY + index, value);
        }
        Ok(progress)
    }

    /// A predecessor's.
    ///
    /// # Errors
    /// What the kernel answered, also where it is one for other CPUs.
    pub(crate) fn open(map: MapData, cpus: usize) -> Result<Self, MapError> {
        let bytes = words(cpus) * 8;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let words = Pages::map(map.fd().as_fd(), 0, bytes, access).map_err(MapError::IoError)?;
        Ok(Self { map, words, cpus })
    }

    /// The map.
    pub(crate) fn data(&self) -> &MapData {
        &self.map
    }

    /// What is kept.
    pub(crate) fn identity(&self) -> Identity {
        std::array::from_fn(|index| self.get(IDENTITY + index))
    }

    /// Whether everything is there to be taken over.
    pub(crate) fn is_complete(&self) -> bool {
        self.get(COMPLETE) == 1
    }

    /// Everything is there, or it will not be much longer.
    pub(crate) fn set_complete(&self, is_complete: bool) {
        self.set(COMPLETE, is_complete.into());
    }

    /// Everything of before this time is in files, as far as it was before these
    /// positions; so are these losses.
    pub(crate) fn advance(
        &self,
        until_ns: u64,
        positions: impl Iterator<Item = (u32, u64)>,
        losses: impl Iterator<Item = Loss>,
    ) {
        let changes = self.get(CHANGES) + 1;
        let place = self.place(changes);
        self.set(place, until_ns);
        for (cpu, position) in positions.filter(|(cpu, _)| self.has(*cpu)) {
            self.set(place + 1 + cpu as usize, position);
        }
        for loss in losses.filter(|loss| self.has(loss.cpu)) {
            self.set(place + self.counter(&loss), loss.lost);
        }
        self.set(CHANGES, changes);
    }

    /// The time before which everything is in files.
    pub(crate) fn until_ns(&self) -> u64 {
        self.get(self.valid())
    }

    /// The position of a CPU's ring to which that applies.
    pub(crate) fn position(&self, cpu: u32) -> u64 {
        if self.has(cpu) {
            self.get(self.valid() + 1 + cpu as usize)
        } else {
            0
        }
    }

    /// How much of a counter is in files.
    pub(crate) fn told(&self, loss: &Loss) -> u64 {
        if self.has(loss.cpu) {
            self.get(self.valid() + self.counter(loss))
        } else {
            0
        }
    }

    fn has(&self, cpu: u32) -> bool {
        (cpu as usize) < self.cpus
    }

    fn counter(&self, loss: &Loss) -> usize {
        let counter = counter_index(loss.kind, loss.cause) as usize;
        1 + self.cpus + loss.cpu as usize * COUNTERS_EACH + counter
    }

    fn valid(&self) -> usize {
        self.place(self.get(CHANGES))
    }

    fn place(&self, changes: u64) -> usize {
        PLACES + usize::from(changes % 2 == 1) * place_words(self.cpus)
    }

    fn get(&self, index: usize) -> u64 {
        self.words.word(index).load(Ordering::Acquire)
    }

    fn set(&self, index: usize, value: u64) {
        self.words.word(index).store(value, Ordering::Release);
    }
}

const fn place_words(cpus: usize) -> usize {
    1 + cpus + cpus * COUNTERS_EACH
}

const fn words(cpus: usize) -> usize {
    PLACES + 2 * place_words(cpus)
}
