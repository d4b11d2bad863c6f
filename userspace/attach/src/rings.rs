//! One BPF ring buffer for each online CPU, under one budget.
//!
//! In: what the kernel programs submit. Out: records as bytes, oldest first on
//! each CPU. Never: a wait; the consumer comes on a timer.

use std::{
    fs, io,
    os::fd::{AsFd as _, BorrowedFd},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::maps::{ArrayOfMaps, Map, MapData, MapError, RingBuf};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_RINGBUF;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{AttachError, program::refused};

/// Whether a budget gives every CPU that is online a page, and leaves half of
/// the memory that is available: the kernel takes it all at once.
///
/// # Errors
/// [`AttachError::RingBudget`] or [`AttachError::RingMemory`] when it does not,
/// [`AttachError::Proc`] when the CPUs are not known.
pub fn check_budget(budget_bytes: u64) -> Result<(), AttachError> {
    let cpus = online_cpus()?.len();
    ring_bytes(budget_bytes, cpus, rustix::param::page_size())?;
    match available_bytes() {
        Some(available) if budget_bytes > available / 2 => Err(AttachError::RingMemory {
            bytes: budget_bytes,
            available,
        }),
        _ => Ok(()),
    }
}

/// `MemAvailable` of /proc/meminfo, bytes.
fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The rings of all online CPUs.
#[derive(Debug)]
pub struct Rings {
    rings: Vec<(u32, Ring)>,
    bytes_each: u32,
}

struct Ring {
    records: RingBuf<MapData>,
    positions: Positions,
}

/// How far a pass over the rings came, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drained {
    /// Every record that was submitted before the pass has been read.
    All,
    /// The limit was reached; there is more to read.
    Part,
    /// In some ring a record is reserved and not submitted yet: it, and those
    /// behind it, come in a later pass.
    Blocked,
}

impl Drained {
    /// Of one ring, which was read to where it ended when the pass came, or up to
    /// the limit, or neither.
    const fn of_ring(is_at_end: bool, is_at_limit: bool) -> Self {
        match (is_at_end, is_at_limit) {
            (true, _) => Self::All,
            (false, true) => Self::Part,
            (false, false) => Self::Blocked,
        }
    }

    /// Of both.
    fn and(self, other: Self) -> Self {
        self.max(other)
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Rings {
    /// Creates the rings and puts them into the outer map, `budget_bytes` in
    /// all at most: each a power of two, and whole pages.
    ///
    /// # Errors
    /// [`AttachError::RingBudget`] when that is less than a page for each CPU;
    /// otherwise what the kernel answered.
    pub(crate) fn create(outer: &mut Map, budget_bytes: u64) -> Result<Self, AttachError> {
        let cpus = online_cpus()?;
        let bytes_each = ring_bytes(budget_bytes, cpus.len(), rustix::param::page_size())?;
        let mut outer: ArrayOfMaps<&mut MapData, RingBuf<MapData>> =
            ArrayOfMaps::try_from(outer).map_err(|error| map_refused(&error))?;
        let mut rings = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            let ring = create_ring(bytes_each).map_err(|error| map_refused(&error))?;
            outer
                .set(cpu, &ring, 0)
                .map_err(|error| map_refused(&error))?;
            let positions = Positions::map(ring.as_fd()).map_err(|error| map_refused(&error))?;
            let records = ring;
            rings.push((cpu, Ring { records, positions }));
        }
        Ok(Self { rings, bytes_each })
    }

    /// Bytes of all rings together.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.bytes_each) * self.rings.len() as u64
    }

    /// Hands the records that are in the rings to `take`, each with its CPU, at
    /// most `limit_each` of each ring, and frees their places.
    pub fn drain(&mut self, limit_each: usize, mut take: impl FnMut(u32, &[u8])) -> Drained {
        let mut drained = Drained::All;
        for (cpu, ring) in &mut self.rings {
            // What comes meanwhile is the next pass's.
            let until = ring.positions.produced();
            let mut left = limit_each;
            while left > 0
                && let Some(record) = ring.records.next()
            {
                take(*cpu, &record);
                left -= 1;
            }
            drained = drained.and(Drained::of_ring(
                ring.positions.consumed() >= until,
                left == 0,
            ));
        }
        drained
    }

    /// How many rings there are: one for each CPU that was online.
    pub fn count(&self) -> usize {
        self.rings.len()
    }
}

