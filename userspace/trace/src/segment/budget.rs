//! Segments of bounded size: what is kept, and what goes.
//!
//! In: the sizes of batches in the order of time, and the memory that they are in. Out:
//! which of them go, how many events that were, and from when to when nothing is missing.
//! Never: a size beyond the budget; a part of a batch.

use std::collections::VecDeque;
use std::fs::File;
use std::io;

use rustix::fs::{FallocateFlags, fallocate};

use crate::clock::Anchor;

/// Batches that a full budget has at least.
const PARTS: u64 = 64;
/// Smallest batch, unless events are rare: schemas are in each.
const LEAST_BATCH_BYTES: u64 = 8 << 10;
/// Room that is left for the last batch, so that little has to go for it.
const RESERVE_BYTES: u64 = 8 << 10;
/// What the last batch may have beyond what was foreseen: digits, and what is told here.
const SLACK_BYTES: u64 = 1 << 10;

/// What goes when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The oldest batches go.
    Newest,
    /// What comes then, all of it.
    Oldest,
}

impl Keep {
    /// Its name on the command line and in the metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
        }
    }
}

/// The size of a segment, and what is kept of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of the whole segment, uncompressed, at most.
    pub bytes: u64,
    /// What is kept.
    pub keep: Keep,
}

impl Budget {
    pub(crate) fn batch_bytes(&self) -> usize {
        let bytes = (self.bytes / PARTS).max(LEAST_BATCH_BYTES);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// What a segment of bounded size lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Events.
    pub events: u64,
    /// Nothing that is older is whole, `CLOCK_MONOTONIC` ns.
    pub from_ns: Option<u64>,
    /// Nothing from here on is in it, ns.
    pub until_ns: Option<u64>,
}

/// A batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) bytes: u64,
    pub(super) events: u64,
    /// Time of its first event, ns.
    pub(super) since_ns: u64,
}

/// The batches of a segment between its first ones and its last.
#[derive(Debug)]
pub(super) struct Bounded {
    budget: Budget,
    /// Bytes before them, which stay.
    opening: u64,
    parts: VecDeque<Part>,
    /// Bytes of all in `parts`.
    bytes: u64,
    /// Bytes of those that went, between the opening and the rest.
    gone: u64,
    cut: Cut,
}

impl Bounded {
    pub(super) fn new(budget: Budget, opening: u64) -> Self {
        Self {
            budget,
            opening,
            parts: VecDeque::new(),
            bytes: 0,
            gone: 0,
            cut: Cut::default(),
        }
    }

    /// Makes room for a batch; false where it is the one to go.
    pub(super) fn take(&mut self, part: Part, file: &File) -> io::Result<bool> {
        let needed = part.bytes + RESERVE_BYTES;
        if self.budget.keep == Keep::Newest {
            self.drop_oldest(needed, file)?;
        }
        if self.cut.until_ns.is_some() || !self.has_room(needed) {
            self.cut.events += part.events;
            self.cut.until_ns.get_or_insert(part.since_ns);
            return Ok(false);
        }
        if self.gone > 0 && self.parts.is_empty() {
            self.cut.from_ns = Some(part.since_ns);
        }
        self.bytes += part.bytes;
        self.parts.push_back(part);
        Ok(true)
    }

    /// Makes room for the last batch; where in the file it begins.
    pub(super) fn make_room_for(&mut self, bytes: u64, file: &File) -> io::Result<u64> {
        let needed = bytes + SLACK_BYTES;
        if self.budget.keep == Keep::Newest {
            self.drop_oldest(needed, file)?;
        }
        while !self.has_room(needed)
            && let Some(part) = self.parts.pop_back()
        {
            self.bytes -= part.bytes;
            self.cut.events += part.events;
            self.cut.until_ns = Some(part.since_ns);
        }
        if self.has_room(needed) {
            return Ok(self.opening + self.gone + self.bytes);
        }
        Err(io::Error::other("its size has no room for its end"))
    }

    /// What the segment's end says of it.
    pub(super) fn entries(&self, end: Anchor) -> Vec<(String, String)> {
        let Cut {
            events,
            from_ns,
            until_ns,
        } = self.cut;
        let key = |name: &str| format!("dial9-bpf.capture.{name}");
        let mut entries = vec![
            (key("keep"), self.budget.keep.name().to_owned()),
            (key("max_bytes"), self.budget.bytes.to_string()),
            (key("dropped_events"), events.to_string()),
            (key("end_ns"), until_ns.unwrap_or(end.mono_ns).to_string()),
        ];
        entries.extend(from_ns.map(|from_ns| (key("begin_ns"), from_ns.to_string())));
        entries
    }

    pub(super) fn cut(&self) -> Cut {
        self.cut
    }

    /// Bytes of the file that are not of the segment.
    pub(super) fn gone(&self) -> u64 {
        self.gone
    }

    /// Where these are.
    pub(super) fn hole(&self) -> (u64, u64) {
        (self.opening, self.opening + self.gone)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.opening + self.bytes + bytes <= self.budget.bytes
    }

    fn drop_oldest(&mut self, needed: u64, file: &File) -> io::Result<()> {
        let before = self.gone;
        while !self.has_room(needed)
            && let Some(part) = self.parts.pop_front()
        {
            self.bytes -= part.bytes;
            self.gone += part.bytes;
            self.cut.events += part.events;
            self.cut.from_ns = self.parts.front().map(|part| part.since_ns);
        }
        if self.gone > before {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, self.opening, self.gone)?;
        }
        Ok(())
    }
}
