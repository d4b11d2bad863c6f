//! The system calls that no library makes for us: `bpf(2)` for `uprobe_multi`,
//! `perf_event_open(2)` for its fallback and for the profile's clock.
//!
//! aya 0.14 cannot load a program with the attach type `BPF_TRACE_UPROBE_MULTI`,
//! nor toggle sleepable. This module and the loading half of `program.rs` go
//! away with the first aya that can (0.15, which needs rustc 1.98).

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "the kernel takes fds, sizes and counts, all small, as u32"
)]

use std::{
    ffi::{CStr, CString},
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use aya_obj::generated::{
    bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn, bpf_prog_type, perf_event_attr, perf_sw_ids,
    perf_type_id,
};

/// `BPF_F_SLEEPABLE` (include/uapi/linux/bpf.h).
const F_SLEEPABLE: u32 = 1 << 4;
/// `PERF_FLAG_FD_CLOEXEC` (`include/uapi/linux/perf_event.h`).
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
/// `ENOTSUPP` (include/linux/errno.h), which user programs have no name for.
const ENOTSUPP: i32 = 524;
/// Bytes for the verifier's complaint.
const LOG_BYTES: usize = 1 << 20;

/// What to load.
pub(crate) struct ProgramLoad<'a> {
    pub(crate) instructions: &'a [bpf_insn],
    pub(crate) license: &'a CStr,
    pub(crate) name: &'a str,
    pub(crate) hook: Hook,
    pub(crate) sleepable: bool,
}

/// What a program is to be attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// A uprobe.
    Uprobe,
    /// Uprobes, by one link.
    UprobeMulti,
    /// A perf event that samples.
    PerfEvent,
    /// The tracepoint of this type in the kernel's BTF.
    Tracepoint(u32),
}

/// Loads a program.
///
/// # Errors
/// The kernel's answer, with the verifier's log (empty where it had none).
pub(crate) fn load_program(load: &ProgramLoad<'_>) -> Result<OwnedFd, (io::Error, String)> {
    match try_load(load, None) {
        Ok(fd) => Ok(fd),
        Err(error) if !is_verifiers(&error) => Err((error, String::new())),
        Err(_) => {
            let mut log = vec![0; LOG_BYTES];
            let loaded = try_load(load, Some(&mut log));
            loaded.map_err(|error| {
                let text = String::from_utf8_lossy(&log);
                (error, text.trim_end_matches('\0').to_owned())
            })
        }
    }
}

/// Whether an answer to `BPF_PROG_LOAD` may be the verifier's, who then has a
/// log (kernel/bpf/verifier.c, `bpf_check`).
fn is_verifiers(error: &io::Error) -> bool {
    let answers = [
        libc::EACCES,
        libc::EINVAL,
        libc::E2BIG,
        libc::EFAULT,
        ENOTSUPP,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| answers.contains(&code))
}

fn try_load(load: &ProgramLoad<'_>, log: Option<&mut Vec<u8>>) -> io::Result<OwnedFd> {
    let mut attr = zeroed_attr();
    // SAFETY: all-zero is valid for every member of the union.
    let fields = unsafe { &mut attr.__bindgen_anon_3 };
    fields.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    match load.hook {
        Hook::Uprobe => {}
        Hook::UprobeMulti => {
            fields.expected_attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
        }
        Hook::PerfEvent => fields.prog_type = bpf_prog_type::BPF_PROG_TYPE_PERF_EVENT as u32,
        Hook::Tracepoint(btf_id) => {
            fields.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
            fields.expected_attach_type = bpf_attach_type::BPF_TRACE_RAW_TP as u32;
            fields.attach_btf_id = btf_id;
        }
    }
    if load.sleepable {
        fields.prog_flags = F_SLEEPABLE;
    }
    fields.insns = load.instructions.as_ptr() as u64;
    fields.insn_cnt = load.instructions.len() as u32;
    fields.license = load.license.as_ptr() as u64;
    for (to, from) in fields.prog_name.iter_mut().take(15).zip(load.name.bytes()) {
        *to = from as libc::c_char;
    }
    if let Some(log) = log {
        fields.log_buf = log.as_mut_ptr() as u64;
        fields.log_size = log.len() as u32;
        fields.log_level = 1;
    }
    bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr)
}

/// One link for all `offsets` of the file at `path`, in the process `pid` only.
///
/// # Errors
/// The kernel's answer; `EINVAL` where it does not know the link type.
pub(crate) fn link_uprobe_multi(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
    cookies: &[u64],
    pid: u32,
) -> io::Result<OwnedFd> {
    let sites = MultiSites {
        offsets,
        cookies,
        semaphores: &[],
        is_return: false,
    };
    link_multi_sites(program, path, &sites, pid)
}

