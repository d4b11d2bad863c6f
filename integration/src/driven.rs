//! The tracer's packages, driven without the command.
//!
//! In: a Tokio program that runs. Out: its target, its object, a loaded tracer.
//! Never: an attachment; that is the caller's.

use dial9_bpf_attach::{Abilities, Object, Options, Target, Tracer};

/// A program as a target, and its executable as the only object.
///
/// # Panics
///
/// When it does not run or is no Tokio program.
pub fn scanned(pid: u32) -> (Target, [Object; 1]) {
    let target = Target::open(pid).expect("it runs");
    let executable = target.read_executable().expect("it can be read");
    let plan = dial9_bpf_attach::scan(&executable, None).expect("it is a Tokio program");
    let object = Object::of_executable(&target, plan).expect("it still runs");
    (target, [object])
}

/// The programs, loaded the best way that the kernel has.
///
/// # Panics
///
/// When the kernel refuses.
pub fn loaded(target: &Target, ring_bytes: u64) -> Tracer {
    let abilities = Abilities::probe(None).expect("the kernel can do it");
    let options = Options::bare(ring_bytes, abilities);
    Tracer::load(target, options).expect("the programs load")
}
