//! What is found in a binary without its symbols.
//!
//! In: a binary. Out: precision and recall of the sites against the binary as it
//! was. Never: a site of the probes that symbols alone give.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::Result;
use dial9_bpf_probes::plan::{Plan, Probe, Site};

use crate::compilers::run;

/// Found with the symbols, found without, and found by both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Twin {
    pub(crate) with: usize,
    pub(crate) without: usize,
    pub(crate) both: usize,
}

impl Twin {
    /// Whether the two are the same.
    pub(crate) fn is_equal(self) -> bool {
        self.with == self.both && self.without == self.both && self.both > 0
    }
}

/// Makes `stripped`, and compares what is found in the two.
pub(crate) fn compare(binary: &Path, stripped: &Path) -> Result<Twin> {
    run(Command::new("strip")
        .arg("--strip-all")
        .arg("-o")
        .arg(stripped)
        .arg(binary))?;
    let with = sites(&fs::read(binary)?);
    let without = sites(&fs::read(stripped)?);
    Ok(Twin {
        with: with.len(),
        without: without.len(),
        both: with.intersection(&without).count(),
    })
}

fn sites(elf: &[u8]) -> BTreeSet<(u64, Probe)> {
    let plan = dial9_bpf_probes::scan(elf);
    plan.map_or_else(|_| BTreeSet::new(), |plan| of_plan(&plan))
}

fn of_plan(plan: &Plan) -> BTreeSet<(u64, Probe)> {
    let by_symbol = |site: &Site| {
        matches!(
            site.probe,
            Probe::Spawn | Probe::Panic | Probe::BlockOn | Probe::BlockOnEnd
        )
    };
    let sites = plan.sites.iter().filter(|site| !by_symbol(site));
    sites.map(|site| (site.address, site.probe)).collect()
}
