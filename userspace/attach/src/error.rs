//! What can keep a target from being traced.

use std::{error::Error as _, io};

use dial9_bpf_probes::plan::Probe;

/// Loading, attaching or reading failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The process does not exist, or not any more.
    #[error("no process {pid}")]
    NoProcess {
        /// The pid asked for.
        pid: u32,
    },
    /// The process has executed another program, or its own again.
    #[error("process {pid} has executed another program")]
    Executed {
        /// The process.
        pid: u32,
    },
    /// The id is a thread's.
    #[error("{pid} is a thread of process {leader}")]
    NotAProcess {
        /// The pid asked for.
        pid: u32,
        /// The process it belongs to.
        leader: u32,
    },
    /// The process has no executable.
    #[error("process {pid} is a kernel thread")]
    KernelThread {
        /// The pid asked for.
        pid: u32,
    },
    /// We are in a pid namespace, where the kernel's ids are not ours.
    #[error(
        "dial9-bpf is in a pid namespace of its own, and the kernel counts by the host's pids: \
         run it on the host, or in a container with the host's pid namespace"
    )]
    PidNamespace,
    /// We may not look at the process.
    #[error("not permitted to open {path}: {missing}")]
    Forbidden {
        /// The file of /proc that was refused.
        path: String,
        /// The capabilities that we lack.
        missing: String,
    },
    /// The kernel refused for want of a capability.
    #[error("not permitted to {doing}: {missing}")]
    Privilege {
        /// What was refused.
        doing: String,
        /// The capabilities that we lack.
        missing: String,
    },
    /// The kernel, or its policy, cannot do it.
    #[error("the kernel refused to {doing}")]
    Kernel {
        /// What was refused.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The verifier refused a program.
    #[error("the kernel refused to load program {program}: {log}")]
    Verifier {
        /// The program.
        program: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// The last line of the verifier's log.
        log: String,
    },
    /// The kernel's type information is absent or lacks a field.
    #[error("the kernel's BTF is not usable: {reason}")]
    Btf {
        /// What is wrong with it.
        reason: String,
    },
    /// The sites of a probe could not be attached.
    #[error("could not attach {} to {sites} sites of process {pid}", .probe.name())]
    Link {
        /// The probe.
        probe: Probe,
        /// How many sites it has.
        sites: usize,
        /// The target.
        pid: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Sites of declared probes could not be attached.
    #[error("could not attach declared probes to {sites} sites of {file}")]
    Declared {
        /// How many sites they have there.
        sites: usize,
        /// The file.
        file: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file of /proc or /sys did not read as expected.
    #[error("could not read {path}")]
    Proc {
        /// The file.
        path: String,
        /// What happened.
        source: io::Error,
    },
    /// A file is not the program's debug file.
    #[error("{path} is no debug file of the program: {reason}")]
    DebugFile {
        /// The file.
        path: String,
        /// What tells.
        reason: String,
    },
    /// The embedded kernel object does not fit this loader.
    #[error("the embedded kernel object is not usable: {reason}")]
    Object {
        /// What is wrong with it.
        reason: String,
    },
    /// Rings cannot outlive a recorder here.
    #[error("cannot keep the rings: {reason}")]
    NotKept {
        /// Why not.
        reason: String,
    },
    /// Another recorder keeps the target's rings.
    #[error("another recorder keeps the rings of process {pid}")]
    AlreadyKept {
        /// The target.
        pid: u32,
    },
    /// The ring budget does not give every CPU one page.
    #[error("{bytes} bytes of rings are too few: {cpus} CPUs need {least} bytes")]
    RingBudget {
        /// The budget asked for.
        bytes: u64,
        /// CPUs online.
        cpus: usize,
        /// The least budget that works.
        least: u64,
    },
    /// The ring budget is more than half of the memory that is free.
    #[error("{bytes} bytes of rings are too many: {available} bytes of memory are available")]
    RingMemory {
        /// The budget asked for.
        bytes: u64,
        /// Memory that can be had without swapping, bytes.
        available: u64,
    },
}

impl AttachError {
    /// The error and its causes on one line.
    pub(crate) fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_full_has_each_cause_once() {
        let error = AttachError::Kernel {
            doing: "create the BPF maps".to_owned(),
            source: io::Error::other("for a reason"),
        };
        let text = "the kernel refused to create the BPF maps: for a reason";
        assert_eq!(error.in_full(), text);
    }
}
