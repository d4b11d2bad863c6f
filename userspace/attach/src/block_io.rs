//! The target's block I/O, and its waits for files to be synced.
//!
//! In: the loaded object. Out: links, and what the kernel's own threads have submitted.
//! Never: half of the tracepoints: an I/O that began would not end.

use std::os::fd::{AsFd as _, OwnedFd};

use aya::{
    Btf, BtfError, Ebpf,
    maps::{MapData, PerCpuArray},
    programs::{ProgramError, RawTracePoint},
};
use dial9_bpf_abi::block_io::KernelIoCount;

use crate::{
    Abilities, AttachError, Options, Target, Tracer,
    btf::Offsets,
    maps::absent,
    program::{BLOCK_BIO_QUEUE, BLOCK_IO, SYNCS, refused},
    rings::os_error,
    sys,
    tracepoint::attach_tracepoint,
    tracer::map_unreadable,
};

/// What is absent where the kernel refuses any of it.
pub(crate) const REQUESTS: &str = "block-io";
/// What is absent where no file system tells syncs.
pub(crate) const SYNCED: &str = "syncs";

/// Room for the records of a tracer that records none, bytes.
const NO_RECORDS_BYTES: u64 = 4 << 20;

/// What the kernel's own threads have submitted while hits counted; whose it is, they do
/// not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelIo {
    /// Reads, and their bytes.
    pub reads: [u64; 2],
    /// Writes, and their bytes.
    pub writes: [u64; 2],
    /// Whatever is neither.
    pub others: [u64; 2],
}

/// What of it would be absent, by name, and why. The kernel tells when it is asked: the
/// programs are at the tracepoints for a moment, and record nothing.
///
/// # Errors
/// As [`Abilities::probe`] and [`Tracer::load`].
pub fn missing(target: &Target) -> Result<Vec<(&'static str, String)>, AttachError> {
    let options = Options {
        io: true,
        ..Options::bare(NO_RECORDS_BYTES, Abilities::probe(None)?)
    };
    let tracer = Tracer::load(target, options)?;
    let is_of_io = |(name, _): &&(&str, String)| [REQUESTS, SYNCED].contains(name);
    Ok(tracer.absent().iter().filter(is_of_io).cloned().collect())
}

/// Attaches all programs on block I/O, or none; otherwise says why the kernel or its
/// policy refuses. What ends an I/O is there before what begins it.
pub(crate) fn attach(
    ebpf: &mut Ebpf,
    btf: &Result<Btf, BtfError>,
    offsets: &Offsets,
) -> Result<Vec<(String, OwnedFd)>, String> {
    if let Err(lacking) = &offsets.io {
        return Err(lacking.in_full());
    }
    let links = BLOCK_IO
        .into_iter()
        .map(|name| Ok((name.to_owned(), attach_tracepoint(ebpf, btf, name)?)));
    links.collect()
}

/// The same for syncs, whose tracepoints may be a module's: only ext4 has both.
pub(crate) fn attach_syncs(
    ebpf: &mut Ebpf,
    offsets: &Offsets,
) -> Result<Vec<(String, OwnedFd)>, String> {
    if let Err(lacking) = &offsets.io {
        return Err(lacking.in_full());
    }
    let links = SYNCS
        .into_iter()
        .map(|name| Ok((name.to_owned(), attach_raw(ebpf, name)?)));
    links.collect()
}

fn attach_raw(ebpf: &mut Ebpf, name: &str) -> Result<OwnedFd, String> {
    let doing = format!("attach to {name}");
    let failed = |error: ProgramError| refused(&doing, os_error(&error)).in_full();
    let program: &mut RawTracePoint = ebpf
        .program_mut(name)
        .ok_or_else(|| absent(name).to_string())?
        .try_into()
        .map_err(failed)?;
    program.load().map_err(failed)?;
    let program = program.fd().map_err(failed)?;
    let link = sys::link_raw_tracepoint(program.as_fd(), name);
    link.map_err(|error| refused(&doing, error).in_full())
}

impl Tracer {
    /// What the kernel's own threads have submitted so far; `None` where block I/O is not
    /// recorded.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the counters cannot be read.
    pub fn kernel_io(&self) -> Result<Option<KernelIo>, AttachError> {
        if !self
            .tracepoints
            .iter()
            .any(|(name, _)| name == BLOCK_BIO_QUEUE)
        {
            return Ok(None);
        }
        let counters: PerCpuArray<&MapData, u64> = self
            .maps
            .get("KERNEL_IO")?
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        let sum = |count: KernelIoCount| {
            let values = counters.get(&(count as u32), 0);
            let values = values.map_err(|error| map_unreadable(&error))?;
            Ok::<u64, AttachError>(values.iter().sum())
        };
        Ok(Some(KernelIo {
            reads: [sum(KernelIoCount::Reads)?, sum(KernelIoCount::ReadBytes)?],
            writes: [sum(KernelIoCount::Writes)?, sum(KernelIoCount::WriteBytes)?],
            others: [sum(KernelIoCount::Others)?, sum(KernelIoCount::OtherBytes)?],
        }))
    }
}
