//! How far inputs come.
//!
//! In: results of scans. Out: at the end of the process, how many had each.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use dial9_bpf_probes::ScanError;
use dial9_bpf_probes::plan::{Plan, Probe};

static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

unsafe extern "C" {
    /// Of the C library, which libFuzzer ends the process with.
    safe fn atexit(function: extern "C" fn()) -> c_int;
}

/// Counts a scan.
pub(crate) fn count(scanned: &Result<Plan, ScanError>) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    if counts.is_empty() {
        atexit(print);
    }
    let mut add = |stage: &str| match counts.get_mut(stage) {
        Some(count) => *count += 1,
        None => _ = counts.insert(stage.to_owned(), 1),
    };
    match scanned {
        Ok(plan) => {
            add("4: a plan");
            if plan.has_symbols {
                add("4: a plan, with symbols");
            }
            for probe in Probe::ALL {
                if plan.sites.iter().any(|site| site.probe == probe) {
                    add(&format!("5: sites for {}", probe.name()));
                }
            }
        }
        Err(ScanError::NotTokio { pointers: 0 }) => add("2: no word points to code"),
        Err(ScanError::NotTokio { .. }) => add("3: no task vtable"),
        Err(ScanError::Malformed { part }) => add(&format!("1: malformed {part}")),
        Err(ScanError::TooBig { part, .. }) => add(&format!("1: too many {part}")),
        Err(_) => add("0: no x86-64 ELF file"),
    }
}

extern "C" fn print() {
    for (stage, count) in COUNTS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        eprintln!("{count:>10} {stage}");
    }
}
