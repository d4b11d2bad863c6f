//! The fuzz target of the scanner.
//!
//! In: bytes from libFuzzer, mostly programs of the corpus that were damaged. Out:
//! nothing, or an end by a panic, by too much memory or by too much time. Never: an
//! input that is trusted in anything.

#![no_main]

mod memory;
mod mutate;
mod stages;

use dial9_bpf_probes::{STEPS, add_unwinder, scan};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_target!(|elf: &[u8]| {
    for step in STEPS {
        let Ok(parts) = step(elf) else { break };
        for part in parts {
            assert!(part.start <= part.end && part.end <= elf.len() as u64);
        }
    }
    let mut scanned = scan(elf);
    if let Ok(plan) = &mut scanned {
        add_unwinder(plan, Some(elf));
        for site in &plan.sites {
            assert!(site.cookie.fits() && site.file_offset < elf.len() as u64);
        }
    }
    stages::count(&scanned);
});

fuzz_mutator!(|data: &mut [u8], size: usize, room: usize, seed: u32| {
    mutate::mutate(data, size, room, seed)
});
