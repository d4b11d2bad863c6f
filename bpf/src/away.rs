//! How long the target's threads are off their CPUs, why, and who wakes them.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{
        bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_probe_read_kernel,
        generated::bpf_task_pt_regs,
    },
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use dial9_bpf_abi::{
    limits::NO_TARGET,
    loss::LossCause,
    record::{FLAG_UNTOLD, FLAG_WAKER, FLAG_WOKEN_BY_INTERRUPT, OffCpu, RecordKind},
    thread::{Away, ON, slot_index},
};

use crate::{
    emit::Hit,
    maps::{
        AWAY, regs_orig_ax_offset, sched_tgid, target, task_flags_offset, task_pid_offset,
        task_stack_offset,
    },
    sched::tgid,
};

/// `TASK_DEAD` (include/linux/sched.h): the thread's last switch.
const DEAD: u32 = 0x80;
/// `PF_KTHREAD` (include/linux/sched.h).
pub const KERNEL_THREAD: u32 = 0x0020_0000;
/// `THREAD_SIZE` of x86-64 (arch/x86/include/asm/page_64_types.h); twice that with
/// KASAN, where a deep stack is then taken for an interrupt's.
const STACK_BYTES: u64 = 16 << 10;

/// A thread of the target leaves its CPU in a state.
///
/// Called with interrupts off, on that CPU.
#[inline(always)]
pub fn leave(prev: *const u8, state: u32, cpu: u32) {
    if target() == NO_TARGET {
        return;
    }
    let tid = pid(prev);
    let Some(away) = AWAY.get_ptr_mut(slot_index(tid)) else {
        return;
    };
    // SAFETY: a map value. A thread's slot is written by its switches, which are one
    // after the other, and by who wakes it, who writes other fields.
    let away = unsafe { &mut *away };
    // SAFETY: the helper has no precondition.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if is_off(away) {
        if away.tid == tid {
            tell(away, (now_ns, cpu), FLAG_UNTOLD);
        } else {
            let (kind, tid) = (RecordKind::OFF_CPU, away.tid);
            Hit { kind, cpu, tid }.lose(LossCause::SlotTaken);
        }
        away.wake_ns = 0;
    }
    away.tid = tid;
    away.state = state;
    away.off_ns = if state & DEAD == 0 { now_ns } else { 0 };
}

/// A thread of the target is on a CPU again since `on_ns`.
///
/// One switch of an interval may be untold: on a virtual machine with 6.18 no tracepoint
/// fires while process 1 is current, which hid 65 of 81,735 switches from all listeners.
#[inline(always)]
pub fn come_back(next: *const u8, on_ns: u64, cpu: u32) {
    let tid = pid(next);
    let Some(away) = AWAY.get_ptr_mut(slot_index(tid)) else {
        return;
    };
    // SAFETY: as in `leave`.
    let away = unsafe { &mut *away };
    if away.tid != tid {
        return;
    }
    let was = *away;
    away.wake_ns = 0;
    if target() == NO_TARGET {
        away.off_ns = 0;
        return;
    }
    away.off_ns = ON;
    let flags = match was.off_ns {
        0 => return,
        ON => FLAG_UNTOLD,
        _ if was.wake_ns == 0 => 0,
        _ => was.flags as u16,
    };
    tell(&was, (on_ns, cpu), flags);
}

#[inline(always)]
fn is_off(away: &Away) -> bool {
    away.off_ns != 0 && away.off_ns != ON
}

/// Emits: [`OffCpu`], 40 bytes
#[inline(always)]
fn tell(away: &Away, (on_ns, cpu): (u64, u32), flags: u16) {
    let (kind, tid) = (RecordKind::OFF_CPU, away.tid);
    Hit { kind, cpu, tid }.emit_at::<OffCpu>(on_ns, flags, |record| {
        let waker = if flags & FLAG_WAKER == 0 {
            0
        } else {
            away.waker
        };
        // SAFETY: `emit_at` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).off_ns).write(away.off_ns);
            (&raw mut (*record).wake_ns).write(away.wake_ns);
            (&raw mut (*record).state).write(away.state);
            (&raw mut (*record).waker).write(waker);
        }
    });
}

/// A thread is woken; when it is not the target's, one comparison.
///
/// Hook: BTF tracepoint `sched_waking(p)`, which runs in who wakes, unlike
/// `sched_wakeup`, which may run on the CPU of the thread that is woken
/// (kernel/sched/core.c, `try_to_wake_up`) · Emits: nothing
#[btf_tracepoint(function = "sched_waking")]
pub fn sched_waking(ctx: BtfTracePointContext) -> i32 {
    let woken: *const u8 = ctx.arg(0);
    if tgid(woken) != sched_tgid() {
        return 0;
    }
    let tid = pid(woken);
    let Some(away) = AWAY.get_ptr_mut(slot_index(tid)) else {
        return 0;
    };
    // SAFETY: as in `leave`.
    let away = unsafe { &mut *away };
    if away.tid != tid {
        if is_off(away) {
            return 0;
        }
        away.tid = tid;
        away.off_ns = 0;
    }
    let (waker, flags) = waker(&ctx);
    away.waker = waker;
    away.flags = u32::from(flags);
    // SAFETY: the helper has no precondition.
    away.wake_ns = unsafe { bpf_ktime_get_ns() };
    0
}

/// The thread that wakes, where one does by a system call or as the kernel's own.
///
/// The current thread is also there when an interrupt wakes somebody, and has
/// nothing to do with it. Interrupts of the kernel, and soft ones, run on a stack of the
/// CPU's; the context of the tracepoint is on the stack that its caller is on.
/// Interrupts of user code stay on the thread's stack
/// (arch/x86/include/asm/irq_stack.h), but its registers there are not those of a
/// system call: `orig_ax` is -1 (arch/x86/entry/entry_64.S).
#[inline(always)]
fn waker(ctx: &BtfTracePointContext) -> (u32, u16) {
    let here = ctx.as_ptr();
    // SAFETY: reading a local variable; the verifier does arithmetic on what was read
    // and none on pointers.
    let Ok(here) = (unsafe { bpf_probe_read_kernel((&raw const here).cast::<u64>()) }) else {
        return (0, 0);
    };
    // SAFETY: the current task is a valid `task_struct`, and the offsets are this
    // kernel's.
    unsafe {
        let task = bpf_get_current_task_btf().cast::<u8>();
        let stack = *task.add(task_stack_offset()).cast::<u64>();
        if here.wrapping_sub(stack) >= STACK_BYTES {
            return (0, FLAG_WOKEN_BY_INTERRUPT);
        }
        let flags = *task.add(task_flags_offset()).cast::<u32>();
        if flags & KERNEL_THREAD == 0 {
            let regs = bpf_task_pt_regs(task.cast()) as *const u8;
            if *regs.add(regs_orig_ax_offset()).cast::<i64>() == -1 {
                return (0, FLAG_WOKEN_BY_INTERRUPT);
            }
        }
        (pid(task), FLAG_WAKER)
    }
}

#[inline(always)]
pub fn pid(task: *const u8) -> u32 {
    // SAFETY: a trusted `task_struct`, and this kernel's offset.
    unsafe { *task.add(task_pid_offset()).cast::<u32>() }
}
