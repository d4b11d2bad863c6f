//! Losses as the kernel counted them.
//!
//! In: absolute counters by CPU, kind and cause. Out: what each segment has to
//! say of them. Never: a counter that went backwards taken for a loss.

use std::collections::BTreeMap;

use dial9_bpf_abi::loss::LossCause;
use dial9_bpf_abi::record::RecordKind;

/// Why a hit is in no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Cause {
    /// The kernel's programs lost it.
    Kernel(u32),
    /// Its record came after the segment of its time had been sealed.
    Late,
}

impl From<LossCause> for Cause {
    fn from(cause: LossCause) -> Self {
        Self::Kernel(cause as u32)
    }
}

impl Cause {
    /// The cause's name in reports and schemas.
    pub fn name(self) -> &'static str {
        let kernels = |number| LossCause::ALL.into_iter().find(|c| *c as u32 == number);
        match self {
            Self::Kernel(number) => kernels(number).map_or("unknown", LossCause::name),
            Self::Late => "late",
        }
    }
}

/// Hits of one kind that one CPU lost by one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The CPU.
    pub cpu: u32,
    /// Kind of the records that are missing.
    pub kind: RecordKind,
    /// Why.
    pub cause: Cause,
    /// Hits lost in this segment.
    pub lost: u64,
    /// Hits lost since attach.
    pub total: u64,
}

/// Turns counters since attach into losses of a segment.
#[derive(Debug, Default)]
pub struct LossLedger {
    totals: BTreeMap<(u32, u16, Cause), Loss>,
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
        let loss = self.entry(cpu, kind, cause.into());
        loss.lost += total.saturating_sub(loss.total);
        loss.total = loss.total.max(total);
    }

    /// Counts a record that came too late for the segment of its time.
    pub fn late(&mut self, cpu: u32, kind: RecordKind) {
        let loss = self.entry(cpu, kind, Cause::Late);
        loss.lost += 1;
        loss.total += 1;
    }

    fn entry(&mut self, cpu: u32, kind: RecordKind, cause: Cause) -> &mut Loss {
        self.totals.entry((cpu, kind.0, cause)).or_insert(Loss {
            cpu,
            kind,
            cause,
            lost: 0,
            total: 0,
        })
    }

    /// Every counter that ever moved, with what this segment lost.
    pub fn losses(&self) -> Vec<Loss> {
        self.totals.values().copied().collect()
    }

    /// Begins the next segment: nothing lost in it.
    pub fn begin_segment(&mut self) {
        for loss in self.totals.values_mut() {
            loss.lost = 0;
        }
    }

    /// What the segment that ends now lost, every counter that ever moved; the
    /// next segment starts at 0.
    pub fn close_segment(&mut self) -> Vec<Loss> {
        let losses = self.losses();
        self.begin_segment();
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_record_is_a_loss_of_its_own_cause() {
        let mut ledger = LossLedger::new();
        ledger.late(1, RecordKind::WAKE);
        ledger.late(1, RecordKind::WAKE);
        ledger.read(1, RecordKind::WAKE, LossCause::NoRing, 5);
        let told = |loss: &Loss| (loss.cause.name(), loss.lost, loss.total);
        let told: Vec<_> = ledger.losses().iter().map(told).collect();
        assert_eq!(told, [("no-ring", 5, 5), ("late", 2, 2)]);
        ledger.begin_segment();
        assert!(ledger.losses().iter().all(|loss| loss.lost == 0));
    }

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
