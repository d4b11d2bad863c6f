//! The corpus of the fuzz target (`fuzz/corpus`): the programs that its damage begins
//! with, and what once went wrong.
//!
//! In: the files there. Out: a test that the scanner is done with each, and that the
//! programs are those of [`crate::testing`]; `DIAL9_BPF_BLESS=1` writes these.

use std::fs;
use std::path::PathBuf;

use crate::testing::Linking;
use crate::testing::tokio::{small_program, small_program_with_symbols};

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "fuzz", "corpus"]
        .iter()
        .collect()
}

#[test]
fn the_corpus_begins_with_the_small_programs() {
    let programs = [
        ("fixed", small_program(Linking::Fixed)),
        ("rela", small_program(Linking::Rela)),
        ("relr", small_program(Linking::Relr)),
        ("symbols-fixed", small_program_with_symbols(Linking::Fixed)),
        ("symbols-rela", small_program_with_symbols(Linking::Rela)),
    ];
    for (name, elf) in programs {
        let path = folder().join(name);
        if std::env::var_os("DIAL9_BPF_BLESS").is_some() {
            fs::write(&path, &elf).unwrap();
        }
        let is_same = fs::read(&path).is_ok_and(|committed| committed == elf);
        assert!(is_same, "{} is another: DIAL9_BPF_BLESS=1", path.display());
        assert!(crate::scan(&elf).is_ok());
    }
}

#[test]
fn the_scanner_is_done_with_each_of_the_corpus() {
    let mut files = 0;
    for file in fs::read_dir(folder()).unwrap() {
        let elf = fs::read(file.unwrap().path()).unwrap();
        for step in crate::STEPS {
            let Ok(_) = step(&elf) else { break };
        }
        if let Ok(mut plan) = crate::scan(&elf) {
            crate::add_unwinder(&mut plan, Some(&elf));
            assert!(plan.sites.iter().all(|site| site.cookie.fits()));
        }
        files += 1;
    }
    assert!(files >= 5);
}
