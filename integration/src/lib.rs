//! What the tests of the whole tracer share.
//!
//! In: programs of `testprogs/`, the `dial9-bpf` command, segments. Out: facts
//! to assert on. Never: an assertion about time, a sleep that stands for a
//! condition, a process left behind.
//!
//! Everything here needs root and a kernel that the tracer supports; the tests
//! fail where it is missing, they do not skip.

pub mod block_io;
pub mod bpffs;
pub mod called;
pub mod declared;
pub mod demo;
pub mod driven;
pub mod kernel;
pub mod mount;
pub mod proc;
pub mod program;
pub mod segment;
pub mod target_dir;
pub mod tracer;
pub mod truth;
pub mod viewer;
pub mod wait;

pub use program::{Build, TestProgram};
pub use segment::Facts;
pub use tracer::{Attach, Outcome, Tracer};

/// Call first in every test.
///
/// # Panics
///
/// For anybody but root.
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests attach to processes: run them as root (cargo xtask test does)"
    );
}

/// Rounds that a benchmark is to make: what is behind `--rounds`, or so many.
pub fn rounds(unless_told: usize) -> usize {
    let told = std::env::args().skip_while(|arg| arg != "--rounds").nth(1);
    told.and_then(|rounds| rounds.parse().ok())
        .unwrap_or(unless_told)
}

/// A folder for the traces of one test.
///
/// # Panics
///
/// When none can be made.
pub fn output_dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("dial9-bpf-")
        .tempdir()
        .expect("a temporary folder can be made")
}
