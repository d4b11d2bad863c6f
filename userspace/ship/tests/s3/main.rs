//! Segments to real S3 servers, through a proxy that fails as it is told.
//!
//! In: sealed segments in a spool of the recorder's own kind. Asserted: in the
//! end each segment is in the store exactly once, its content the same, or is
//! still in the spool and said to be. Everything is on loopback.
#![expect(clippy::unwrap_used, reason = "a test")]

mod faults;
mod moto;
mod proxy;
mod puts;
mod rig;
mod server;
