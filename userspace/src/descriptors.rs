//! How many files we may have open: a ring for each CPU, a few for the rest.
//!
//! In: the limits that we were started with. Out: the most that they allow; what
//! to do where that is too little. Never: a limit of another process.

use std::io;

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// Raises the soft limit to the hard one. Where it stays, what needs more says so.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// The error, and the limit if that is why.
pub(crate) fn explain(error: anyhow::Error) -> anyhow::Error {
    let limit = getrlimit(Resource::Nofile).current;
    match limit {
        Some(limit) if is_too_many(&error) => error.context(format!(
            "no more than {limit} files may be open (ulimit -n)"
        )),
        _ => error,
    }
}

fn is_too_many(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    causes.any(|cause: &io::Error| cause.raw_os_error() == Some(Errno::MFILE.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_for_want_of_descriptors_is_explained() {
        let of = |errno: Errno| {
            let error = anyhow::Error::from(io::Error::from(errno)).context("cannot open x");
            format!("{:#}", explain(error))
        };
        let told = of(Errno::MFILE);
        assert!(
            told.contains("may be open (ulimit -n): cannot open x: Too many"),
            "{told}"
        );
        assert!(of(Errno::ACCESS).starts_with("cannot open x"));
    }
}
