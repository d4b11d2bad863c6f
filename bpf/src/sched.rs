//! The scheduler's switch-in of the target's threads, for exact CPU times.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use dial9_bpf_abi::thread::slot_index;

use crate::maps::{
    THREADS, sched_tgid, task_cpu_ns_offset, task_pid_offset, task_tgid_offset,
};

/// A thread is switched in; for threads of other processes one comparison.
///
/// Hook: BTF tracepoint `sched_switch(preempt, prev, next, …)`: `next` is the
/// third argument in 5.10 and in every later kernel · Emits: nothing
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let next: *const u8 = ctx.arg(2);
    // SAFETY: `next` is a trusted `task_struct`; the offsets are this kernel's.
    let tgid = unsafe { *next.add(task_tgid_offset()).cast::<u32>() };
    if tgid != sched_tgid() {
        return 0;
    }
    // SAFETY: as above.
    let tid = unsafe { *next.add(task_pid_offset()).cast::<u32>() };
    let Some(slot) = THREADS.get_ptr_mut(slot_index(tid)) else {
        return 0;
    };
    // SAFETY: a map value; the switched-in thread does not run yet, so no
    // program of its own reads it meanwhile.
    unsafe {
        (*slot).on_tid = 0;
        (*slot).cpu_ns = *next.add(task_cpu_ns_offset()).cast::<u64>();
        (*slot).on_ns = bpf_ktime_get_ns();
        (*slot).on_tid = tid;
    }
    0
}
