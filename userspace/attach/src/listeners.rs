//! The target's listening sockets, and how full their queues are.
//!
//! In: the loaded object, then calls at times. Out: links; records in the rings. Never:
//! a socket that the target has no file of, but one that it gave away since.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, OwnedFd},
};

use aya::{
    Btf, BtfError, Ebpf,
    programs::{Iter, ProgramError},
};

use crate::{
    AttachError, Tracer,
    btf::Offsets,
    maps::absent,
    program::{ACCEPT_QUEUES, INET_SOCK_SET_STATE, TASK_FILE, refused},
    rings::os_error,
    sys,
    tracepoint::attach_tracepoint,
};

/// What is absent where the kernel refuses any of it.
pub(crate) const LISTENERS: &str = "accept-queues";
/// The program writes nothing: a read says that it is through.
const READ_BYTES: usize = 64;

/// Attaches both programs, or none; otherwise says why the kernel or its policy refuses.
pub(crate) fn attach(
    ebpf: &mut Ebpf,
    btf: &Result<Btf, BtfError>,
    offsets: &Offsets,
    pid: u32,
) -> Result<[(String, OwnedFd); 2], String> {
    if let Err(lacking) = &offsets.net {
        return Err(lacking.in_full());
    }
    let iterator = attach_iterator(ebpf, btf, pid)?;
    let arrivals = attach_tracepoint(ebpf, btf, INET_SOCK_SET_STATE)?;
    Ok([
        (ACCEPT_QUEUES.to_owned(), iterator),
        (INET_SOCK_SET_STATE.to_owned(), arrivals),
    ])
}

fn attach_iterator(
    ebpf: &mut Ebpf,
    btf: &Result<Btf, BtfError>,
    pid: u32,
) -> Result<OwnedFd, String> {
    let btf = btf.as_ref().map_err(ToString::to_string)?;
    let doing = format!("attach to {TASK_FILE}");
    let failed = |error: ProgramError| refused(&doing, os_error(&error)).in_full();
    let program: &mut Iter = ebpf
        .program_mut(ACCEPT_QUEUES)
        .ok_or_else(|| absent(ACCEPT_QUEUES).to_string())?
        .try_into()
        .map_err(failed)?;
    program.load(TASK_FILE, btf).map_err(failed)?;
    let program = program.fd().map_err(failed)?;
    let link = sys::link_iterator(program.as_fd(), pid);
    link.map_err(|error| refused(&doing, error).in_full())
}

impl Tracer {
    /// Has the kernel look through the target's files for listening sockets, which costs
    /// 0.4 ms at 900 files: each is known from then on, and a record has its queue, once
    /// hits count. Nothing where that was not wanted or is refused.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] with what the kernel answered.
    pub fn read_accept_queues(&self) -> Result<(), AttachError> {
        let mut links = self.tracepoints.iter();
        let Some((_, link)) = links.find(|(name, _)| name == ACCEPT_QUEUES) else {
            return Ok(());
        };
        read_through(link).map_err(|error| refused("look for listening sockets", error))
    }
}

fn read_through(link: &OwnedFd) -> io::Result<()> {
    let mut iterator = File::from(sys::iterator(link.as_fd())?);
    let mut nothing = [0; READ_BYTES];
    loop {
        match iterator.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // It has looked at very many objects (kernel/bpf/bpf_iter.c, `bpf_seq_read`).
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
