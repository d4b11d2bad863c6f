//! The end of a program by exec, the target's or that of a process that it forked:
//! the process stays, with its pid.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::{
    fork::executed,
    maps::{end_hits, sched_tgid},
    sched::tgid,
};

/// A process has begun to run another program, or the same again; of the threads
/// before, only the one that called exec is left, and nothing has run yet.
///
/// Hook: BTF tracepoint `sched_process_exec(p, old_pid, bprm)`, where `p` has the
/// process's id whichever thread called exec (fs/exec.c, `de_thread`) · Emits:
/// nothing
#[btf_tracepoint(function = "sched_process_exec")]
pub fn sched_process_exec(ctx: BtfTracePointContext) -> i32 {
    let pid = tgid(ctx.arg(0));
    if pid == sched_tgid() {
        end_hits();
    } else {
        executed(pid);
    }
    0
}
