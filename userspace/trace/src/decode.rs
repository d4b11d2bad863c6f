//! Ring bytes to records.
//!
//! In: the bytes of one ring entry. Out: a [`Record`], or what is wrong with
//! the bytes. Never: a panic, an allocation, a look at the values inside.

use dial9_bpf_abi::declared::Declared;
use dial9_bpf_abi::record::{
    AcceptQueue, BlockOn, Exit, Gap, IoBegin, IoEnd, OffCpu, Panic, Park, PollEnd, PollStart,
    RecordHeader, RecordKind, Signal, Spawn, Sync, TaskRecord, Terminate, Text,
};

use crate::payloads::Payload;

pub use stack::{CopiedStack, UserStack};

mod block_io;
pub(crate) mod declared;
mod stack;

/// One record, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A thread entered a poll function.
    PollStart(PollStart),
    /// A poll call returned.
    PollEnd(PollEnd),
    /// A task was woken.
    Wake(TaskRecord),
    /// A task was bound to a runtime.
    Spawn(Spawn),
    /// A task ended.
    Terminate(Terminate),
    /// A worker is about to park.
    Park(Park),
    /// A worker came back from a park.
    Unpark(Park),
    /// Hits of a thread were lost.
    Gap(Gap),
    /// The target's last thread exits.
    Exit(Exit),
    /// A thread gets a signal that ends the target.
    Signal(Signal),
    /// A thread panics.
    Panic(Panic),
    /// A piece of a text.
    Text(Text),
    /// A thread is on a CPU again.
    OffCpu(OffCpu),
    /// A thread has entered a runtime to block on a future.
    BlockOn(BlockOn),
    /// A thread leaves it.
    BlockOnEnd(BlockOn),
    /// A listener's queue.
    AcceptQueue(AcceptQueue),
    /// A thread submits an I/O.
    IoBegin(IoBegin),
    /// An I/O is done.
    IoEnd(IoEnd),
    /// A file was synced.
    Sync(Sync),
    /// A declared probe was hit. What is behind the record is kept elsewhere.
    Declared(Declared, Payload),
}

/// Bytes that are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Not even a header.
    #[error("record of {bytes} bytes has no header")]
    NoHeader {
        /// Length of the entry.
        bytes: usize,
    },
    /// A kind that no program writes.
    #[error("unknown record kind {kind}")]
    UnknownKind {
        /// The number found.
        kind: u16,
    },
    /// A known kind of another size.
    #[error("record kind {kind} has {bytes} bytes")]
    Length {
        /// The kind's number.
        kind: u16,
        /// Length of the entry.
        bytes: usize,
    },
}

