//! Which thread of the target is on which CPU, and since when.

use aya_ebpf::{
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};

use crate::{
    away,
    maps::{
        ON_CPU, records_sched, sched_has_state, sched_tgid, task_cpu_ns_offset, task_pid_offset,
        task_state_offset, task_tgid_offset,
    },
    stack,
};

/// The CPU switches from one thread to another; when neither is the target's, two
/// comparisons.
///
/// Hook: BTF tracepoint `sched_switch(preempt, prev, next, prev_state)`: `prev` and
/// `next` are the second and third argument in 5.10 and in every later kernel, the
/// fourth came with 5.18 · Emits: what `away` and `stack` do
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let (prev, next): (*const u8, *const u8) = (ctx.arg(1), ctx.arg(2));
    let (is_prev, is_next) = (tgid(prev) == sched_tgid(), tgid(next) == sched_tgid());
    if !is_prev && !is_next {
        return 0;
    }
    // SAFETY: the helper has no precondition.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if is_prev {
        let state = state(&ctx, prev);
        if records_sched() {
            away::leave(prev, state, cpu);
        }
        stack::leave(&ctx, away::pid(prev), state);
    }
    if is_next {
        switch_in(next, cpu);
    } else {
        switch_out(cpu);
    }
    0
}

/// The tracepoint runs on the CPU that switches, with interrupts off: no hit can
/// come between these writes.
#[inline(always)]
fn switch_in(next: *const u8, cpu: u32) {
    let Some(on_cpu) = ON_CPU.get_ptr_mut(cpu) else {
        return;
    };
    // SAFETY: the helper has no precondition.
    let on_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a map value; `next` is a trusted `task_struct`, and the offsets are
    // this kernel's.
    unsafe {
        (*on_cpu).tid = *next.add(task_pid_offset()).cast::<u32>();
        (*on_cpu).cpu_ns = *next.add(task_cpu_ns_offset()).cast::<u64>();
        (*on_cpu).on_ns = on_ns;
    }
    if records_sched() {
        away::come_back(next, on_ns, cpu);
    }
}

#[inline(always)]
fn switch_out(cpu: u32) {
    if let Some(on_cpu) = ON_CPU.get_ptr_mut(cpu) {
        // SAFETY: a map value.
        unsafe { (*on_cpu).tid = 0 };
    }
}

/// The state in which a thread leaves: 0 where it could have run on.
///
/// A thread that is preempted on its way to sleep has the state in which it wants to
/// sleep, and goes on without a wake (kernel/sched/core.c, `__schedule`).
#[inline(always)]
fn state(ctx: &BtfTracePointContext, prev: *const u8) -> u32 {
    let is_preempted: u32 = ctx.arg(0);
    if is_preempted & 1 == 1 {
        return 0;
    }
    if sched_has_state() {
        return ctx.arg(3);
    }
    // SAFETY: a trusted `task_struct`, and this kernel's offset.
    unsafe { *prev.add(task_state_offset()).cast::<u32>() }
}

#[inline(always)]
pub fn tgid(task: *const u8) -> u32 {
    // SAFETY: a trusted `task_struct`, and this kernel's offset.
    unsafe { *task.add(task_tgid_offset()).cast::<u32>() }
}
