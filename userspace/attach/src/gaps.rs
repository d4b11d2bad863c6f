//! Threads whose last hits were lost.
//!
//! In: the kernel side's slots. Out: gaps that no record has told. Never: one that a later
//! record of the thread will tell.

use aya::maps::{Array, MapData};
use dial9_bpf_abi::thread::{LOST_BY_SEVERAL, LostHits, SLOTS};

use crate::{AttachError, Tracer, tracer::map_unreadable};

/// A thread that lost hits and has had no record since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingGap {
    /// The thread; `None` stands for every thread.
    pub tid: Option<u32>,
    /// When the first lost hit happened, `CLOCK_MONOTONIC`, ns.
    pub since_ns: u64,
    /// Hits lost since.
    pub lost: u64,
}

impl Tracer {
    /// Threads whose last hits were lost; to be asked after the last drain.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the slots cannot be read.
    pub fn pending_gaps(&self) -> Result<Vec<PendingGap>, AttachError> {
        let slots: Array<&MapData, SlotBytes> = self
            .maps
            .get("LOST_HITS")?
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        let mut gaps = Vec::new();
        for index in 0..SLOTS {
            let SlotBytes(slot) = slots
                .get(&index, 0)
                .map_err(|error| map_unreadable(&error))?;
            if slot.lost > 0 {
                let tid = (slot.tid != LOST_BY_SEVERAL).then_some(slot.tid);
                gaps.push(PendingGap {
                    tid,
                    since_ns: slot.since_ns,
                    lost: slot.lost,
                });
            }
        }
        Ok(gaps)
    }
}

/// [`LostHits`] as aya reads map values.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct SlotBytes(LostHits);

// SAFETY: integers without padding; every bit pattern is valid.
unsafe impl aya::Pod for SlotBytes {}