/// Sites of one link.
pub(crate) struct MultiSites<'a> {
    pub(crate) offsets: &'a [u64],
    /// As many.
    pub(crate) cookies: &'a [u64],
    /// As many file offsets of counters that the kernel raises while the link lives, 0 for
    /// none; or none at all.
    pub(crate) semaphores: &'a [u64],
    /// Whether the program runs when the functions there return.
    pub(crate) is_return: bool,
}

/// As [`link_uprobe_multi`], also for returns and for sites with semaphores.
///
/// # Errors
/// The same.
pub(crate) fn link_multi_sites(
    program: BorrowedFd<'_>,
    path: &CStr,
    sites: &MultiSites<'_>,
    pid: u32,
) -> io::Result<OwnedFd> {
    /// `BPF_F_UPROBE_MULTI_RETURN` (include/uapi/linux/bpf.h).
    const RETURN: u32 = 1;
    let MultiSites {
        offsets,
        cookies,
        semaphores,
        is_return,
    } = *sites;
    let mut attr = zeroed_attr();
    // SAFETY: all-zero is valid for every member of the union.
    let link = unsafe { &mut attr.link_create };
    link.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    link.attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    // SAFETY: as above.
    let multi = unsafe { &mut link.__bindgen_anon_3.uprobe_multi };
    multi.path = path.as_ptr() as u64;
    multi.offsets = offsets.as_ptr() as u64;
    multi.cookies = cookies.as_ptr() as u64;
    multi.cnt = offsets.len() as u32;
    if !semaphores.is_empty() {
        multi.ref_ctr_offsets = semaphores.as_ptr() as u64;
    }
    if is_return {
        multi.flags = RETURN;
    }
    multi.pid = pid;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// A perf event on one offset and a link of the program to it; both live as
/// long as their fds.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn link_perf(
    program: BorrowedFd<'_>,
    pmu: u32,
    path: &CStr,
    offset: u64,
    cookie: u64,
    pid: u32,
) -> io::Result<[OwnedFd; 2]> {
    let site = PerfSite {
        offset,
        cookie,
        semaphore: 0,
        is_return: false,
    };
    link_perf_site(program, pmu, path, site, pid)
}

/// A site of a perf event.
#[derive(Clone, Copy)]
pub(crate) struct PerfSite {
    pub(crate) offset: u64,
    pub(crate) cookie: u64,
    /// File offset of a counter that the kernel raises meanwhile, 0 for none.
    pub(crate) semaphore: u64,
    /// Whether the program runs when the function there returns.
    pub(crate) is_return: bool,
}

/// As [`link_perf`], also for returns and for sites with semaphores.
///
/// # Errors
/// The same.
pub(crate) fn link_perf_site(
    program: BorrowedFd<'_>,
    pmu: u32,
    path: &CStr,
    site: PerfSite,
    pid: u32,
) -> io::Result<[OwnedFd; 2]> {
    let cookie = site.cookie;
    let event = perf_event_uprobe(pmu, path, site, pid)?;
    let link = link_perf_event(program, event.as_raw_fd(), cookie)?;
    Ok([link, event])
}

/// A link of the program to an event.
///
/// # Errors
/// The kernel's answer: `EBADF` for what is no fd, `EINVAL` where it does not know the
/// link type.
pub(crate) fn link_perf_event(
    program: BorrowedFd<'_>,
    event: RawFd,
    cookie: u64,
) -> io::Result<OwnedFd> {
    let mut attr = zeroed_attr();
    // SAFETY: all-zero is valid for every member of the union.
    let link = unsafe { &mut attr.link_create };
    link.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    link.__bindgen_anon_2.target_fd = event as u32;
    link.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
    link.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

fn perf_event_uprobe(pmu: u32, path: &CStr, site: PerfSite, pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid perf_event_attr.
    let mut attr: perf_event_attr = unsafe { mem::zeroed() };
    attr.type_ = pmu;
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attr.__bindgen_anon_4.probe_offset = site.offset;
    // include/linux/trace_events.h, `PERF_PROBE_CONFIG_IS_RETPROBE`, and kernel/events/core.c,
    // `PERF_UPROBE_REF_CTR_OFFSET_SHIFT`.
    attr.config = u64::from(site.is_return) | site.semaphore << 32;
    let none: libc::c_long = -1;
    // SAFETY: the attribute and the path outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw mut attr,
            libc::c_long::from(pid),
            none,
            none,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    answer(fd).map(own)
}

/// `PERF_EVENT_IOC_SET_BPF` (`include/uapi/linux/perf_event.h`).
const SET_BPF: libc::c_ulong = 0x4004_2408;

/// A perf event that runs the program each time a thread has used so much CPU time, and
/// the threads that it starts from now on; it lives as long as its fd.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn link_task_clock(program: BorrowedFd<'_>, tid: u32, hz: u32) -> io::Result<OwnedFd> {
    // Threads only, and not what they fork (Linux 5.13).
    let event =
        perf_event_task_clock(tid, hz, true).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => perf_event_task_clock(tid, hz, false),
            _ => Err(error),
        })?;
    // SAFETY: both descriptors are open.
    let set = unsafe { libc::ioctl(event.as_raw_fd(), SET_BPF, program.as_raw_fd()) };
    answer(set.into())?;
    Ok(event)
}

