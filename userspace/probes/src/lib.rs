//! Where a Tokio binary can be probed.
//!
//! In: the bytes of an ELF file. Out: a [`plan::Plan`]. Never: a look at a
//! process, a file or the kernel; a guess.

pub mod declared;
pub mod plan;

mod block_on;
mod calls;
mod code;
mod compiler;
mod complete;
#[cfg(test)]
mod corpus;
mod cut;
mod debug_info;
mod elf;
mod entry;
mod error;
mod glue;
mod graph;
mod inlined;
mod locations;
mod names;
mod origins;
mod panics;
mod park;
mod polls;
mod scan;
mod spawn;
#[cfg(test)]
mod testing;
mod types;
mod unoptimized;
mod uses;
mod values;
mod version;
mod vtables;
mod wakers;

pub use debug_info::{File, Read};
pub use elf::{
    DEBUG_FILE_STEPS, DebugLink, Names, STEPS, Step, build_id_of, debug_link, shares_tokio,
};
pub use error::ScanError;
pub use panics::add_unwinder;
pub use scan::{scan, scan_files};
