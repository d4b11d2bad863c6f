//! Where the target's threads are: at each tick of the profile, and where they leave
//! their CPUs to wait inside polls.
//!
//! A stack is put together in the CPU's scratch and copied into the ring of stacks, which
//! no other record is in. It is no record of its thread: a lost one makes no gap.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_current_task_btf, bpf_get_smp_processor_id,
        bpf_ktime_get_ns,
        generated::{
            bpf_get_current_comm, bpf_get_stack, bpf_probe_read_user, bpf_ringbuf_output,
            bpf_task_pt_regs,
        },
    },
    macros::perf_event,
    programs::{BtfTracePointContext, PerfEventContext},
};
use core::ffi::c_void;
use dial9_bpf_abi::{
    limits::NO_TARGET,
    loss::LossCause,
    record::RecordKind,
    stack::{
        BURST, FLAG_BREAKPOINT, FLAG_NO_USER, KERNEL_FRAMES, OFF_CPU_BYTES, PACE_NS, PAGE_BYTES,
        SAMPLE_BYTES, Scratch, Stack,
    },
    thread::slot_index,
};

use crate::{
    emit::{Hit, NO_WAKEUP},
    maps::{
        PACE, POLLING, SCRATCH, STACKS, records_off_cpu_stacks, regs_bp_offset, regs_ip_offset,
        regs_sp_offset, target, task_flags_offset,
    },
};

/// `PF_IO_WORKER` (include/linux/sched.h): a thread of `io_uring`, which runs no user code.
const IO_WORKER: u32 = 0x10;
/// `TASK_INTERRUPTIBLE` and `TASK_UNINTERRUPTIBLE` (include/linux/sched.h).
const WAITS: u32 = 1 | 2;
/// Frames of a switch that are ours: this program, `bpf_trace_run4`, and what the tracepoint
/// calls (kernel/trace/bpf_trace.c). On 6.18 `__schedule` is left out with them.
const OF_TRACEPOINT: u64 = 3;
/// `int3`, the kernel's breakpoint on x86-64.
const BREAKPOINT: u8 = 0xcc;
/// Most bytes of a kernel stack.
const KERNEL_BYTES: u32 = (KERNEL_FRAMES * 8) as u32;

/// The clock of the profile has ticked while a thread ran.
///
/// Hook: perf event, task-clock, on each thread · Reads: the user stack, up to 32 KiB ·
/// Emits: [`Stack`] and what follows
#[perf_event]
pub fn cpu_sample(ctx: PerfEventContext) -> u32 {
    let target = target();
    let pid_tgid = bpf_get_current_pid_tgid();
    // A child inherits the event from the thread that forks it.
    if target == NO_TARGET || (pid_tgid >> 32) as u32 != target {
        return 0;
    }
    let taken = Taken {
        ctx: ctx.as_ptr(),
        kind: RecordKind::CPU_SAMPLE,
        tid: pid_tgid as u32,
        skipped: 0,
    };
    taken.emit::<SAMPLE_BYTES>();
    0
}

/// A thread begins a poll: where it waits from now on is of interest.
#[inline(always)]
pub fn note_poll(tid: u32, sp: u64) {
    if !records_off_cpu_stacks() {
        return;
    }
    if let Some(polling) = POLLING.get_ptr_mut(slot_index(tid)) {
        // SAFETY: a map value; a thread's slot is written by the thread.
        unsafe {
            (*polling).tid = tid;
            (*polling).sp = sp;
        }
    }
}

/// It ends one, if the stack pointer is that of its last.
#[inline(always)]
pub fn note_poll_end(tid: u32, sp: u64) {
    if !records_off_cpu_stacks() {
        return;
    }
    if let Some(polling) = POLLING.get_ptr_mut(slot_index(tid)) {
        // SAFETY: as above.
        unsafe {
            if (*polling).tid == tid && (*polling).sp == sp {
                (*polling).sp = 0;
            }
        }
    }
}

/// The current thread leaves its CPU to wait: inside a poll its stack is taken, unless the
/// CPU has taken many.
#[inline(always)]
pub fn leave(ctx: &BtfTracePointContext, tid: u32, state: u32) {
    if !records_off_cpu_stacks() || state & WAITS == 0 || target() == NO_TARGET {
        return;
    }
    let Some(polling) = POLLING.get(slot_index(tid)) else {
        return;
    };
    // SAFETY: the helper has no precondition.
    if polling.sp == 0 || polling.tid != tid || !is_in_pace(unsafe { bpf_ktime_get_ns() }) {
        return;
    }
    let taken = Taken {
        ctx: ctx.as_ptr(),
        kind: RecordKind::OFF_CPU_STACK,
        tid,
        skipped: OF_TRACEPOINT,
    };
    taken.emit::<OFF_CPU_BYTES>();
}

/// Whether the CPU may take one more; counts it if not.
#[inline(always)]
fn is_in_pace(now_ns: u64) -> bool {
    let Some(pace) = PACE.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: this CPU's map value; interrupts are off at a switch.
    let pace = unsafe { &mut *pace };
    let earliest = now_ns - (BURST - 1) * PACE_NS;
    let next_ns = if pace.next_ns < earliest {
        earliest
    } else {
        pace.next_ns
    };
    if next_ns > now_ns {
        pace.left_out += 1;
        return false;
    }
    pace.next_ns = next_ns + PACE_NS;
    true
}

