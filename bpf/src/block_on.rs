//! Uprobes on a thread that blocks on a future.

use aya_ebpf::{macros::uprobe, programs::ProbeContext};
use dial9_bpf_abi::record::{BlockOn, RecordKind};

use crate::{filter::traced, task::stack_pointer};

/// A thread has entered a runtime to block on a future.
///
/// Hook: uprobe at or after the call that enters it · Reads: nothing · Emits:
/// [`BlockOn`], 24 bytes
#[uprobe(sleepable)]
pub fn block_on(ctx: ProbeContext) -> u32 {
    blocking(&ctx, RecordKind::BLOCK_ON)
}

/// The thread leaves it, with a result or unwinding.
///
/// Hook: uprobe on the calls of the drop of Tokio's `EnterRuntimeGuard` · Reads:
/// nothing · Emits: [`BlockOn`], 24 bytes
#[uprobe(sleepable)]
pub fn block_on_end(ctx: ProbeContext) -> u32 {
    blocking(&ctx, RecordKind::BLOCK_ON_END)
}

#[inline(always)]
fn blocking(ctx: &ProbeContext, kind: RecordKind) -> u32 {
    let Some(hit) = traced(kind) else { return 0 };
    let sp = stack_pointer(ctx);
    hit.emit::<BlockOn>(0, |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe { (&raw mut (*record).sp).write(sp) }
    });
    0
}
