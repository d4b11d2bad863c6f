//! Programs at the kernel's own tracepoints.
//!
//! In: a loaded object. Out: links, and how often the kernel did not run a program. Never:
//! a program at a tracepoint of another name than its own.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use aya::{
    Btf, BtfError, Ebpf,
    programs::{BtfTracePoint, ProgramError},
};

use crate::{
    Tracer,
    block_io::{self, REQUESTS, SYNCED},
    btf::Offsets,
    listeners::{self, LISTENERS},
    maps::absent,
    program::refused,
    rings::os_error,
    sys,
};

impl Tracer {
    /// How often the kernel has not run a program, by program or probe, for those where it
    /// has not; nothing is known of a tracer that was taken over.
    ///
    /// It does not run a program that is being run on the same CPU, as where one may be
    /// preempted (`__bpf_trace_run` in `kernel/trace/bpf_trace.c`). What the program would
    /// have seen is not known, nor whether it was the target's.
    ///
    /// # Errors
    /// Those of procfs.
    pub fn missed_runs(&self) -> io::Result<Vec<(&str, u64)>> {
        let tracepoints = self.tracepoint_programs.iter();
        let tracepoints = tracepoints.map(|(name, program)| (name.as_str(), program));
        let probes = self.programs.iter();
        let probes = probes.map(|(probe, program)| (probe.name(), program));
        let mut missed = Vec::new();
        for (name, program) in tracepoints.chain(probes) {
            let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
            let count = misses_of(&fs::read_to_string(path)?);
            if count > 0 {
                missed.push((name, count));
            }
        }
        Ok(missed)
    }
}

/// Of what the kernel says of a program's descriptor (kernel/bpf/syscall.c,
/// `bpf_prog_show_fdinfo`; since Linux 5.12).
fn misses_of(fdinfo: &str) -> u64 {
    let mut lines = fdinfo.lines();
    let count = lines.find_map(|line| line.strip_prefix("recursion_misses:"));
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// The programs of those links, to ask after them.
pub(crate) fn programs_of(ebpf: &Ebpf, links: &[(String, OwnedFd)]) -> Vec<(String, OwnedFd)> {
    let program = |name: &str| {
        let program: &BtfTracePoint = ebpf.program(name)?.try_into().ok()?;
        program.fd().ok()?.as_fd().try_clone_to_owned().ok()
    };
    let programs = links
        .iter()
        .map(|(name, _)| Some((name.clone(), program(name)?)));
    programs.flatten().collect()
}

/// Attaches what serves a signal only as a whole; what cannot be had is absent.
pub(crate) fn attach_whole(
    (ebpf, btf, offsets): (&mut Ebpf, &Result<Btf, BtfError>, &Offsets),
    (pid, net, io): (u32, bool, bool),
    absent: &mut Vec<(&'static str, String)>,
) -> Vec<(String, OwnedFd)> {
    let mut wanted = Vec::new();
    if net {
        let links = listeners::attach(ebpf, btf, offsets, pid);
        wanted.push((LISTENERS, links.map(Vec::from)));
    }
    if io {
        wanted.push((REQUESTS, block_io::attach(ebpf, btf, offsets)));
        wanted.push((SYNCED, block_io::attach_syncs(ebpf, offsets)));
    }
    let mut links = Vec::new();
    for (name, found) in wanted {
        match found {
            Ok(found) => links.extend(found),
            Err(reason) => absent.push((name, reason)),
        }
    }
    links
}

/// Attaches the program to the tracepoint of the same name; otherwise says why the
/// kernel or its policy refuses.
pub(crate) fn attach_tracepoint(
    ebpf: &mut Ebpf,
    btf: &Result<Btf, BtfError>,
    name: &str,
) -> Result<OwnedFd, String> {
    let btf = btf.as_ref().map_err(ToString::to_string)?;
    let doing = format!("attach to {name}");
    let failed = |error: ProgramError| refused(&doing, os_error(&error)).in_full();
    let program: &mut BtfTracePoint = ebpf
        .program_mut(name)
        .ok_or_else(|| absent(name).to_string())?
        .try_into()
        .map_err(failed)?;
    program.load(name, btf).map_err(failed)?;
    let program = program.fd().map_err(failed)?;
    sys::link_tracepoint(program.as_fd()).map_err(|error| refused(&doing, error).in_full())
}

#[cfg(test)]
mod tests {
    use super::misses_of;

    #[test]
    fn misses_are_read_where_they_are_told() {
        let fdinfo = "pos:\t0\nprog_type:\t26\nrun_cnt:\t5\nrecursion_misses:\t12\n";
        assert_eq!(misses_of(fdinfo), 12);
        assert_eq!(misses_of("pos:\t0\n"), 0);
    }
}
