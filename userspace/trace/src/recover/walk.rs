//! The whole batches at the begin of a file.
//!
//! In: the bytes of a segment, perhaps torn. Out: how many of them are whole
//! batches, and what these say of the segment. Never: more memory than a few
//! batches; a byte decoded more than twice.
//!
//! Frames have no length, so that a batch is found by decoding it. It is whole
//! when it decodes up to the frame that ends every batch, or up to the next
//! batch's header.

use std::io::{self, Read};

use dial9_trace_format::codec::{StackPoolEntryRef, WireTypeId};
use dial9_trace_format::decoder::{DecodedFrameRef, Decoder};
use dial9_trace_format::types::FieldValueRef;

use crate::clock::Anchor;
use crate::encode::MAX_BATCH_BYTES;

/// What a header begins with; its version follows.
const MAGIC: &[u8] = b"TRC\0";
const HEADER_BYTES: usize = 5;
/// First byte of a frame that sets the time, and its length.
const RESET_TAG: u8 = 5;
const RESET_BYTES: usize = 9;
/// Bytes in memory at once.
const WINDOW_BYTES: usize = 2 * MAX_BATCH_BYTES;

/// Events that have the time of the record that they are made of.
const OF_RECORDS: [&str; 6] = [
    "PollStartEvent",
    "PollEndEvent",
    "WakeEventEvent",
    "TaskTerminateEvent",
    "WorkerParkEvent",
    "WorkerUnparkEvent",
];

/// What the whole batches of a file say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Their length.
    pub(crate) bytes: u64,
    /// How many there are.
    pub(crate) batches: u64,
    /// Events in them.
    pub(crate) events: u64,
    pub(crate) first_sync: Option<Anchor>,
    pub(crate) last_sync: Option<Anchor>,
    /// Newest event, `CLOCK_MONOTONIC` ns.
    pub(crate) newest_ns: u64,
    /// Newest event that is a record's, `CLOCK_MONOTONIC` ns.
    pub(crate) newest_record_ns: u64,
    /// The last metadata.
    pub(crate) metadata: Vec<(String, String)>,
    /// Indexes of the evictions told.
    pub(crate) told: Vec<u64>,
}

/// What a piece of a file begins with.
enum Piece {
    /// A batch of so many bytes.
    Whole(usize),
    /// A batch that does not end here.
    Open,
}

/// Walks a file.
///
/// # Errors
///
/// Those of the reader.
pub(crate) fn walk(file: impl Read) -> io::Result<Walk> {
    walk_stacks(file, &mut |_| ())
}

/// Takes each of a file's callchains.
pub(crate) type Stacks<'a> = dyn FnMut(&mut dyn Iterator<Item = u64>) + 'a;

/// Walks a file, and gives each of its callchains: those of a torn batch, too, and some
/// twice.
///
/// # Errors
///
/// Those of the reader.
pub(crate) fn walk_stacks(mut file: impl Read, stacks: &mut Stacks<'_>) -> io::Result<Walk> {
    let mut walk = Walk::default();
    let mut window = Vec::with_capacity(WINDOW_BYTES);
    loop {
        let room = (WINDOW_BYTES - window.len()) as u64;
        let read = file.by_ref().take(room).read_to_end(&mut window)?;
        let mut start = 0;
        loop {
            let mut next = walk.clone_head();
            let Piece::Whole(bytes) = next.piece(&window[start..], stacks) else {
                break;
            };
            start += bytes;
            walk.add(next, bytes);
        }
        // Nothing more to read, or a batch larger than any.
        if read == 0 || start == 0 && window.len() == WINDOW_BYTES {
            return Ok(walk);
        }
        window.drain(..start);
    }
}

/// Whether the bytes, of which a frame has just ended before, begin a batch.
pub(crate) fn begins_batch(rest: &[u8]) -> bool {
    rest.len() >= HEADER_BYTES && rest.starts_with(MAGIC)
}

/// Whether the frame's decoder would recurse as often as a file says: into a
/// time after a time, or into a header after one. No encoder writes that.
pub(crate) fn recurses(rest: &[u8]) -> bool {
    let is_reset = |rest: &[u8]| rest.first() == Some(&RESET_TAG);
    let after = rest.get(RESET_BYTES..).unwrap_or_default();
    is_reset(rest) && (is_reset(after) || begins_batch(after))
}

