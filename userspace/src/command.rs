//! The subcommands.

pub(crate) mod attach;
pub(crate) mod capture;
pub(crate) mod check;
pub(crate) mod convert;
pub(crate) mod dump;
pub(crate) mod forked;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod symbolize;
