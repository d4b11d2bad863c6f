//! Live links and live rings.
//!
//! In: a target and the plans of its objects. Out: the target's records, as bytes, and counts
//! of what was lost. Never: a write to the target's memory, a stop of the
//! target, a pinned object that nobody asked for; what is dropped is detached.

pub mod baseline;
pub mod block_io;
pub mod btf;
mod debug_file;
pub mod declared;
pub mod error;
mod file;
pub mod forks;
pub mod gaps;
pub mod keep;
mod link;
mod listeners;
mod local_queue;
pub mod mapped;
mod maps;
pub mod object;
mod pin;
pub mod price;
pub mod privilege;
pub mod profile;
mod program;
mod progress;
mod ring;
pub mod rings;
pub mod runtimes;
mod sys;
pub mod target;
mod tracepoint;
pub mod tracer;

pub use block_io::KernelIo;
pub use debug_file::{DebugFile, by_build_id, scan};
pub use error::AttachError;
pub use file::FileParts;
pub use link::{Attached, LateLinks, LinkKind, Links};
pub use local_queue::QueueReads;
pub use mapped::Mapped;
pub use object::Object;
pub use price::Prices;
pub use program::Abilities;
pub use runtimes::Runtimes;
pub use target::Target;
pub use tracer::{Options, Tracer};