impl Record {
    /// Reads one ring entry.
    ///
    /// # Errors
    ///
    /// Every [`DecodeError`]; the bytes are untrusted.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let length = bytes.len();
        let Some(first) = bytes.first_chunk::<8>() else {
            return Err(DecodeError::NoHeader { bytes: length });
        };
        let kind = u16::from_ne_bytes([first[0], first[1]]);
        let record = match RecordKind(kind) {
            RecordKind::POLL_START => words(bytes).map(|[w, ts, task_id, sp, vtable]| {
                Self::PollStart(PollStart {
                    header: header(w, ts),
                    task_id,
                    sp,
                    vtable,
                })
            }),
            RecordKind::POLL_END => words(bytes).map(|[w, ts, sp]| {
                Self::PollEnd(PollEnd {
                    header: header(w, ts),
                    sp,
                })
            }),
            RecordKind::WAKE => task(bytes).map(Self::Wake),
            RecordKind::SPAWN => words(bytes).map(|[w, ts, task_id, vtable]| {
                Self::Spawn(Spawn {
                    header: header(w, ts),
                    task_id,
                    vtable,
                })
            }),
            RecordKind::TERMINATE => words(bytes).map(|[w, ts, task_id, owner, scheduler]| {
                Self::Terminate(Terminate {
                    header: header(w, ts),
                    task_id,
                    owner,
                    scheduler,
                })
            }),
            RecordKind::PARK => park(bytes).map(Self::Park),
            RecordKind::UNPARK => park(bytes).map(Self::Unpark),
            RecordKind::GAP => words(bytes).map(|[w, ts, lost]| {
                Self::Gap(Gap {
                    header: header(w, ts),
                    lost,
                })
            }),
            RecordKind::EXIT => exit(bytes).map(Self::Exit),
            RecordKind::SIGNAL => words(bytes).map(|[w, ts, facts, address]| {
                let [number, code] = halves(facts);
                Self::Signal(Signal {
                    header: header(w, ts),
                    number,
                    code: code.cast_signed(),
                    address,
                })
            }),
            RecordKind::PANIC => words(bytes).map(|[w, ts, place]| {
                let [line, column] = halves(place);
                Self::Panic(Panic {
                    header: header(w, ts),
                    line,
                    column,
                })
            }),
            RecordKind::TEXT => text(bytes).map(Self::Text),
            RecordKind::OFF_CPU => off_cpu(bytes).map(Self::OffCpu),
            RecordKind::BLOCK_ON => block_on(bytes).map(Self::BlockOn),
            RecordKind::BLOCK_ON_END => block_on(bytes).map(Self::BlockOnEnd),
            RecordKind::ACCEPT_QUEUE => accept_queue(bytes).map(Self::AcceptQueue),
            RecordKind::IO_BEGIN => block_io::io_begin(bytes).map(Self::IoBegin),
            RecordKind::IO_END => block_io::io_end(bytes).map(Self::IoEnd),
            RecordKind::SYNC => block_io::sync(bytes).map(Self::Sync),
            RecordKind::DECLARED => {
                declared::declared(bytes).map(|record| Self::Declared(record, Payload::default()))
            }
            _ => return Err(DecodeError::UnknownKind { kind }),
        };
        record.ok_or(DecodeError::Length {
            kind,
            bytes: length,
        })
    }

    /// The record's header.
    #[inline]
    pub fn header(&self) -> &RecordHeader {
        match self {
            Self::PollStart(record) => &record.header,
            Self::PollEnd(record) => &record.header,
            Self::Wake(record) => &record.header,
            Self::Terminate(record) => &record.header,
            Self::Spawn(record) => &record.header,
            Self::Park(record) | Self::Unpark(record) => &record.header,
            Self::Gap(record) => &record.header,
            Self::Exit(record) => &record.header,
            Self::Signal(record) => &record.header,
            Self::Panic(record) => &record.header,
            Self::Text(record) => &record.header,
            Self::OffCpu(record) => &record.header,
            Self::BlockOn(record) | Self::BlockOnEnd(record) => &record.header,
            Self::AcceptQueue(record) => &record.header,
            Self::IoBegin(record) => &record.header,
            Self::IoEnd(record) => &record.header,
            Self::Sync(record) => &record.header,
            Self::Declared(record, _) => &record.header,
        }
    }

    /// Appends the record as the kernel would have written it, without what is behind it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let header = self.header();
        out.extend_from_slice(&header.kind.0.to_ne_bytes());
        out.extend_from_slice(&header.flags.to_ne_bytes());
        out.extend_from_slice(&header.tid.to_ne_bytes());
        out.extend_from_slice(&header.ts_ns.to_ne_bytes());
        let mut put = |word: u64| out.extend_from_slice(&word.to_ne_bytes());
        match *self {
            Self::PollStart(PollStart {
                header: _,
                task_id,
                sp,
                vtable,
            }) => {
                put(task_id);
                put(sp);
                put(vtable);
            }
            Self::PollEnd(PollEnd { header: _, sp }) => put(sp),
            Self::Wake(TaskRecord { header: _, task_id }) => put(task_id),
            Self::Terminate(Terminate {
                header: _,
                task_id,
                owner,
                scheduler,
            }) => {
                put(task_id);
                put(owner);
                put(scheduler);
            }
            Self::OffCpu(OffCpu {
                header: _,
                off_ns,
                wake_ns,
                state,
                waker,
            }) => {
                put(off_ns);
                put(wake_ns);
                put(u64::from(state) | u64::from(waker) << 32);
            }
            Self::Spawn(Spawn {
                header: _,
                task_id,
                vtable,
            }) => {
                put(task_id);
                put(vtable);
            }
            Self::Park(park) | Self::Unpark(park) => park_words(park).into_iter().for_each(put),
            Self::Gap(Gap { header: _, lost }) => put(lost),
            Self::Exit(Exit { header: _, status }) => put(status),
            Self::Signal(Signal {
                header: _,
                number,
                code,
                address,
            }) => {
                put(joined(number, code.cast_unsigned()));
                put(address);
            }
            Self::Panic(Panic {
                header: _,
                line,
                column,
            }) => put(joined(line, column)),
            Self::BlockOn(BlockOn { header: _, sp })
            | Self::BlockOnEnd(BlockOn { header: _, sp }) => {
                put(sp);
            }
            Self::AcceptQueue(ref record) => put_accept_queue(record, put),
            Self::IoBegin(IoBegin { header: _, bio }) => put(bio),
            Self::IoEnd(ref record) => block_io::put_io_end(record, put),
            Self::Sync(ref record) => block_io::put_sync(record, put),
            Self::Declared(ref record, _) => declared::put_declared(record, put),
            Self::Text(Text { header: _, bytes }) => out.extend_from_slice(&bytes),
        }
    }
}

/// The entry as exactly `N` words.
#[inline]
fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let chunks: &[[u8; 8]; N] = chunks.try_into().ok()?;
    rest.is_empty().then(|| chunks.map(u64::from_ne_bytes))
}

