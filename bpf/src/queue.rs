//! How many tasks are in a worker's queue.
//!
//! A park has the worker's core in a register, and the core the address of the queue,
//! where userspace says. Whether that is one is for userspace to know as well. The thread's
//! slot keeps it until the next park, since the core is in no register elsewhere.

use aya_ebpf::programs::ProbeContext;
use dial9_bpf_abi::{
    cookie::{self, Register},
    queue::{HEAD, above, depth, with_depth},
    thread::slot_index,
};

use crate::{
    known::{read_user, read_user_piece},
    maps::{QUEUED, RUN_QUEUE, reads_queues_at_polls},
    task::{attach_cookie, register},
};

/// User space ends there.
const ADDRESS_BITS: u32 = 47;

/// A worker parks: its core, and its queue with the depth.
#[inline(always)]
pub fn at_park(ctx: &ProbeContext, tid: u32) -> (u64, u64) {
    let cookie = attach_cookie(ctx);
    // Only of the executable's Tokio is it known what the words are.
    if cookie::header(cookie) != Register::RSI.0 || cookie::object(cookie) != 0 {
        note(tid, 0);
        return (0, 0);
    }
    let core = register(ctx, cookie);
    let offset = RUN_QUEUE.get(0).copied().unwrap_or(0);
    if offset == 0 {
        return (core, 0);
    }
    let queue = match read_user(core + offset) {
        Some(queue) if queue >> ADDRESS_BITS == 0 => queue,
        _ => 0,
    };
    note(tid, queue);
    (core, measured(queue))
}

/// The queue of the worker that last parked on the thread, with its depth; 0 where it
/// is not known.
#[inline(always)]
pub fn of_thread(tid: u32) -> u64 {
    match QUEUED.get(slot_index(tid)) {
        Some(queued) if queued.tid == tid => measured(queued.queue),
        _ => 0,
    }
}

/// What a poll's record has above its vtable. A closure that begins ends what the
/// thread was before.
#[inline(always)]
pub fn at_poll(tid: u32, cookie: u64) -> u64 {
    if !reads_queues_at_polls() {
        return 0;
    }
    if cookie::is_blocking(cookie) {
        note(tid, 0);
        return 0;
    }
    above(of_thread(tid))
}

#[inline(always)]
fn note(tid: u32, queue: u64) {
    if let Some(queued) = QUEUED.get_ptr_mut(slot_index(tid)) {
        // SAFETY: a map value; a thread's slot is written by the thread.
        unsafe {
            (*queued).tid = tid;
            (*queued).queue = queue;
        }
    }
}

/// Only its worker adds to a queue, and that is here: the depth was true when the head
/// was read. Not inlined, as `emit::lose`.
#[inline(never)]
fn measured(queue: u64) -> u64 {
    if queue == 0 {
        return 0;
    }
    let Some([head, tail, _]) = read_user_piece(queue + HEAD, 16) else {
        return queue;
    };
    match depth(head, tail) {
        Some(depth) => with_depth(queue, depth),
        None => queue,
    }
}
