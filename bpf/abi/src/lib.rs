//! What the kernel programs and userspace agree on.
//!
//! In: nothing. Out: record layouts, the attach cookie, loss causes, limits.
//! Never: an allocation, a dependency, a decision. Both sides compile this
//! crate, so a layout can only change on both at once; `schemas/` holds it as
//! text and a test keeps that text true.
#![no_std]

pub mod block_io;
pub mod cookie;
pub mod declared;
pub mod fork;
pub mod known;
pub mod limits;
pub mod listener;
pub mod loss;
pub mod queue;
pub mod record;
pub mod stack;
pub mod text;
pub mod thread;
