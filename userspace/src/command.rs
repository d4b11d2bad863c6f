//! The subcommands.

pub mod attach;
pub mod check;