fn perf_event_task_clock(tid: u32, hz: u32, threads_only: bool) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid perf_event_attr.
    let mut attr: perf_event_attr = unsafe { mem::zeroed() };
    attr.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
    attr.config = perf_sw_ids::PERF_COUNT_SW_TASK_CLOCK as u64;
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.__bindgen_anon_1.sample_freq = hz.into();
    attr.set_freq(1);
    attr.set_inherit(1);
    attr.set_inherit_thread(threads_only.into());
    let none: libc::c_long = -1;
    // SAFETY: the attribute outlives the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw mut attr,
            libc::c_long::from(tid),
            none,
            none,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    answer(fd).map(own)
}

/// Attaches a tracing program to the tracepoint that it was loaded for.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn link_tracepoint(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = zeroed_attr();
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr)
}

/// Attaches a program to a tracepoint by its name, also one of a module.
///
/// # Errors
/// The kernel's answer; `ENOENT` where there is no such tracepoint.
pub(crate) fn link_raw_tracepoint(program: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    let mut attr = zeroed_attr();
    attr.raw_tracepoint.name = name.as_ptr() as u64;
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr)
}

/// What `BPF_LINK_CREATE` wants to know of an iterator over tasks
/// (include/uapi/linux/bpf.h, `union bpf_iter_link_info`; Linux 6.1).
#[repr(C)]
struct TaskInfo {
    tid: u32,
    pid: u32,
    pid_fd: u32,
}

/// A link of an iterator program that runs for one process only.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn link_iterator(program: BorrowedFd<'_>, pid: u32) -> io::Result<OwnedFd> {
    let info = TaskInfo {
        tid: 0,
        pid,
        pid_fd: 0,
    };
    let mut attr = zeroed_attr();
    // SAFETY: all-zero is valid for every member of the union.
    let link = unsafe { &mut attr.link_create };
    link.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    link.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
    // SAFETY: as above.
    let iterator = unsafe { &mut link.__bindgen_anon_3.__bindgen_anon_1 };
    iterator.iter_info = (&raw const info) as u64;
    iterator.iter_info_len = size_of::<TaskInfo>() as u32;
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// What runs the program of an iterator's link when it is read to its end.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn iterator(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = zeroed_attr();
    attr.iter_create.link_fd = link.as_raw_fd() as u32;
    bpf_fd(bpf_cmd::BPF_ITER_CREATE, &mut attr)
}

/// Gives an object a name in the BPF file system, which keeps it.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let mut attr = zeroed_attr();
    // SAFETY: all-zero is valid for every member of the union.
    let fields = unsafe { &mut attr.__bindgen_anon_4 };
    fields.pathname = path.as_ptr() as u64;
    fields.bpf_fd = object.as_raw_fd() as u32;
    bpf(bpf_cmd::BPF_OBJ_PIN, &mut attr).map(drop)
}

/// The object of a name in the BPF file system.
///
/// # Errors
/// The kernel's answer.
pub(crate) fn pinned(path: &CStr) -> io::Result<OwnedFd> {
    let mut attr = zeroed_attr();
    // SAFETY: all-zero is valid for every member of the union.
    let fields = unsafe { &mut attr.__bindgen_anon_4 };
    fields.pathname = path.as_ptr() as u64;
    bpf_fd(bpf_cmd::BPF_OBJ_GET, &mut attr)
}

fn zeroed_attr() -> bpf_attr {
    // SAFETY: all-zero is valid for every member of the union.
    unsafe { mem::zeroed() }
}

fn bpf_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    bpf(command, attr).map(own)
}

fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<libc::c_long> {
    // SAFETY: what the attribute points at outlives the call.
    answer(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    })
}

fn answer(value: libc::c_long) -> io::Result<libc::c_long> {
    if value < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

/// An fd that the kernel has just given.
fn own(fd: libc::c_long) -> OwnedFd {
    // SAFETY: it is ours, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}
