//! Where a Tokio binary can be probed.
//!
//! In: the bytes of an ELF file. Out: a [`plan::Plan`]. Never: a look at a
//! process, a file or the kernel; a guess.

pub mod plan;
