//! Uprobes on what Tokio does with a task: poll, wake, spawn, terminate.

use aya_ebpf::{
    EbpfContext as _, bindings::pt_regs, helpers::bpf_get_attach_cookie, macros::uprobe,
    programs::ProbeContext,
};
use dial9_bpf_abi::{
    cookie,
    loss::LossCause,
    record::{
        FLAG_BLOCKING, FLAG_VTABLE_ADDRESS, OBJECT_SHIFT, PollEnd, PollStart, RecordKind, Spawn,
        TaskRecord, Terminate,
    },
};

use crate::{
    emit::Hit,
    filter::traced,
    known::{HEADER_OWNER, HEADER_VTABLE, last_task_id, read_user, read_user_piece, task_id},
    queue,
    stack::{note_poll, note_poll_end},
};

/// A thread enters a task's poll function.
///
/// Hook: uprobe in the function's first instructions · Reads: the task id where
/// it is not known, the vtable where several share the function, the two ends of the
/// worker's queue where that is asked for · Emits: [`PollStart`], 40 bytes
#[uprobe(sleepable)]
pub fn poll_start(ctx: ProbeContext) -> u32 {
    let Some(hit) = traced(RecordKind::POLL_START) else {
        return 0;
    };
    let cookie = attach_cookie(&ctx);
    let header = register(&ctx, cookie);
    let Some(task_id) = task_id(header, cookie) else {
        hit.lose(LossCause::UserFault);
        return 0;
    };
    let (vtable, flags) = if cookie::is_shared(cookie) {
        let Some(address) = read_user(header + HEADER_VTABLE) else {
            hit.lose(LossCause::UserFault);
            return 0;
        };
        (address, FLAG_VTABLE_ADDRESS)
    } else {
        (cookie::vtable(cookie), 0)
    };
    // The return address is on the stack: the caller's pointer is 8 above.
    let sp = stack_pointer(&ctx) + cookie::pushed(cookie) + 8;
    note_poll(hit.tid, sp);
    let queue = queue::at_poll(hit.tid, cookie);
    hit.emit::<PollStart>(flags | of_object(cookie), |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).task_id).write(task_id);
            (&raw mut (*record).sp).write(sp);
            (&raw mut (*record).vtable).write(vtable | queue);
        }
    });
    0
}

/// A call to a poll function returned.
///
/// Hook: uprobe after the call · Reads: nothing · Emits: [`PollEnd`], 24 bytes
#[uprobe(sleepable)]
pub fn poll_end(ctx: ProbeContext) -> u32 {
    let Some(hit) = traced(RecordKind::POLL_END) else {
        return 0;
    };
    let sp = stack_pointer(&ctx);
    note_poll_end(hit.tid, sp);
    hit.emit::<PollEnd>(0, |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe { (&raw mut (*record).sp).write(sp) }
    });
    0
}

/// A task was woken through its waker.
///
/// Hook: uprobe in the waker's wake functions · Reads: the task id where it is
/// not known · Emits: [`TaskRecord`], 24 bytes
#[uprobe(sleepable)]
pub fn wake(ctx: ProbeContext) -> u32 {
    let Some(told) = told(&ctx, RecordKind::WAKE, task_id) else {
        return 0;
    };
    told.hit
        .emit::<TaskRecord>(of_object(told.cookie), |record| {
            // SAFETY: `emit` hands out a record that is ours to write.
            unsafe { (&raw mut (*record).task_id).write(told.task_id) }
        });
    0
}

/// A task reached its end.
///
/// Hook: uprobe in Tokio's `Harness::complete`, after the state has changed ·
/// Reads: the task id where it is not known, the owner's and the scheduler · Emits:
/// [`Terminate`], 40 bytes
#[uprobe(sleepable)]
pub fn terminate(ctx: ProbeContext) -> u32 {
    let Some(told) = told(&ctx, RecordKind::TERMINATE, last_task_id) else {
        return 0;
    };
    let flags = if cookie::is_blocking(told.cookie) {
        FLAG_BLOCKING
    } else {
        0
    };
    let read = read_user_piece(told.header + HEADER_OWNER, 16);
    let [owner, scheduler, _] = read.unwrap_or([0; 3]);
    let flags = flags | of_object(told.cookie);
    told.hit.emit::<Terminate>(flags, |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).task_id).write(told.task_id);
            (&raw mut (*record).owner).write(owner);
            (&raw mut (*record).scheduler).write(scheduler);
        }
    });
    0
}

