//! The target's block I/O, from its submission to its end.
//!
//! One I/O is a `struct bio`, as the file system or the direct I/O of the target makes it:
//! what the disk's scheduler merges into one request, or splits, is still what the
//! target has asked for.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_current_task_btf, bpf_get_smp_processor_id,
        bpf_ktime_get_ns,
    },
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use core::intrinsics::{AtomicOrdering, atomic_xadd};
use dial9_bpf_abi::{
    block_io::{InFlight, KernelIoCount, OP_MASK, OP_READ, OP_WRITE},
    limits::NO_TARGET,
    loss::LossCause,
    record::{FLAG_MERGED, IoBegin, IoEnd, RecordKind},
};

use crate::{
    away::KERNEL_THREAD,
    bio::{Bio, first_of, has_queue},
    emit::Hit,
    filter::traced,
    maps::{IN_FLIGHT, KERNEL_IO, sched_tgid, target, task_flags_offset},
};

/// I/O of one request that is seen to be done: more is more than the verifier goes through.
/// The end of others is a loss.
const MOST_MERGED: u32 = 64;

/// Anybody submits an I/O.
///
/// Hook: BTF tracepoint `block_bio_queue(bio)`, once for each, in who submits; threads
/// that io_uring makes for the target have its process id (block/blk-core.c,
/// `submit_bio_noacct_nocheck`) · Emits: [`IoBegin`], 24 bytes
#[btf_tracepoint(function = "block_bio_queue")]
pub fn block_bio_queue(ctx: BtfTracePointContext) -> i32 {
    if target() == NO_TARGET {
        return 0;
    }
    let bio = Bio(subject(&ctx));
    forget(bio);
    match traced(RecordKind::IO_BEGIN) {
        Some(hit) => begin(bio, &hit),
        None => count_kernel(bio),
    }
    0
}

/// An I/O becomes part of a request that is there already.
///
/// Hook: BTF tracepoint `block_bio_backmerge(bio)` (block/blk-merge.c) · Emits: nothing
#[btf_tracepoint(function = "block_bio_backmerge")]
pub fn block_bio_backmerge(ctx: BtfTracePointContext) -> i32 {
    merge(&ctx)
}

/// The same, at the request's begin.
///
/// Hook: BTF tracepoint `block_bio_frontmerge(bio)` · Emits: nothing
#[btf_tracepoint(function = "block_bio_frontmerge")]
pub fn block_bio_frontmerge(ctx: BtfTracePointContext) -> i32 {
    merge(&ctx)
}

/// A driver gets a request, for the first time or again.
///
/// Hook: BTF tracepoint `block_rq_issue(rq)`, in any thread (block/blk-mq.c,
/// `blk_mq_start_request`) · Emits: nothing
#[btf_tracepoint(function = "block_rq_issue")]
pub fn block_rq_issue(ctx: BtfTracePointContext) -> i32 {
    if target() == NO_TARGET {
        return 0;
    }
    // SAFETY: the helper has no precondition.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let mut bio = first_of(subject(&ctx));
    for _ in 0..MOST_MERGED {
        if bio.0.is_null() {
            break;
        }
        if let Some(io) = in_flight(bio) {
            io.issue_ns = now_ns;
        }
        bio = bio.next();
    }
    0
}

/// A request is done, or a part of it: so is the I/O that is in it. What was split is done
/// with its last part.
///
/// Hook: BTF tracepoint `block_rq_complete(rq, error, nr_bytes)`, in an interrupt or in
/// whom it found (block/blk-mq.c, `blk_update_request`); what has a request is not told
/// again by `block_bio_complete` · Emits: [`IoEnd`], 72 bytes, for each
#[btf_tracepoint(function = "block_rq_complete")]
pub fn block_rq_complete(ctx: BtfTracePointContext) -> i32 {
    let (status, mut left): (u32, u32) = (ctx.arg(1), ctx.arg(2));
    let mut bio = first_of(ctx.arg(0));
    for _ in 0..MOST_MERGED {
        if bio.0.is_null() {
            break;
        }
        let bytes = bio.bytes();
        if bytes > left {
            break;
        }
        left -= bytes;
        end(bio, status);
        bio = bio.next();
    }
    0
}

/// An I/O of a device without requests is done, as of one that is made of others.
///
/// Hook: BTF tracepoint `block_bio_complete(q, bio)` (block/bio.c, `bio_endio`) · Emits:
/// [`IoEnd`], 72 bytes
#[btf_tracepoint(function = "block_bio_complete")]
pub fn block_bio_complete(ctx: BtfTracePointContext) -> i32 {
    let bio = Bio(ctx.arg(1));
    end(bio, bio.status().into());
    0
}

