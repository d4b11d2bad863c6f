//! Which thread of the target is on which CPU, and since when.

use aya_ebpf::{
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};

use crate::maps::{ON_CPU, sched_tgid, task_cpu_ns_offset, task_pid_offset, task_tgid_offset};

/// The CPU switches from one thread to another; when neither is the target's, two
/// comparisons.
///
/// Hook: BTF tracepoint `sched_switch(preempt, prev, next, …)`: `prev` and `next`
/// are the second and third argument in 5.10 and in every later kernel · Emits:
/// nothing
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let (prev, next): (*const u8, *const u8) = (ctx.arg(1), ctx.arg(2));
    if tgid(next) == sched_tgid() {
        switch_in(next);
    } else if tgid(prev) == sched_tgid() {
        switch_out();
    }
    0
}

/// The tracepoint runs on the CPU that switches, with interrupts off: no hit can
/// come between these writes.
#[inline(always)]
fn switch_in(next: *const u8) {
    // SAFETY: the helper has no precondition.
    let Some(on_cpu) = ON_CPU.get_ptr_mut(unsafe { bpf_get_smp_processor_id() }) else {
        return;
    };
    // SAFETY: a map value; `next` is a trusted `task_struct`, and the offsets are
    // this kernel's.
    unsafe {
        (*on_cpu).tid = *next.add(task_pid_offset()).cast::<u32>();
        (*on_cpu).cpu_ns = *next.add(task_cpu_ns_offset()).cast::<u64>();
        (*on_cpu).on_ns = bpf_ktime_get_ns();
    }
}

#[inline(always)]
fn switch_out() {
    // SAFETY: the helper has no precondition.
    if let Some(on_cpu) = ON_CPU.get_ptr_mut(unsafe { bpf_get_smp_processor_id() }) {
        // SAFETY: a map value.
        unsafe { (*on_cpu).tid = 0 };
    }
}

#[inline(always)]
pub fn tgid(task: *const u8) -> u32 {
    // SAFETY: a trusted `task_struct`, and this kernel's offset.
    unsafe { *task.add(task_tgid_offset()).cast::<u32>() }
}