/// Whose stack is taken, and why.
struct Taken {
    ctx: *mut c_void,
    kind: RecordKind,
    tid: u32,
    /// Frames of the kernel's stack that are left out at the leaf.
    skipped: u64,
}

impl Taken {
    #[inline(always)]
    fn emit<const BYTES: usize>(&self) {
        // SAFETY: the helper has no precondition. Programs do not migrate.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        // Of no thread, as far as gaps go.
        let hit = Hit {
            kind: self.kind,
            cpu,
            tid: 0,
        };
        let Some(scratch) = SCRATCH.get_ptr_mut(cpu) else {
            return hit.lose(LossCause::NoRing);
        };
        // SAFETY: a map value of this CPU. Nothing that takes a stack interrupts another
        // that does: a switch has interrupts off, and a tick is an interrupt.
        let bytes = unsafe { self.fill::<BYTES>(&mut *scratch, cpu) };
        let ring = (&raw const STACKS).cast_mut().cast::<c_void>();
        // SAFETY: the scratch has as many bytes.
        let refused = unsafe { bpf_ringbuf_output(ring, scratch.cast(), bytes, NO_WAKEUP) };
        if refused != 0 {
            hit.lose(LossCause::RingFull);
        }
    }

    /// Puts a stack together; returns its bytes.
    ///
    /// # Safety
    /// The scratch is nobody else's.
    #[inline(always)]
    unsafe fn fill<const BYTES: usize>(&self, scratch: &mut Scratch, cpu: u32) -> u64 {
        let Scratch { head, rest } = scratch;
        // SAFETY: the current task is a valid `task_struct`, and the offsets are this
        // kernel's.
        let (has_user, ip, sp, bp) = unsafe {
            let task = bpf_get_current_task_btf().cast::<u8>();
            let flags = *task.add(task_flags_offset()).cast::<u32>();
            let regs = bpf_task_pt_regs(task.cast()) as *const u8;
            let register = |offset: usize| *regs.add(offset).cast::<u64>();
            (
                flags & IO_WORKER == 0,
                register(regs_ip_offset()),
                register(regs_sp_offset()),
                register(regs_bp_offset()),
            )
        };
        // SAFETY: as many bytes are there.
        let got = unsafe {
            let frames = rest.as_mut_ptr().cast();
            bpf_get_stack(self.ctx, frames, KERNEL_BYTES, self.skipped)
        };
        // A mask is what the verifier understands; a good answer has no bit outside.
        let kernel_bytes = if got < 0 {
            0
        } else {
            got as u64 & u64::from(KERNEL_BYTES)
        };
        let user_bytes = if has_user {
            // SAFETY: `rest` has room behind the longest kernel stack.
            let to = unsafe { rest.as_mut_ptr().add(kernel_bytes as usize) };
            // SAFETY: the same.
            unsafe { copy::<BYTES>(to, sp) }
        } else {
            0
        };
        head.header.kind = self.kind;
        head.header.flags = match (has_user, is_behind_breakpoint(ip)) {
            (false, _) => FLAG_NO_USER,
            (true, false) => 0,
            (true, true) => FLAG_BREAKPOINT,
        };
        head.header.tid = self.tid;
        // SAFETY: the helper has no precondition.
        head.header.ts_ns = unsafe { bpf_ktime_get_ns() };
        head.ip = ip;
        head.sp = sp;
        head.bp = bp;
        head.cpu = cpu;
        head.kernel_frames = kernel_bytes as u32 / 8;
        head.user_bytes = user_bytes as u32;
        // SAFETY: 16 bytes, which the kernel fills.
        unsafe { bpf_get_current_comm(head.name.as_mut_ptr().cast(), 16) };
        size_of::<Stack>() as u64 + kernel_bytes + user_bytes
    }
}

#[inline(always)]
fn is_behind_breakpoint(ip: u64) -> bool {
    let mut byte = 0_u8;
    let at = ip.wrapping_sub(1) as *const c_void;
    // SAFETY: one byte, and the helper checks the address.
    let failed = unsafe { bpf_probe_read_user((&raw mut byte).cast(), 1, at) };
    failed == 0 && byte == BREAKPOINT
}

/// Copies the user stack from `from` up, all of it or page by page to the first that is not
/// there; returns the bytes.
///
/// # Safety
/// `BYTES` can be written at `to`.
#[inline(always)]
unsafe fn copy<const BYTES: usize>(to: *mut u8, from: u64) -> u64 {
    // SAFETY: the caller's.
    let failed = unsafe { bpf_probe_read_user(to.cast(), BYTES as u32, from as *const c_void) };
    if failed == 0 {
        return BYTES as u64;
    }
    let mut done = 0;
    // As many pages, of which the first may be a part of one.
    for _ in 0..BYTES / PAGE_BYTES {
        let at = from.wrapping_add(done);
        let page = PAGE_BYTES as u64 - (at & (PAGE_BYTES as u64 - 1));
        // SAFETY: what is done is a page for each time at most.
        let failed = unsafe {
            let to = to.add(done as usize);
            bpf_probe_read_user(to.cast(), page as u32, at as *const c_void)
        };
        if failed != 0 {
            break;
        }
        done += page;
    }
    done
}
