//! How the command ends: every failure has one documented code.
//!
//! In: an error of any package. Out: its exit code. Never: a message; that is
//! printed once, in `main`.

use std::io;

use dial9_bpf_attach::{AttachError, privilege};
use dial9_bpf_probes::ScanError;
use rustix::io::Errno;

use crate::{
    command::{capture::Unfit, dump::NotAllowed},
    declared::{ProbesError, Unresolved},
    launch::LaunchError,
    objects::NoPolls,
};

/// Done.
pub(crate) const DONE: u8 = 0;
/// A failure of our own, or a problem that `check` found.
pub(crate) const FAILURE: u8 = 1;
/// The command line is off.
pub(crate) const USAGE: u8 = 2;
/// A privilege is missing.
pub(crate) const PRIVILEGE: u8 = 3;
/// The kernel or its policy refuses.
pub(crate) const KERNEL: u8 = 4;
/// There is no such target.
pub(crate) const NO_TARGET: u8 = 5;
/// There is nothing to trace in the target.
pub(crate) const NOTHING_TO_TRACE: u8 = 6;
/// Done, but records were lost.
pub(crate) const LOST: u8 = 7;

/// The exit code of a recording that ended as it should.
pub(crate) const fn of_recording(lost: u64, undecoded: u64) -> u8 {
    if lost == 0 && undecoded == 0 {
        DONE
    } else {
        LOST
    }
}

/// Of two exit codes the one that is documented to apply.
pub(crate) fn first(one: u8, other: u8) -> u8 {
    let codes = [one, other];
    let failed = codes.into_iter().filter(|code| *code != DONE);
    failed.min().unwrap_or(DONE)
}

/// The exit code of a failure.
pub(crate) fn of_failure(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<AttachError>() {
        return of_attach(error);
    }
    if error.is::<ScanError>() || error.is::<NoPolls>() || error.is::<Unresolved>() {
        return NOTHING_TO_TRACE;
    }
    if error.is::<ProbesError>() || error.is::<Unfit>() {
        return USAGE;
    }
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return match error {
            LaunchError::Run { .. } | LaunchError::Ended { .. } => NO_TARGET,
            LaunchError::Hold { .. } => KERNEL,
        };
    }
    if error.is::<NotAllowed>() {
        return PRIVILEGE;
    }
    FAILURE
}

fn of_attach(error: &AttachError) -> u8 {
    match error {
        AttachError::NoProcess { .. }
        | AttachError::Executed { .. }
        | AttachError::NotAProcess { .. }
        | AttachError::KernelThread { .. } => NO_TARGET,
        AttachError::Forbidden { .. } | AttachError::Privilege { .. } => PRIVILEGE,
        AttachError::Link { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied
                && privilege::missing().is_some() =>
        {
            PRIVILEGE
        }
        AttachError::Kernel { source, .. }
        | AttachError::Verifier { source, .. }
        | AttachError::Link { source, .. }
            if is_exhausted(source) =>
        {
            FAILURE
        }
        AttachError::Kernel { .. }
        | AttachError::Verifier { .. }
        | AttachError::Btf { .. }
        | AttachError::PidNamespace
        | AttachError::NotKept { .. }
        | AttachError::Link { .. } => KERNEL,
        AttachError::RingBudget { .. }
        | AttachError::RingMemory { .. }
        | AttachError::DebugFile { .. } => USAGE,
        _ => FAILURE,
    }
}

/// Whether something ran out: no refusal, and no want of a privilege.
fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|code| exhausted.contains(&code))
}

#[cfg(test)]
mod tests {

    use anyhow::Context as _;
    use dial9_bpf_probes::plan::Probe;

    use super::*;

    fn code(error: impl Into<anyhow::Error>) -> u8 {
        of_failure(&error.into())
    }

    fn denied() -> io::Error {
        io::ErrorKind::PermissionDenied.into()
    }

    #[test]
    fn a_target_that_is_not_there() {
        assert_eq!(code(AttachError::NoProcess { pid: 1 }), NO_TARGET);
        assert_eq!(code(AttachError::Executed { pid: 1 }), NO_TARGET);
        assert_eq!(code(AttachError::KernelThread { pid: 2 }), NO_TARGET);
        assert_eq!(
            code(AttachError::NotAProcess { pid: 3, leader: 1 }),
            NO_TARGET
        );
    }

    #[test]
    fn a_privilege_that_is_missing() {
        let missing = "CAP_BPF is missing".to_owned();
        let (path, doing) = (String::new(), String::new());
        assert_eq!(
            code(AttachError::Forbidden {
                path,
                missing: missing.clone()
            }),
            PRIVILEGE
        );
        assert_eq!(code(AttachError::Privilege { doing, missing }), PRIVILEGE);
    }

    #[test]
    fn a_kernel_that_refuses() {
        let reason = String::new();
        assert_eq!(code(AttachError::Btf { reason }), KERNEL);
        let reason = String::new();
        assert_eq!(code(AttachError::NotKept { reason }), KERNEL);
        let doing = String::new();
        let source = denied();
        assert_eq!(code(AttachError::Kernel { doing, source }), KERNEL);
        assert_eq!(
            code(AttachError::Verifier {
                program: "wake",
                source: denied(),
                log: String::new()
            }),
            KERNEL
        );
    }

    #[test]
    fn what_ran_out_is_no_refusal() {
        for errno in [Errno::MFILE, Errno::NOMEM] {
            let (doing, source) = (String::new(), errno.into());
            assert_eq!(code(AttachError::Kernel { doing, source }), FAILURE);
        }
    }

    /// With every capability a refusal is the policy's.
    #[test]
    fn a_link_that_is_denied() {
        let error = AttachError::Link {
            probe: Probe::Wake,
            sites: 1,
            pid: 1,
            source: denied(),
        };
        let lacks = privilege::missing().is_some();
        assert_eq!(code(error), if lacks { PRIVILEGE } else { KERNEL });
    }

    #[test]
    fn usage_scan_and_our_own_failures() {
        let budget = AttachError::RingBudget {
            bytes: 1,
            cpus: 2,
            least: 8192,
        };
        assert_eq!(code(budget), USAGE);
        let (path, reason) = (String::new(), String::new());
        assert_eq!(code(AttachError::DebugFile { path, reason }), USAGE);
        let error = dial9_bpf_probes::scan(b"no program").expect_err("it is none");
        assert_eq!(code(error), NOTHING_TO_TRACE);
        let reason = String::new();
        assert_eq!(code(AttachError::Object { reason }), FAILURE);
        assert_eq!(code(denied()), FAILURE);
    }

    #[test]
    fn what_was_being_done_does_not_change_the_code() {
        let failed: Result<(), _> = Err(AttachError::NoProcess { pid: 1 });
        let error = failed
            .context("recording")
            .context("the whole")
            .unwrap_err();
        assert_eq!(of_failure(&error), NO_TARGET);
    }

    #[test]
    fn a_recording_is_done_or_has_lost_something() {
        assert_eq!(of_recording(0, 0), DONE);
        assert_eq!(of_recording(1, 0), LOST);
        assert_eq!(of_recording(0, 1), LOST);
        assert_eq!(first(DONE, LOST), LOST);
        assert_eq!(first(LOST, KERNEL), KERNEL);
        assert_eq!(first(DONE, DONE), DONE);
    }
}
