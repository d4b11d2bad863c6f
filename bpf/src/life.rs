//! How the target ends: the signal that ends it, and its last thread's exit.

use aya_ebpf::{
    helpers::bpf_probe_read_kernel, macros::btf_tracepoint, programs::BtfTracePointContext,
};
use dial9_bpf_abi::record::{Exit, RecordKind, Signal};

use crate::{
    filter::traced,
    fork::ended,
    maps::{
        action_handler_offset, info_address_offset, info_code_offset, signal_live_offset,
        signal_status_offset, task_signal_offset,
    },
    sched::tgid,
};

/// Signals up to 31 whose default action does not end the process: `SIGCHLD`,
/// `SIGCONT`, `SIGSTOP`, `SIGTSTP`, `SIGTTIN`, `SIGTTOU`, `SIGURG`, `SIGWINCH`
/// (include/linux/signal.h); and `SIGKILL`, which every thread of a process that
/// ends gets, whatever ends it (kernel/signal.c, `get_signal`).
const NOT_TOLD: u32 =
    1 << 9 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23 | 1 << 28;

/// A thread exits; told if it is the target's last, and noted if it is that of a
/// process that the target forked.
///
/// Hook: BTF tracepoint `sched_process_exit(task, …)`, which runs in the thread
/// after it has left `signal->live` (kernel/exit.c, `do_exit`) · Emits: [`Exit`],
/// 24 bytes; two where the last two threads exit at the same moment
#[btf_tracepoint(function = "sched_process_exit")]
pub fn sched_process_exit(ctx: BtfTracePointContext) -> i32 {
    let task: *const u8 = ctx.arg(0);
    // SAFETY: a trusted `task_struct`, and this kernel's offsets.
    let (live, status) = unsafe {
        let signal = *task.add(task_signal_offset()).cast::<*const u8>();
        (
            *signal.add(signal_live_offset()).cast::<u32>(),
            *signal.add(signal_status_offset()).cast::<u32>(),
        )
    };
    if live != 0 {
        return 0;
    }
    let Some(hit) = traced(RecordKind::EXIT) else {
        ended(tgid(task));
        return 0;
    };
    hit.emit::<Exit>(0, |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe { (&raw mut (*record).status).write(u64::from(status)) }
    });
    0
}

/// A thread gets a signal that has no handler and ends the process.
///
/// Hook: BTF tracepoint `signal_deliver(sig, info, ka)`, which runs in the thread
/// that gets it · Emits: [`Signal`], 32 bytes
#[btf_tracepoint(function = "signal_deliver")]
pub fn signal_deliver(ctx: BtfTracePointContext) -> i32 {
    let Some(hit) = traced(RecordKind::SIGNAL) else {
        return 0;
    };
    let number: u32 = ctx.arg(0);
    let action: *const u8 = ctx.arg(2);
    // SAFETY: a trusted `k_sigaction`, and this kernel's offset.
    let handler = unsafe { *action.add(action_handler_offset()).cast::<u64>() };
    if handler != 0 || !ends_process(number) {
        return 0;
    }
    let (code, address) = facts(ctx.arg(1));
    hit.emit::<Signal>(0, |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).number).write(number);
            (&raw mut (*record).code).write(code);
            (&raw mut (*record).address).write(address);
        }
    });
    0
}

#[inline(always)]
fn ends_process(number: u32) -> bool {
    number > 31 || NOT_TOLD >> number & 1 == 0
}

/// `si_code` and `si_addr`; zeros where the kernel has no more than the number.
#[inline(always)]
fn facts(info: *const u8) -> (i32, u64) {
    if info.is_null() {
        return (0, 0);
    }
    // SAFETY: the helper checks the addresses.
    unsafe {
        let code = bpf_probe_read_kernel(info.add(info_code_offset()).cast::<i32>());
        let address = bpf_probe_read_kernel(info.add(info_address_offset()).cast::<u64>());
        (code.unwrap_or(0), address.unwrap_or(0))
    }
}
