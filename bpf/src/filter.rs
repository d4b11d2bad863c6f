//! The first thing every program does: is this hit the target's, and whose?

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id};
use dial9_bpf_abi::{limits::NO_TARGET, record::RecordKind};

use crate::{
    emit::Hit,
    maps::{ON_CPU, target},
};

/// The hit, if it is the target's.
///
/// The scheduler's tracepoint says which thread of the target is on the CPU.
/// Where it says none, the thread has been on it since before the tracepoint
/// was, or it is another process's: a forked child, or anybody's on kernels 6.6
/// to 6.9, whose links filter badly.
///
/// A program may be preempted, or sleep, and others run on the CPU meanwhile; but it goes on
/// on the same one (kernel/trace/bpf_trace.c, `uprobe_prog_run`, and include/linux/bpf.h,
/// `bpf_prog_run_array_uprobe`, disable migration), and then its own thread is noted again.
#[inline(always)]
pub fn traced(kind: RecordKind) -> Option<Hit> {
    let target = target();
    if target == NO_TARGET {
        return None;
    }
    // SAFETY: the helper has no precondition.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if let Some(on_cpu) = ON_CPU.get(cpu)
        && on_cpu.tid != 0
    {
        return Some(Hit {
            kind,
            cpu,
            tid: on_cpu.tid,
        });
    }
    let pid_tgid = bpf_get_current_pid_tgid();
    ((pid_tgid >> 32) as u32 == target).then_some(Hit {
        kind,
        cpu,
        tid: pid_tgid as u32,
    })
}
