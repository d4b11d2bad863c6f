//! Uprobes on a runtime's worker threads: park and unpark.

use aya_ebpf::{
    helpers::{bpf_get_current_task_btf, bpf_ktime_get_ns},
    macros::uprobe,
    programs::ProbeContext,
};
use dial9_bpf_abi::record::{FLAG_CPU_BEHIND, Park, RecordKind};

use crate::{
    emit::Hit,
    filter::traced,
    maps::{ON_CPU, task_cpu_ns_offset},
    queue,
};

/// A worker is about to park.
///
/// Hook: uprobe on the call of the scheduler's park function · Reads: where it is known
/// how, the address of the worker's queue, and the queue's two ends · Emits: [`Park`],
/// 40 bytes
#[uprobe(sleepable)]
pub fn park(ctx: ProbeContext) -> u32 {
    let Some(hit) = traced(RecordKind::PARK) else {
        return 0;
    };
    let (core, queue) = queue::at_park(&ctx, hit.tid);
    worker_event(&hit, core, queue)
}

/// A worker came back from a park.
///
/// Hook: uprobe after that call · Reads: where it is known, the two ends of the worker's
/// queue · Emits: [`Park`], 40 bytes
#[uprobe(sleepable)]
pub fn unpark(_ctx: ProbeContext) -> u32 {
    let Some(hit) = traced(RecordKind::UNPARK) else {
        return 0;
    };
    let queue = queue::of_thread(hit.tid);
    worker_event(&hit, 0, queue)
}

#[inline(always)]
fn worker_event(hit: &Hit, core: u64, queue: u64) -> u32 {
    let (now_ns, cpu_ns, flags) = thread_cpu_ns(hit);
    hit.emit_at::<Park>(now_ns, flags, |record| {
        // SAFETY: `emit_at` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).cpu_ns).write(cpu_ns);
            (&raw mut (*record).core).write(core);
            (&raw mut (*record).queue).write(queue);
        }
    });
    0
}

/// The time, the CPU time of the current thread at it, both ns, and the flags that say how
/// exact that is.
///
/// The scheduler's sum at the thread's last switch-in plus the time since: half
/// of the intervals are right to 50 ns, p99 to 20 us. Without a switch-in seen,
/// the sum alone, which is brought up to date only at a switch or a tick. So it is where the
/// program was preempted meanwhile: the time since is then another switch-in's.
#[inline(always)]
fn thread_cpu_ns(hit: &Hit) -> (u64, u64, u16) {
    if let Some(on_cpu) = ON_CPU.get_ptr(hit.cpu) {
        // SAFETY: words of a map value, which the scheduler's program writes on this CPU.
        let (tid, on_ns, on_cpu_ns) = unsafe {
            (
                (&raw const (*on_cpu).tid).read_volatile(),
                (&raw const (*on_cpu).on_ns).read_volatile(),
                (&raw const (*on_cpu).cpu_ns).read_volatile(),
            )
        };
        // SAFETY: the helper has no precondition.
        let now_ns = unsafe { bpf_ktime_get_ns() };
        // SAFETY: as above.
        let is_still_on = on_ns == unsafe { (&raw const (*on_cpu).on_ns).read_volatile() };
        if tid == hit.tid && is_still_on {
            return (now_ns, on_cpu_ns + (now_ns - on_ns), 0);
        }
    }
    // SAFETY: the helper has no precondition.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: the current task is a valid `task_struct`, the offset its kernel's.
    let cpu_ns = unsafe {
        let task = bpf_get_current_task_btf().cast::<u8>();
        *task.add(task_cpu_ns_offset()).cast::<u64>()
    };
    (now_ns, cpu_ns, FLAG_CPU_BEHIND)
}
