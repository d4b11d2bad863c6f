//! One BPF ring buffer for each online CPU, under one budget.
//!
//! In: what the kernel programs submit. Out: records as bytes, oldest first on
//! each CPU. Never: a wait; the consumer comes on a timer.

use std::{fs, io};

use aya::maps::{ArrayOfMaps, Map, MapData, MapError, RingBuf};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_RINGBUF;

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

struct Ring(RingBuf<MapData>);

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
            rings.push((cpu, Ring(ring)));
        }
        Ok(Self { rings, bytes_each })
    }

    /// Bytes of all rings together.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.bytes_each) * self.rings.len() as u64
    }

    /// Hands the records that are in the rings to `take`, each with its CPU, at
    /// most `limit_each` of each ring, and frees their places. Returns whether
    /// every ring was emptied.
    pub fn drain(&mut self, limit_each: usize, mut take: impl FnMut(u32, &[u8])) -> bool {
        let mut is_empty = true;
        for (cpu, Ring(ring)) in &mut self.rings {
            let mut left = limit_each;
            while left > 0 {
                let Some(record) = ring.next() else { break };
                take(*cpu, &record);
                left -= 1;
            }
            is_empty &= left > 0;
        }
        is_empty
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
    use super::{available_bytes, check_budget, ring_bytes};

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
