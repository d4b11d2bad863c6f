//! Sealed segments to an object store.
//!
//! In: sealed segment files, as they are sealed or found in the spool. Out:
//! objects at dial9's keys, and a spool without them. Never: an unlink before a
//! put has succeeded; a wait of the thread that records.
//!
//! ```text
//! sealed ─▶ symbolize ─▶ compress ─▶ put ─▶ unlink
//! ```
//!
//! Each stage takes a segment and gives it on, off the recording thread. Symbols are
//! events at the end of the same member, so that they come before the compression.

pub mod convert;
pub mod courier;
pub mod identity;
pub mod key;
pub mod rate;
pub mod retry;
pub mod sink;