/// A task was bound to a runtime.
///
/// Hook: uprobe in Tokio's `OwnedTasks::bind_inner` · Reads: the task id and
/// the vtable · Emits: [`Spawn`], 32 bytes
#[uprobe(sleepable)]
pub fn spawn(ctx: ProbeContext) -> u32 {
    let Some(hit) = traced(RecordKind::SPAWN) else {
        return 0;
    };
    let cookie = attach_cookie(&ctx);
    let header = register(&ctx, cookie);
    let (Some(task_id), Some(vtable)) =
        (task_id(header, cookie), read_user(header + HEADER_VTABLE))
    else {
        hit.lose(LossCause::UserFault);
        return 0;
    };
    hit.emit::<Spawn>(FLAG_VTABLE_ADDRESS | of_object(cookie), |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).task_id).write(task_id);
            (&raw mut (*record).vtable).write(vtable);
        }
    });
    0
}

/// What a hit about a task has found out.
struct Told {
    hit: Hit,
    cookie: u64,
    header: u64,
    task_id: u64,
}

#[inline(always)]
fn told(
    ctx: &ProbeContext,
    kind: RecordKind,
    identify: impl FnOnce(u64, u64) -> Option<u64>,
) -> Option<Told> {
    let hit = traced(kind)?;
    let cookie = attach_cookie(ctx);
    if !cookie::counts(cookie, flags(ctx)) {
        return None;
    }
    let header = register(ctx, cookie);
    let Some(task_id) = identify(header, cookie) else {
        hit.lose(LossCause::UserFault);
        return None;
    };
    Some(Told {
        hit,
        cookie,
        header,
        task_id,
    })
}

#[inline(always)]
pub fn attach_cookie(ctx: &ProbeContext) -> u64 {
    // SAFETY: the context is the program's own.
    unsafe { bpf_get_attach_cookie(ctx.as_ptr()) }
}

/// Whose task a hit at the site is about, in a record's flags.
#[inline(always)]
fn of_object(cookie: u64) -> u16 {
    (cookie::object(cookie) << OBJECT_SHIFT) as u16
}

#[inline(always)]
fn registers(ctx: &ProbeContext) -> &pt_regs {
    // SAFETY: a uprobe's context is the registers of the thread.
    unsafe { &*ctx.regs }
}

#[inline(always)]
pub fn stack_pointer(ctx: &ProbeContext) -> u64 {
    registers(ctx).rsp
}

#[inline(always)]
fn flags(ctx: &ProbeContext) -> u64 {
    registers(ctx).eflags
}

/// What is in the register that the cookie names by its number in instruction
/// encoding: the task header, where the hit is about a task.
///
/// Each arm reads on its own: the verifier refuses a context pointer plus a
/// variable, which is what the compiler makes of loads it can merge.
#[inline(always)]
pub fn register(ctx: &ProbeContext, cookie: u64) -> u64 {
    macro_rules! read {
        ($field:ident) => {
            // SAFETY: a field of the program's own context.
            unsafe { core::ptr::read_volatile(&raw const (*ctx.regs).$field) }
        };
    }
    match cookie::header(cookie) {
        7 => read!(rdi),
        6 => read!(rsi),
        2 => read!(rdx),
        3 => read!(rbx),
        0 => read!(rax),
        1 => read!(rcx),
        5 => read!(rbp),
        8 => read!(r8),
        9 => read!(r9),
        12 => read!(r12),
        13 => read!(r13),
        14 => read!(r14),
        15 => read!(r15),
        _ => 0,
    }
}
