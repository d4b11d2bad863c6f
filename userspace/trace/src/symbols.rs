//! Names for the addresses of a segment.
//!
//! In: a sealed segment's file; the names that were found. Out: the addresses of its
//! callchains and where the target had code; batches that go behind its last one. Never:
//! a change of the file; a name for an address that no callchain has.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Seek as _};
use std::path::Path;

use rustix::fs::OFlags;

use crate::clock::Anchor;
use crate::encode::Encoder;
use crate::mapping::Mapping;
use crate::recover::HEAD_BYTES;
use crate::recover::walk::{walk, walk_stacks};
use crate::segment::open_regular;

/// Addresses that are looked at, at most; about 40 bytes each.
const MAX_ADDRESSES: usize = 1 << 18;

/// What of a segment is to be named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Called {
    /// Every address in its callchains, each once, in order.
    pub addresses: BTreeSet<u64>,
    /// Whether there are more addresses than are looked at.
    pub is_cut: bool,
    /// Its last metadata.
    pub metadata: Vec<(String, String)>,
    /// Its begin and its end, `CLOCK_MONOTONIC` ns.
    pub range_ns: (u64, u64),
    end: Option<Anchor>,
}

/// One function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// The address, as the callchains have it.
    pub address: u64,
    /// 0 for the function whose code it is, then what was inlined into that, outermost
    /// first.
    pub depth: u64,
    /// The function's name.
    pub name: &'a str,
    /// Path of the source file; empty where it is not known.
    pub file: &'a str,
    /// Line, from 1; 0 where it is not known.
    pub line: u64,
}

impl Called {
    /// Reads a segment. One of which nobody noted where the target has code has nothing
    /// to be named, and only its begin is read.
    ///
    /// # Errors
    /// The system's.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut file = open_regular(path, OFlags::RDONLY)?;
        let mut called = Self::default();
        let head = walk(file.by_ref().take(HEAD_BYTES))?;
        if Mapping::told(&head.metadata).is_empty() {
            return Ok(called);
        }
        file.rewind()?;
        let mut is_cut = false;
        let addresses = &mut called.addresses;
        let walk = walk_stacks(&file, &mut |frames| {
            for address in frames {
                if addresses.len() < MAX_ADDRESSES {
                    addresses.insert(address);
                } else {
                    is_cut |= !addresses.contains(&address);
                }
            }
        })?;
        // Of a capture that failed.
        called.addresses.remove(&0);
        called.is_cut = is_cut;
        let ns = |sync: Option<Anchor>| sync.map_or(0, |sync| sync.mono_ns);
        called.range_ns = (ns(walk.first_sync), ns(walk.last_sync).max(walk.newest_ns));
        called.end = walk.last_sync;
        called.metadata = walk.metadata;
        Ok(called)
    }

    /// Where the target had code in the segment's time, as the segment tells it.
    pub fn mappings(&self) -> Vec<Mapping> {
        Mapping::told(&self.metadata)
    }

    /// What goes behind the last batch: the metadata with these entries more, and the
    /// symbols, which have no time.
    pub fn tail(
        &self,
        more: Vec<(String, String)>,
        symbols: &mut dyn Iterator<Item = Symbol<'_>>,
    ) -> Vec<u8> {
        let mut encoder = Encoder::new();
        let mut tail = Vec::new();
        if let Some(end) = self.end {
            let mut entries = self.metadata.clone();
            entries.extend(more);
            encoder.metadata(end.mono_ns, entries);
            encoder.clock_sync(end);
            tail.extend_from_slice(encoder.cut());
        }
        for symbol in symbols {
            if encoder.is_full() {
                tail.extend_from_slice(encoder.cut());
            }
            encoder.symbol(&symbol);
        }
        if !encoder.is_empty() {
            tail.extend_from_slice(encoder.cut());
        }
        tail
    }
}
