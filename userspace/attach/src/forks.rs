//! The processes that come from forks of the target.
//!
//! In: a tracer's maps. Out: which of them are still copies of the target, and how
//! many there were. Never: one that shares the target's memory.

use std::{collections::BTreeMap, io};

use aya::maps::{Array, HashMap, MapData, MapError};
use dial9_bpf_abi::fork::{ForkCount, MAX_FORKED};

use crate::{
    AttachError, Tracer,
    maps::Maps,
    program::{SCHED_PROCESS_EXEC, SCHED_PROCESS_EXIT, SCHED_PROCESS_FORK, refused},
    rings::os_error,
};

/// Attempts at a reading during which nothing is forked or executed.
const ATTEMPTS: usize = 8;
/// What it takes to know which processes are there.
const NEEDED: [&str; 3] = [SCHED_PROCESS_FORK, SCHED_PROCESS_EXEC, SCHED_PROCESS_EXIT];

/// A process that the target has forked, or one of those, and that has executed no
/// program since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forked {
    /// When it was forked, `CLOCK_MONOTONIC`, ns.
    pub forked_ns: u64,
    /// Its process id.
    pub pid: u32,
}

/// All of them at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forks {
    /// Those that are there, oldest first.
    pub alive: Vec<Forked>,
    counts: Counts,
}

/// Since the programs were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    forked: u64,
    executed: u64,
    unkept: u64,
}

impl Forks {
    /// Processes that have executed no program: those that are there since before a
    /// time, and those that have ended.
    pub fn count(&self, before_ns: u64) -> u64 {
        let is_young = |forked: &&Forked| forked.forked_ns >= before_ns;
        let young = self.alive.iter().filter(is_young).count() as u64;
        let Counts {
            forked, executed, ..
        } = self.counts;
        forked.saturating_sub(executed).saturating_sub(young)
    }

    /// Processes that there have been, whatever became of them.
    pub fn forked(&self) -> u64 {
        self.counts.forked
    }

    /// Processes of which it is not known what became of them: there were too many.
    pub fn unkept(&self) -> u64 {
        self.counts.unkept
    }
}

impl Tracer {
    /// How many processes there have been, whatever became of them.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the counters cannot be read.
    pub fn forked(&self) -> Result<u64, AttachError> {
        counts(&self.maps).map(|counts| counts.forked)
    }

    /// The processes that come from forks of the target; `None` where the kernel has
    /// refused to tell, for which [`Tracer::absent`] has the reason.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the maps cannot be read.
    pub fn forks(&self) -> Result<Option<Forks>, AttachError> {
        let is_there = |needed| self.tracepoints.iter().any(|(name, _)| name == needed);
        if !NEEDED.into_iter().all(is_there) {
            return Ok(None);
        }
        let mut before = counts(&self.maps)?;
        let mut alive = Vec::new();
        for _ in 0..ATTEMPTS {
            alive = read_alive(&self.maps)?;
            let after = counts(&self.maps)?;
            if after == before {
                break;
            }
            before = after;
        }
        Ok(Some(Forks {
            alive,
            counts: before,
        }))
    }
}

fn read_alive(maps: &Maps) -> Result<Vec<Forked>, AttachError> {
    let map: HashMap<&MapData, u32, u64> = maps
        .get("FORKED")?
        .try_into()
        .map_err(|error| unreadable(&error))?;
    // One that goes while it is read begins the reading anew.
    let mut found = BTreeMap::new();
    for entry in map.iter().take(4 * MAX_FORKED as usize) {
        match entry {
            Ok((pid, forked_ns)) => drop(found.insert(pid, forked_ns)),
            Err(MapError::KeyNotFound) => {}
            Err(error) => return Err(unreadable(&error)),
        }
    }
    let forked = |(pid, forked_ns)| Forked { forked_ns, pid };
    let mut alive: Vec<Forked> = found.into_iter().map(forked).collect();
    alive.sort();
    Ok(alive)
}

fn counts(maps: &Maps) -> Result<Counts, AttachError> {
    let map: Array<&MapData, u64> = maps
        .get("FORKS")?
        .try_into()
        .map_err(|error| unreadable(&error))?;
    let get = |of: ForkCount| map.get(&(of as u32), 0).map_err(|error| unreadable(&error));
    Ok(Counts {
        forked: get(ForkCount::Forked)?,
        executed: get(ForkCount::Executed)?,
        unkept: get(ForkCount::Unkept)?,
    })
}

fn unreadable(error: &(dyn std::error::Error + 'static)) -> AttachError {
    let source: io::Error = os_error(error);
    refused("read a BPF map", source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_may_still_execute_something_is_not_counted() {
        let of = |pid, forked_ns| Forked { forked_ns, pid };
        let forks = Forks {
            alive: vec![of(7, 100), of(5, 200)],
            counts: Counts {
                forked: 9,
                executed: 4,
                unkept: 0,
            },
        };
        // Three have ended.
        assert_eq!([300, 200, 100].map(|before| forks.count(before)), [5, 4, 3]);
    }
}