/// What a tracepoint is about: its last argument.
#[inline(always)]
fn subject(ctx: &BtfTracePointContext) -> *const u8 {
    if has_queue() { ctx.arg(1) } else { ctx.arg(0) }
}

/// A `struct bio` is submitted that was under way: its end was not seen.
#[inline(always)]
fn forget(bio: Bio) {
    if IN_FLIGHT.remove(bio.address()).is_ok() {
        ending().lose(LossCause::Unseen);
    }
}

#[inline(always)]
fn begin(bio: Bio, hit: &Hit) {
    // SAFETY: the helper has no precondition.
    let begin_ns = unsafe { bpf_ktime_get_ns() };
    let io = bio.begun(hit.tid, begin_ns);
    let kept = IN_FLIGHT.insert(bio.address(), io, u64::from(BPF_NOEXIST));
    if kept.is_err() {
        return hit.lose(LossCause::TableFull);
    }
    hit.emit_at::<IoBegin>(begin_ns, 0, |record| {
        // SAFETY: `emit_at` hands out a record that is ours to write.
        unsafe { (&raw mut (*record).bio).write(bio.address()) };
    });
}

#[inline(always)]
fn end(bio: Bio, status: u32) {
    let Some(&mut io) = in_flight(bio) else {
        return;
    };
    // Whoever else removes it knows that its end was not seen.
    if IN_FLIGHT.remove(bio.address()).is_ok() && target() != NO_TARGET {
        tell(bio, &io, status);
    }
}

#[inline(always)]
fn tell(bio: Bio, io: &InFlight, status: u32) {
    let flags = if io.is_merged == 1 { FLAG_MERGED } else { 0 };
    ending().emit::<IoEnd>(flags, |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).bio).write(bio.address());
            (&raw mut (*record).begin_ns).write(io.begin_ns);
            (&raw mut (*record).issue_ns).write(io.issue_ns);
            (&raw mut (*record).sector).write(io.sector);
            (&raw mut (*record).bytes).write(io.bytes);
            (&raw mut (*record).operation).write(io.flags);
            (&raw mut (*record).major).write(io.major);
            (&raw mut (*record).minor).write(io.minor);
            (&raw mut (*record).submitter).write(io.tid);
            (&raw mut (*record).status).write(status);
        }
    });
}

#[inline(always)]
fn merge(ctx: &BtfTracePointContext) -> i32 {
    if (bpf_get_current_pid_tgid() >> 32) as u32 != sched_tgid() {
        return 0;
    }
    // Before 5.11 these two have a queue and a request before it.
    let bio = if has_queue() { ctx.arg(2) } else { ctx.arg(0) };
    if let Some(io) = in_flight(Bio(bio)) {
        io.is_merged = 1;
    }
    0
}

/// Counts what the kernel's own threads submit: whose it is, they do not say.
#[inline(always)]
fn count_kernel(bio: Bio) {
    // SAFETY: the current task is a valid `task_struct`, and the offset is this kernel's.
    let flags = unsafe {
        let task = bpf_get_current_task_btf().cast::<u8>();
        *task.add(task_flags_offset()).cast::<u32>()
    };
    if flags & KERNEL_THREAD == 0 {
        return;
    }
    let [count, bytes] = match bio.operation() & OP_MASK {
        OP_READ => [KernelIoCount::Reads, KernelIoCount::ReadBytes],
        OP_WRITE => [KernelIoCount::Writes, KernelIoCount::WriteBytes],
        _ => [KernelIoCount::Others, KernelIoCount::OtherBytes],
    };
    add(count, 1);
    add(bytes, bio.bytes().into());
}

#[inline(always)]
fn add(to: KernelIoCount, more: u64) {
    if let Some(count) = KERNEL_IO.get_ptr_mut(to as u32) {
        // SAFETY: a map value; the add is atomic.
        unsafe {
            atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(count, more);
        }
    }
}

#[inline(always)]
fn in_flight(bio: Bio) -> Option<&'static mut InFlight> {
    // SAFETY: a map value outlives the program's run; an I/O is begun, merged, issued and
    // ended one after the other.
    IN_FLIGHT
        .get_ptr_mut(bio.address())
        .map(|io| unsafe { &mut *io })
}

/// The end of an I/O, which is no thread's.
#[inline(always)]
fn ending() -> Hit {
    Hit {
        kind: RecordKind::IO_END,
        // SAFETY: the helper has no precondition. Programs do not migrate.
        cpu: unsafe { bpf_get_smp_processor_id() },
        tid: 0,
    }
}
