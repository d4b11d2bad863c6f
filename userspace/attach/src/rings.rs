//! One BPF ring buffer for each online CPU, under one budget.
//!
//! In: what the kernel programs submit. Out: records as bytes, oldest first on
//! each CPU. Never: a wait; the consumer comes on a timer.

use std::{fs, io};

use aya::maps::{ArrayOfMaps, Map, MapData, MapError};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_RINGBUF;

use crate::{
    AttachError,
    program::refused,
    ring::{Ring, Told},
};

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
    /// Whether places are given back by the caller alone.
    keeps: bool,
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
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.max(other)
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
        let mut outer: ArrayOfMaps<&mut MapData, MapData> =
            ArrayOfMaps::try_from(outer).map_err(|error| map_refused(&error))?;
        let mut rings = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            let ring = create_ring(bytes_each).map_err(|error| map_refused(&error))?;
            outer
                .set(cpu, &ring, 0)
                .map_err(|error| map_refused(&error))?;
            let ring = Ring::map(ring, bytes_each).map_err(|error| map_refused(&error))?;
            rings.push((cpu, ring));
        }
        Ok(Self {
            rings,
            keeps: false,
        })
    }

    /// Bytes of all rings together.
    pub fn total_bytes(&self) -> u64 {
        self.rings.iter().map(|(_, ring)| ring.data_bytes()).sum()
    }

    /// Hands the records that are in the rings to `take`, each with its CPU, at
    /// most `limit_each` of each ring, and frees their places, unless they are
    /// kept.
    pub fn drain(&mut self, limit_each: usize, mut take: impl FnMut(u32, &[u8])) -> Drained {
        let mut drained = Drained::All;
        for (cpu, ring) in &mut self.rings {
            // What comes meanwhile is the next pass's.
            let until = ring.produced();
            let mut left = limit_each;
            while left > 0
                && let Some(record) = ring.next()
            {
                take(*cpu, record);
                if !self.keeps {
                    ring.give_back();
                }
                left -= 1;
            }
            drained = drained.and(Drained::of_ring(ring.read() >= until, left == 0));
        }
        drained
    }

    /// The rings of a predecessor, by CPU.
    ///
    /// # Errors
    /// What the kernel answered.
    pub(crate) fn adopt(maps: Vec<(u32, MapData)>) -> Result<Self, AttachError> {
        let adopted = |(cpu, map): (u32, MapData)| {
            let bytes = map.info().map_err(|error| map_refused(&error))?;
            let ring = Ring::map(map, bytes.max_entries()).map_err(|error| map_refused(&error))?;
            Ok((cpu, ring))
        };
        Ok(Self {
            rings: maps.into_iter().map(adopted).collect::<Result<_, _>>()?,
            keeps: true,
        })
    }

    /// From now on places are given back by [`Rings::give_back_before`] alone.
    pub(crate) fn keep(&mut self) {
        self.keeps = true;
    }

    /// Whether more than half of one is taken.
    pub fn are_half_full(&self) -> bool {
        self.rings.iter().any(|(_, ring)| ring.is_half_full())
    }

    /// Gives back the places of records that were read and are of before a time.
    pub(crate) fn give_back_before(&mut self, before_ns: u64) {
        for (_, ring) in &mut self.rings {
            ring.give_back_before(before_ns);
        }
    }

    /// Leaves out what was told of before a time: of each ring what comes before
    /// the position that `read` gives for its CPU, or before its end now.
    pub(crate) fn skip(&mut self, before_ns: u64, read: impl Fn(u32) -> Option<u64>) {
        for (cpu, ring) in &mut self.rings {
            let position = read(*cpu).unwrap_or_else(|| ring.produced());
            ring.skip(Told {
                position,
                before_ns,
            });
        }
    }

    /// How far each has been read, by CPU.
    pub(crate) fn positions(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.rings.iter().map(|(cpu, ring)| (*cpu, ring.read()))
    }

    /// Their maps, by CPU.
    pub(crate) fn maps(&self) -> impl Iterator<Item = (u32, &MapData)> + '_ {
        self.rings.iter().map(|(cpu, ring)| (*cpu, ring.data()))
    }

    /// How many rings there are: one for each CPU that was online.
    pub fn count(&self) -> usize {
        self.rings.len()
    }
}

fn online_cpus() -> Result<Vec<u32>, AttachError> {
    aya::util::online_cpus().map_err(|(path, source)| AttachError::Proc {
        path: path.to_owned(),
        source,
    })
}

fn create_ring(bytes: u32) -> Result<MapData, MapError> {
    let map = aya_obj::Map::new_from_params(BPF_MAP_TYPE_RINGBUF as u32, 0, 0, bytes, 0);
    MapData::create(map, "dial9_ring", None)
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
