//! Losses as the kernel counted them.
//!
//! In: absolute counters by CPU, kind and cause. Out: what each segment has to
//! say of them. Never: a counter that went backwards taken for a loss.

use std::collections::BTreeMap;

use dial9_bpf_abi::loss::LossCause;
use dial9_bpf_abi::record::RecordKind;

/// Hits of one kind that one CPU lost by one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The CPU.
    pub cpu: u32,
    /// Kind of the records that are missing.
    pub kind: RecordKind,
    /// Why.
    pub cause: LossCause,
    /// Hits lost in this segment.
    pub lost: u64,
    /// Hits lost since attach.
    pub total: u64,
}

/// Turns counters since attach into losses of a segment.
#[derive(Debug, Default)]
pub struct LossLedger {
    totals: BTreeMap<(u32, u16, u32), Loss>,
}

impl LossLedger {
    /// An empty ledger: nothing lost.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one counter's value, hits since attach.
    pub fn read(&mut self, cpu: u32, kind: RecordKind, cause: LossCause, total: u64) {
        if total == 0 {
            return;
        }
        let fresh = Loss {
            cpu,
            kind,
            cause,
            lost: 0,
            total: 0,
        };
        let loss = self
            .totals
            .entry((cpu, kind.0, cause as u32))
            .or_insert(fresh);
        loss.lost += total.saturating_sub(loss.total);
        loss.total = loss.total.max(total);
    }

    /// What the segment that ends now lost, every counter that ever moved; the
    /// next segment starts at 0.
    pub fn close_segment(&mut self) -> Vec<Loss> {
        let losses = self.totals.values().copied().collect();
        for loss in self.totals.values_mut() {
            loss.lost = 0;
        }
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_its_own_losses_and_the_sum() {
        let mut ledger = LossLedger::new();
        let read = |ledger: &mut LossLedger, total| {
            ledger.read(1, RecordKind::WAKE, LossCause::RingFull, total);
        };
        read(&mut ledger, 0);
        assert!(ledger.close_segment().is_empty());
        read(&mut ledger, 5);
        read(&mut ledger, 7);
        let [loss] = ledger.close_segment()[..] else {
            panic!()
        };
        assert_eq!((loss.lost, loss.total), (7, 7));
        read(&mut ledger, 10);
        let [loss] = ledger.close_segment()[..] else {
            panic!()
        };
        assert_eq!((loss.lost, loss.total), (3, 10));
        let [loss] = ledger.close_segment()[..] else {
            panic!()
        };
        assert_eq!((loss.lost, loss.total), (0, 10));
    }
}
