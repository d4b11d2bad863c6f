//! How the command ends: every failure has one documented code.
//!
//! In: an error of any package. Out: its exit code. Never: a message; that is
//! printed once, in `main`.

use std::process::ExitCode;

use dial9_bpf_attach::{AttachError, privilege};
use dial9_bpf_probes::ScanError;

/// Done.
pub const DONE: u8 = 0;
/// A failure of our own, or a problem that `check` found.
pub const FAILURE: u8 = 1;
/// The command line is off.
pub const USAGE: u8 = 2;
/// A privilege is missing.
pub const PRIVILEGE: u8 = 3;
/// The kernel or its policy refuses.
pub const KERNEL: u8 = 4;
/// There is no such target.
pub const NO_TARGET: u8 = 5;
/// There is nothing to trace in the target.
pub const NOTHING_TO_TRACE: u8 = 6;
/// Done, but records were lost.
pub const LOST: u8 = 7;

/// The exit code of a failure.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    if let Some(error) = error.downcast_ref::<AttachError>() {
        return attach_code(error).into();
    }
    if error.downcast_ref::<ScanError>().is_some() {
        return NOTHING_TO_TRACE.into();
    }
    FAILURE.into()
}

fn attach_code(error: &AttachError) -> u8 {
    match error {
        AttachError::NoProcess { .. }
        | AttachError::NotAProcess { .. }
        | AttachError::KernelThread { .. } => NO_TARGET,
        AttachError::Forbidden { .. } | AttachError::Privilege { .. } => PRIVILEGE,
        AttachError::Link { source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied
                && privilege::missing().is_some() =>
        {
            PRIVILEGE
        }
        AttachError::Kernel { .. }
        | AttachError::Verifier { .. }
        | AttachError::Btf { .. }
        | AttachError::Link { .. } => KERNEL,
        AttachError::RingBudget { .. } => USAGE,
        _ => FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_their_codes() {
        let code = |error: AttachError| attach_code(&error);
        assert_eq!(code(AttachError::NoProcess { pid: 1 }), NO_TARGET);
        assert_eq!(code(AttachError::KernelThread { pid: 2 }), NO_TARGET);
        assert_eq!(code(AttachError::Btf { reason: String::new() }), KERNEL);
        assert_eq!(code(AttachError::RingBudget { bytes: 1, cpus: 2, least: 8192 }), USAGE);
        assert_eq!(code(AttachError::Object { reason: String::new() }), FAILURE);
        let missing = "CAP_BPF is missing".to_owned();
        assert_eq!(code(AttachError::Forbidden { path: String::new(), missing }), PRIVILEGE);
    }
}
