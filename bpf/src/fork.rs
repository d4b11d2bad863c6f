//! The processes that the target forks, and those that these fork: which there are,
//! until they execute a program or end.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use core::intrinsics::{AtomicOrdering, atomic_xadd};
use dial9_bpf_abi::fork::ForkCount;

use crate::{
    maps::{FORKED, FORKS, sched_tgid, task_mm_offset},
    sched::tgid,
};

/// A thread or a process begins; noted if it is a process with a copy of the
/// target's memory.
///
/// Hook: BTF tracepoint `sched_process_fork(parent, child)`, which runs in the
/// parent before the child does (kernel/fork.c, `kernel_clone`) · Emits: nothing
#[btf_tracepoint(function = "sched_process_fork")]
pub fn sched_process_fork(ctx: BtfTracePointContext) -> i32 {
    let (parent, child): (*const u8, *const u8) = (ctx.arg(0), ctx.arg(1));
    let (from, pid) = (tgid(parent), tgid(child));
    if pid == from || memory(child) == memory(parent) {
        return 0;
    }
    // SAFETY: the value is not read.
    if from != sched_tgid() && unsafe { FORKED.get(from) }.is_none() {
        return 0;
    }
    // SAFETY: the helper has no precondition.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    count(match FORKED.insert(pid, now_ns, 0) {
        Ok(()) => ForkCount::Forked,
        Err(_) => ForkCount::Unkept,
    });
    0
}

/// A process has executed a program: it is no copy any more.
#[inline(always)]
pub fn executed(pid: u32) {
    if FORKED.remove(pid).is_ok() {
        count(ForkCount::Executed);
    }
}

/// A process has ended.
#[inline(always)]
pub fn ended(pid: u32) {
    // Most are none of the target's.
    let _ = FORKED.remove(pid);
}

#[inline(always)]
fn count(of: ForkCount) {
    if let Some(count) = FORKS.get_ptr_mut(of as u32) {
        // SAFETY: the pointer is to a map value; the add is atomic.
        unsafe {
            atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(count, 1);
        }
    }
}

/// `mm`, which threads share, and a process between `vfork` and its exec.
#[inline(always)]
fn memory(task: *const u8) -> u64 {
    // SAFETY: a trusted `task_struct`, and this kernel's offset.
    unsafe { *task.add(task_mm_offset()).cast::<u64>() }
}
