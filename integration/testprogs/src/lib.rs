//! What the test programs share: counting, idleness, and the protocol.
//!
//! In: futures to spawn. Out: one line of truth for each task. Never: a wake,
//! a poll or a spawn that it does not count, nor anything of the tracer.

pub mod amount;
pub mod count;
pub mod cycles;
pub mod host;
pub mod pages;
pub mod quiet;
pub mod script;
pub mod service;
pub mod spin;
