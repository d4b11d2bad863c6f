//! One BPF ring buffer, read in place.
//!
//! In: the ring's map. Out: its entries, oldest first; their places when the
//! caller gives them back. Never: a wait; a place given back that was not read.
//!
//! The library's reader gives a place back as soon as it is read. Where the ring
//! is to outlive its reader, a record has to stay until it is in a file.
//!
//! The mapping is that of `struct bpf_ringbuf` (kernel/bpf/ringbuf.c): a page
//! with the position of the consumer, a page with that of the producers, then
//! the data twice, so that no entry is cut in two.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    ptr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use aya::maps::MapData;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Before each entry: its length with two flags, and a word of the kernel's
/// (`struct bpf_ringbuf_hdr`).
const HEADER_BYTES: u64 = 8;
/// Reserved, and not submitted yet (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// Given up by its producer (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;

/// A ring and how far it has been read.
pub(crate) struct Ring {
    map: MapData,
    consumer: Pages,
    producer: Pages,
    page_bytes: usize,
    data_bytes: u64,
    read: u64,
    told: Told,
}

/// What a predecessor has told of a ring: entries before a position that are of
/// before a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) position: u64,
    pub(crate) before_ns: u64,
}

/// An entry in the ring.
struct Entry<'a> {
    bytes: &'a [u8],
    is_discarded: bool,
    next: u64,
}

impl Ring {
    /// The ring of a map with `data_bytes` of data; reads on where the last reader
    /// gave places back.
    ///
    /// # Errors
    /// The kernel's answer to a mapping.
    pub(crate) fn map(map: MapData, data_bytes: u32) -> io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        let fd = map.fd().as_fd();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let consumer = Pages::map(fd, 0, page_bytes, both)?;
        let rest = page_bytes + 2 * data_bytes as usize;
        let producer = Pages::map(fd, page_bytes, rest, ProtFlags::READ)?;
        let mut ring = Self {
            map,
            consumer,
            producer,
            page_bytes,
            data_bytes: data_bytes.into(),
            read: 0,
            told: Told::default(),
        };
        ring.read = ring.given_back();
        Ok(ring)
    }

    /// The ring's map.
    pub(crate) fn data(&self) -> &MapData {
        &self.map
    }

    /// Bytes of its data.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The position up to which places are reserved or submitted.
    pub(crate) fn produced(&self) -> u64 {
        self.producer.position().load(Ordering::Acquire)
    }

    /// The position up to which entries have been read.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Leaves out what has been told.
    pub(crate) fn skip(&mut self, told: Told) {
        self.told = told;
    }

    /// The next entry that is submitted.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        loop {
            let at = self.read;
            if at >= self.produced() {
                return None;
            }
            let Entry {
                bytes,
                is_discarded,
                next,
            } = self.entry(at)?;
            let is_told = at < self.told.position && time_ns(bytes) < self.told.before_ns;
            if !is_discarded && !is_told {
                let (first, length) = (bytes.as_ptr(), bytes.len());
                self.read = next;
                // SAFETY: the entry stays until its place is given back, for which
                // the caller needs the ring to itself.
                return Some(unsafe { std::slice::from_raw_parts(first, length) });
            }
            self.read = next;
        }
    }

    /// Gives back the places of all that was read.
    #[inline]
    pub(crate) fn give_back(&mut self) {
        self.give_back_to(self.read);
    }

    /// Gives back the places of what was read, up to the first entry that is not
    /// of before this time.
    pub(crate) fn give_back_before(&mut self, before_ns: u64) {
        let mut at = self.given_back();
        while at < self.read
            && let Some(entry) = self.entry(at)
            && (entry.is_discarded || time_ns(entry.bytes) < before_ns)
        {
            at = entry.next;
        }
        self.give_back_to(at);
    }

    /// Whether more than half of it is taken.
    pub(crate) fn is_half_full(&self) -> bool {
        self.produced() - self.given_back() > self.data_bytes / 2
    }

    fn given_back(&self) -> u64 {
        self.consumer.position().load(Ordering::Relaxed)
    }

    fn give_back_to(&self, position: u64) {
        self.consumer.position().store(position, Ordering::Release);
    }

    /// The entry at a position before the producers'; `None` while it is not
    /// submitted.
    #[inline]
    fn entry(&self, at: u64) -> Option<Entry<'_>> {
        let offset = usize::try_from(at & (self.data_bytes - 1)).ok()?;
        // SAFETY: within the data, which is mapped twice, behind the page.
        let header = unsafe { self.producer.start.as_ptr().add(self.page_bytes + offset) };
        // SAFETY: entries are aligned to 8 bytes, and the kernel writes the word
        // atomically; a load does not write.
        let word = unsafe { AtomicU32::from_ptr(header.cast()) }.load(Ordering::Acquire);
        if word & BUSY != 0 {
            return None;
        }
        let length = word & !DISCARDED;
        // SAFETY: the kernel lets no entry be longer than the data.
        let first = unsafe { header.add(8) };
        // SAFETY: nor does it write to what is submitted until its place is given
        // back.
        let bytes = unsafe { std::slice::from_raw_parts(first, length as usize) };
        Some(Entry {
            bytes,
            is_discarded: word & DISCARDED != 0,
            next: at + (HEADER_BYTES + u64::from(length)).next_multiple_of(8),
        })
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

/// When the record in an entry was stamped, `CLOCK_MONOTONIC` ns: the second
/// word of every record. What is no record is of before any time.
fn time_ns(entry: &[u8]) -> u64 {
    let word = entry.get(8..16).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

/// Shared memory of a map, which begins with a position.
pub(crate) struct Pages {
    start: ptr::NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value, and is accessed atomically or where
// the kernel does not write.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps `bytes` of a map, from a multiple of a page on.
    ///
    /// # Errors
    /// The kernel's answer.
    pub(crate) fn map(
        map: BorrowedFd<'_>,
        from: usize,
        bytes: usize,
        access: ProtFlags,
    ) -> io::Result<Self> {
        // SAFETY: a new mapping, of which no reference is given out.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                access,
                MapFlags::SHARED,
                map,
                from as u64,
            )
        }?;
        let start = ptr::NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { start, bytes })
    }

    /// The word at `index`, of a mapping that is read and written as words.
    ///
    /// # Panics
    /// Beyond the mapping.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.bytes, "word {index} is not mapped");
        // SAFETY: within the mapping.
        let word = unsafe { self.start.add(index * 8) };
        // SAFETY: a mapping begins with a page, and nobody accesses words otherwise.
        unsafe { AtomicU64::from_ptr(word.cast().as_ptr()) }
    }

    fn position(&self) -> &AtomicU64 {
        self.word(0)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which nothing refers to any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