impl Walk {
    /// Whether there is enough for a reader: clock and metadata.
    pub(crate) fn is_readable(&self) -> bool {
        self.first_sync.is_some() && !self.metadata.is_empty()
    }

    /// Whether the last batch is one that closes a segment.
    pub(crate) fn is_closed(&self) -> bool {
        let key = |(key, _): &(String, String)| key == "segment.complete";
        self.metadata.iter().any(key)
    }

    /// The time before which no record is missing.
    pub(crate) fn recorded_until_ns(&self) -> u64 {
        let ns = |sync: Option<Anchor>| sync.map_or(0, |sync| sync.mono_ns);
        if self.is_closed() {
            return ns(self.last_sync);
        }
        ns(self.first_sync).max(self.newest_record_ns + 1)
    }

    /// The end as the events tell it: the newest, by the last wall clock.
    pub(crate) fn ended(&self) -> Option<Anchor> {
        let last = self.last_sync?;
        Some(last.at(self.newest_ns.max(last.mono_ns)))
    }

    /// For what the next batch says.
    fn clone_head(&self) -> Self {
        Self {
            newest_ns: self.newest_ns,
            ..Self::default()
        }
    }

    fn add(&mut self, batch: Self, bytes: usize) {
        let Self {
            bytes: _,
            batches: _,
            events,
            first_sync,
            last_sync,
            newest_ns,
            newest_record_ns,
            metadata,
            told,
        } = batch;
        self.bytes += bytes as u64;
        self.batches += 1;
        self.events += events;
        self.first_sync = self.first_sync.or(first_sync);
        self.last_sync = last_sync.or(self.last_sync);
        self.newest_ns = self.newest_ns.max(newest_ns);
        self.newest_record_ns = self.newest_record_ns.max(newest_record_ns);
        if !metadata.is_empty() {
            self.metadata = metadata;
        }
        self.told.extend(told);
    }

    fn piece(&mut self, bytes: &[u8], stacks: &mut Stacks<'_>) -> Piece {
        let Some(mut decoder) = Decoder::new(bytes) else {
            return Piece::Open;
        };
        loop {
            let rest = &bytes[decoder.position()..];
            if begins_batch(rest) {
                return Piece::Whole(decoder.position());
            }
            if recurses(rest) {
                return Piece::Open;
            }
            match decoder.next_frame_ref() {
                Ok(Some(DecodedFrameRef::StringPool(strings))) if strings.is_empty() => {
                    return Piece::Whole(decoder.position());
                }
                Ok(Some(DecodedFrameRef::Event {
                    type_id,
                    timestamp_ns,
                    values,
                })) => self.event(&decoder, type_id, timestamp_ns, &values),
                Ok(Some(DecodedFrameRef::StackPool(pool))) => {
                    for stack in &pool {
                        stacks(&mut addresses(stack));
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Piece::Open,
            }
        }
    }

    fn event(
        &mut self,
        decoder: &Decoder<'_>,
        type_id: WireTypeId,
        ts_ns: u64,
        values: &[FieldValueRef<'_>],
    ) {
        let Some(schema) = decoder.registry().get(type_id) else {
            return;
        };
        self.events += 1;
        match (schema.name(), values) {
            // An announcement has its task's time.
            ("TaskSpawnEvent", _) => return,
            ("ClockSyncEvent", [FieldValueRef::Varint(unix_ns), ..]) => {
                let sync = Anchor {
                    mono_ns: ts_ns,
                    unix_ns: *unix_ns,
                };
                self.first_sync = self.first_sync.or(Some(sync));
                self.last_sync = Some(sync);
            }
            ("SegmentMetadataEvent", [FieldValueRef::StringMap(map), ..]) => {
                let owned = map.iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
                self.metadata = owned.collect();
            }
            ("EvictionEvent", [FieldValueRef::Varint(index), ..]) => self.told.push(*index),
            (name, _) if OF_RECORDS.contains(&name) => {
                self.newest_record_ns = self.newest_record_ns.max(ts_ns);
            }
            _ => {}
        }
        self.newest_ns = self.newest_ns.max(ts_ns);
    }
}

fn addresses(stack: &StackPoolEntryRef<'_>) -> impl Iterator<Item = u64> {
    let (addresses, _) = stack.frames_le.as_chunks::<8>();
    addresses.iter().map(|bytes| u64::from_le_bytes(*bytes))
}
