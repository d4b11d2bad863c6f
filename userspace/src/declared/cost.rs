//! What hits of declared probes cost, and what is told of them.
//!
//! In: what was found of each probe, hits by definition, prices of this machine. Out: CPU
//! time, and entries of the metadata. Never: the price of a value that is read, which is not
//! measured: the trap and a record are.

use std::time::Duration;

use dial9_bpf_attach::Prices;
use dial9_bpf_probes::plan::InstructionClass;

use super::Row;
use crate::status::float;

/// Traps of the return that a return probe sees: at the function's begin and behind its end.
const TRAPS_A_RETURN: f64 = 2.0;

/// About the CPU time that the target has paid for its hits.
pub(crate) fn paid(rows: &[Row], hits: &[u64], prices: &Prices) -> Duration {
    let ns: f64 = rows
        .iter()
        .map(|row| {
            let [begins, ends] = row.hits(hits).map(float);
            let end_ns = if row.uretprobes > 0 {
                TRAPS_A_RETURN * prices.emulated_ns
            } else {
                mean_ns(&row.ends, prices)
            };
            begins * mean_ns(&row.begins, prices) + ends * end_ns
        })
        .sum();
    Duration::try_from_secs_f64(ns / 1e9).unwrap_or_default()
}

/// What the metadata says of each probe.
pub(crate) fn facts(rows: &[Row], hits: &[u64]) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    for row in rows {
        let key = |name: &str| format!("dial9-bpf.probe.{}.{name}", row.probe);
        facts.push((key("sites"), row.sites().to_string()));
        let [begins, ends] = row.hits(hits);
        facts.push((key("hits"), (begins + ends).to_string()));
    }
    facts
}

impl Row {
    /// Its places.
    pub(crate) fn sites(&self) -> usize {
        self.begins.len() + self.ends.len() + self.uretprobes
    }

    /// Hits of its begins, or its only moment, and of its ends.
    pub(crate) fn hits(&self, hits: &[u64]) -> [u64; 2] {
        self.definitions.map(|index| {
            let hits = index.and_then(|index| hits.get(usize::from(index)));
            hits.copied().unwrap_or_default()
        })
    }
}

/// Of a hit at one of these sites, which are taken to be hit alike.
fn mean_ns(sites: &[InstructionClass], prices: &Prices) -> f64 {
    let price = |class: &InstructionClass| match class {
        InstructionClass::Emulated => prices.emulated_ns,
        InstructionClass::EmulatedStack => prices.emulated_stack_ns,
        InstructionClass::SingleStepped => prices.single_stepped_ns,
    };
    let sum: f64 = sites.iter().map(price).sum();
    sum / float(sites.len().max(1) as u64)
}
