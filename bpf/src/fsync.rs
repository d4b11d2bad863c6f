//! How long the target's threads wait until a file is on its disk.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::raw_tracepoint, programs::RawTracePointContext};
use dial9_bpf_abi::{
    block_io::Syncing,
    loss::LossCause,
    record::{FLAG_DATA_ONLY, RecordKind, Sync},
};

use crate::{bio::inode, filter::traced, maps::SYNCING};

/// Anybody begins to sync a file of ext4: by `fsync`, `fdatasync`, `msync`, io_uring, or
/// a write to a file that is open with `O_SYNC` or `O_DSYNC`.
///
/// Hook: raw tracepoint `ext4_sync_file_enter(file, datasync)`, which may be a module's
/// (fs/ext4/fsync.c) · Emits: nothing
#[raw_tracepoint(tracepoint = "ext4_sync_file_enter")]
pub fn ext4_sync_file_enter(ctx: RawTracePointContext) -> i32 {
    let Some(hit) = traced(RecordKind::SYNC) else {
        return 0;
    };
    let data_only: i32 = ctx.arg(1);
    let syncing = Syncing {
        // SAFETY: the helper has no precondition.
        begin_ns: unsafe { bpf_ktime_get_ns() },
        is_data_only: u64::from(data_only != 0),
    };
    if SYNCING.insert(hit.tid, syncing, 0).is_err() {
        hit.lose(LossCause::TableFull);
    }
    0
}

/// It is done.
///
/// Hook: raw tracepoint `ext4_sync_file_exit(inode, ret)`, in the same thread · Emits:
/// [`Sync`], 40 bytes
#[raw_tracepoint(tracepoint = "ext4_sync_file_exit")]
pub fn ext4_sync_file_exit(ctx: RawTracePointContext) -> i32 {
    let Some(hit) = traced(RecordKind::SYNC) else {
        return 0;
    };
    // SAFETY: copied at once, and only this thread writes it.
    let Some(&syncing) = (unsafe { SYNCING.get(hit.tid) }) else {
        return 0;
    };
    // Nobody else removes it.
    let _ = SYNCING.remove(hit.tid);
    let (address, error): (u64, i32) = (ctx.arg(0), ctx.arg(1));
    let (number, device) = inode(address);
    let flags = if syncing.is_data_only == 1 {
        FLAG_DATA_ONLY
    } else {
        0
    };
    hit.emit::<Sync>(flags, |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).begin_ns).write(syncing.begin_ns);
            (&raw mut (*record).inode).write(number);
            (&raw mut (*record).device).write(device);
            (&raw mut (*record).error).write(error);
        }
    });
    0
}