#[inline]
fn header(word: u64, ts_ns: u64) -> RecordHeader {
    let [k0, k1, f0, f1, t0, t1, t2, t3] = word.to_ne_bytes();
    RecordHeader {
        kind: RecordKind(u16::from_ne_bytes([k0, k1])),
        flags: u16::from_ne_bytes([f0, f1]),
        tid: u32::from_ne_bytes([t0, t1, t2, t3]),
        ts_ns,
    }
}

#[inline]
fn task(bytes: &[u8]) -> Option<TaskRecord> {
    words(bytes).map(|[w, ts, task_id]| TaskRecord {
        header: header(w, ts),
        task_id,
    })
}

#[inline]
fn off_cpu(bytes: &[u8]) -> Option<OffCpu> {
    words(bytes).map(|[w, ts, off_ns, wake_ns, facts]| {
        let [state, waker] = halves(facts);
        OffCpu {
            header: header(w, ts),
            off_ns,
            wake_ns,
            state,
            waker,
        }
    })
}

fn accept_queue(bytes: &[u8]) -> Option<AcceptQueue> {
    words(bytes).map(|[w, ts, cookie, inode, a0, a1, arrivals, queue, rest]| {
        let ([depth, limit], [drops, place]) = (halves(queue), halves(rest));
        let [p0, p1, f0, f1] = place.to_ne_bytes();
        AcceptQueue {
            header: header(w, ts),
            cookie,
            inode,
            address: [a0, a1],
            arrivals,
            depth,
            limit,
            drops,
            port: u16::from_ne_bytes([p0, p1]),
            family: u16::from_ne_bytes([f0, f1]),
        }
    })
}

fn put_accept_queue(record: &AcceptQueue, mut put: impl FnMut(u64)) {
    let AcceptQueue {
        header: _,
        cookie,
        inode,
        address: [a0, a1],
        arrivals,
        depth,
        limit,
        drops,
        port,
        family,
    } = *record;
    let ([p0, p1], [f0, f1]) = (port.to_ne_bytes(), family.to_ne_bytes());
    let place = u32::from_ne_bytes([p0, p1, f0, f1]);
    let queue = [joined(depth, limit), joined(drops, place)];
    [cookie, inode, a0, a1, arrivals]
        .into_iter()
        .chain(queue)
        .for_each(&mut put);
}

fn exit(bytes: &[u8]) -> Option<Exit> {
    words(bytes).map(|[w, ts, status]| Exit {
        header: header(w, ts),
        status,
    })
}

fn park_words(park: Park) -> [u64; 3] {
    let Park {
        header: _,
        cpu_ns,
        core,
        queue,
    } = park;
    [cpu_ns, core, queue]
}

#[inline]
fn park(bytes: &[u8]) -> Option<Park> {
    words(bytes).map(|[w, ts, cpu_ns, core, queue]| Park {
        header: header(w, ts),
        cpu_ns,
        core,
        queue,
    })
}

#[inline]
fn block_on(bytes: &[u8]) -> Option<BlockOn> {
    words(bytes).map(|[w, ts, sp]| BlockOn {
        header: header(w, ts),
        sp,
    })
}

#[inline]
fn text(bytes: &[u8]) -> Option<Text> {
    let (head, bytes) = bytes.split_at_checked(size_of::<RecordHeader>())?;
    let [w, ts] = words(head)?;
    Some(Text {
        header: header(w, ts),
        bytes: bytes.try_into().ok()?,
    })
}

/// A word as two fields, in the order of their addresses.
fn halves(word: u64) -> [u32; 2] {
    let bytes = word.to_ne_bytes();
    let (halves, _) = bytes.as_chunks::<4>();
    [halves[0], halves[1]].map(u32::from_ne_bytes)
}

fn joined(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            if let Ok(record) = Record::decode(&bytes) {
                let mut again = Vec::new();
                record.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }

        #[test]
        fn a_record_of_any_kind_survives_a_round_trip(
            kind in 0u16..23, words in proptest::collection::vec(any::<u64>(), 2..11)
        ) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes[..2].copy_from_slice(&kind.to_ne_bytes());
            let length = match kind {
                1 | 5..=7 | 12 | 13 | 21 => 40,
                2 | 3 | 8 | 9 | 11 | 14 | 15 | 19 => 24,
                4 | 10 => 32,
                16 | 20 => 72,
                _ => 0,
            };
            match Record::decode(&bytes) {
                Ok(record) => {
                    let mut again = Vec::new();
                    record.encode(&mut again);
                    prop_assert_eq!(&again, &bytes);
                    prop_assert_eq!(bytes.len(), length);
                }
                Err(DecodeError::UnknownKind { kind: k }) => {
                    prop_assert_eq!((k, length), (kind, 0));
                }
                Err(error) => {
                    prop_assert_eq!(error, DecodeError::Length { kind, bytes: bytes.len() });
                    prop_assert_ne!(bytes.len(), length);
                }
            }
        }
    }

    #[test]
    fn a_short_entry_has_no_header() {
        assert_eq!(
            Record::decode(&[1, 0]),
            Err(DecodeError::NoHeader { bytes: 2 })
        );
    }
}