/// A ring's counters of bytes, which the kernel keeps in two pages of its own
/// before the records (kernel/bpf/ringbuf.c, `struct bpf_ringbuf`): consumed,
/// then reserved. The library that reads the records hides them, and takes a
/// record that is not submitted yet for the end.
struct Positions {
    pages: ptr::NonNull<u8>,
    page_bytes: usize,
}

// SAFETY: the mapping is ours alone, and only read, atomically.
unsafe impl Send for Positions {}

impl Positions {
    fn map(ring: BorrowedFd<'_>) -> io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        let flags = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping, of which no reference is given out.
        let pages = unsafe { mmap(ptr::null_mut(), 2 * page_bytes, flags.0, flags.1, ring, 0) }?;
        let pages = ptr::NonNull::new(pages.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { pages, page_bytes })
    }

    fn consumed(&self) -> u64 {
        self.read(0)
    }

    fn produced(&self) -> u64 {
        self.read(self.page_bytes)
    }

    fn read(&self, at: usize) -> u64 {
        // SAFETY: `at` is the first word of one of the two pages.
        let word = unsafe { self.pages.as_ptr().add(at) };
        // SAFETY: pages are aligned, the kernel writes the word atomically, and a
        // relaxed load does not write.
        unsafe { AtomicU64::from_ptr(word.cast()) }.load(Ordering::Relaxed)
    }
}

impl Drop for Positions {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which nothing refers to any more.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), 2 * self.page_bytes) };
    }
}

fn online_cpus() -> Result<Vec<u32>, AttachError> {
    aya::util::online_cpus().map_err(|(path, source)| AttachError::Proc {
        path: path.to_owned(),
        source,
    })
}

fn create_ring(bytes: u32) -> Result<RingBuf<MapData>, MapError> {
    let map = aya_obj::Map::new_from_params(BPF_MAP_TYPE_RINGBUF as u32, 0, 0, bytes, 0);
    RingBuf::try_from(Map::RingBuf(MapData::create(map, "dial9_ring", None)?))
}

/// Bytes of each ring: the largest power of two within the CPU's share.
fn ring_bytes(budget: u64, cpus: usize, page: usize) -> Result<u32, AttachError> {
    let share = budget / cpus.max(1) as u64;
    if share < page as u64 {
        let least = page as u64 * cpus as u64;
        return Err(AttachError::RingBudget {
            bytes: budget,
            cpus,
            least,
        });
    }
    let largest = 1u64 << share.ilog2();
    Ok(u32::try_from(largest).unwrap_or(1 << 31))
}

fn map_refused(error: &(dyn std::error::Error + 'static)) -> AttachError {
    refused("create the ring buffers", os_error(error))
}

/// The system's error at the root of a library's, or the library's as text.
pub(crate) fn os_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut cause = Some(error);
    while let Some(current) = cause {
        let code = current
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error);
        if let Some(code) = code {
            return io::Error::from_raw_os_error(code);
        }
        cause = current.source();
    }
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{Drained, available_bytes, check_budget, ring_bytes};

    #[test]
    fn one_blocked_ring_blocks_the_pass() {
        let [all, part, blocked] = [(true, true), (false, true), (false, false)]
            .map(|(end, limit)| Drained::of_ring(end, limit));
        assert_eq!(
            [all, part, blocked],
            [Drained::All, Drained::Part, Drained::Blocked]
        );
        assert_eq!(all.and(part), part);
        assert_eq!(part.and(blocked).and(all), blocked);
        assert_eq!(all.and(all), all);
    }

    #[test]
    fn a_budget_of_all_memory_is_refused() {
        let available = available_bytes().expect("Linux says");
        let error = check_budget(available).expect_err("too many");
        assert!(error.to_string().contains("are too many"), "{error}");
        assert!(check_budget(32 << 20).is_ok());
    }

    #[test]
    fn the_budget_is_divided_into_powers_of_two() {
        let each = |budget, cpus| ring_bytes(budget, cpus, 4096).map_err(|e| e.to_string());
        assert_eq!(each(32 << 20, 2), Ok(16 << 20));
        assert_eq!(each(32 << 20, 3), Ok(8 << 20));
        assert_eq!(each(8192, 2), Ok(4096));
        assert_eq!(each(1 << 40, 1), Ok(1 << 31));
        assert_eq!(
            each(8191, 2),
            Err("8191 bytes of rings are too few: 2 CPUs need 8192 bytes".to_owned())
        );
    }
}
