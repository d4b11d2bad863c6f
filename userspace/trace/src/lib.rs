//! From kernel records to a trace segment.
//!
//! In: bytes of the rings, what a scan said about the target's task types, the
//! kernel's loss counters. Out: segment files that dial9's readers take.
//! Never: a BPF call, a symbol lookup, a network; nothing here knows who made
//! the records.
//!
//! ```text
//! ring bytes → decode → Record → sort → interpret → Event → encode → batch → segment → spool
//! └──────────────────────── line, on the recording thread ─────────────────────────┘   │
//!                                   recover: what a dead recorder left ────────────────┘
//! ```

mod block_io;
pub mod check;
pub mod clock;
pub mod declared;
pub mod decode;
pub mod dump;
pub mod encode;
pub mod event;
mod fields;
#[cfg(test)]
mod fixtures;
pub mod interpret;
pub mod line;
pub mod location;
pub mod lock;
pub mod loss;
pub mod mapping;
pub mod metadata;
mod metrics;
mod object;
pub mod payloads;
pub mod recover;
pub mod rotate;
mod schedulers;
#[cfg(test)]
mod schemas;
pub mod segment;
pub mod sort;
pub mod spool;
pub mod stacks;
pub mod stats;
mod stored;
pub mod stored_hits;
pub mod stored_io;
pub mod symbols;
mod tasks;
pub mod texts;
mod threads;
mod wire;
