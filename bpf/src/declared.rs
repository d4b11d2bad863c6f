//! Probes that probe files declare, of whatever function: one program for all, driven by
//! definitions.
//!
//! A hit's values are put together in the CPU's scratch and copied into its ring. The
//! program does not sleep, but on kernels that preempt it another thread's hit can come
//! in between: that one is lost, and counted.

mod calls;
mod filter;
mod values;
mod words;

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::uprobe, programs::ProbeContext};
use core::intrinsics::{AtomicOrdering, atomic_xadd, atomic_xchg};
use dial9_bpf_abi::{
    declared::{
        CALL, Declared, DeclaredScratch, Definition, FLAG_UNPAIRED, MAX_FIELDS, RETURN,
        definition_of, pushed_of,
    },
    loss::LossCause,
    record::RecordKind,
};

use self::{
    calls::{enter, leave},
    filter::counts,
    values::{bytes, note_registers, numbers},
    words::load_word,
};
use crate::{
    emit::Hit,
    filter::traced,
    maps::{DECLARED_HITS, DECLARED_SCRATCH, DEFINITIONS},
    task::{attach_cookie, stack_pointer},
};

/// `rsp`'s number in instruction encoding.
const RSP: usize = 4;

/// A declared probe is hit.
///
/// Hook: uprobe or return probe wherever a file says · Reads: what it says · Emits:
/// [`Declared`], 96 bytes, and the bytes of values
#[uprobe]
pub fn declared(ctx: ProbeContext) -> u32 {
    let Some(hit) = traced(RecordKind::DECLARED) else {
        return 0;
    };
    let cookie = attach_cookie(&ctx);
    let index = definition_of(cookie);
    let Some(definition) = DEFINITIONS.get(index) else {
        return 0;
    };
    if let Some(hits) = DECLARED_HITS.get_ptr_mut(index) {
        // SAFETY: the pointer is to a map value; the add is atomic, since on preemptible
        // kernels two programs interleave on one CPU.
        unsafe {
            atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(hits, 1);
        }
    }
    // A return has popped its address.
    let popped = u64::from(definition.is_behind) * 8;
    let sp = stack_pointer(&ctx) + pushed_of(cookie) - popped;
    if definition.role == RETURN && !leave(hit.tid, index - 1, sp) {
        return 0;
    }
    let Some(scratch) = DECLARED_SCRATCH.get_ptr_mut(hit.cpu) else {
        hit.lose(LossCause::NoRing);
        return 0;
    };
    // SAFETY: a map value; the exchange is atomic.
    let busy =
        unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*scratch).busy, 1) };
    if busy != 0 {
        hit.lose(LossCause::Busy);
        return 0;
    }
    // SAFETY: whoever has set the flag has the scratch to itself.
    let scratch = unsafe { &mut *scratch };
    take(&ctx, &hit, (index, definition, sp), scratch);
    // SAFETY: an aligned word that is written whole.
    unsafe { core::ptr::write_volatile(&raw mut scratch.busy, 0) };
    0
}

#[inline(always)]
fn take(
    ctx: &ProbeContext,
    hit: &Hit,
    (index, definition, sp): (u32, &Definition, u64),
    scratch: &mut DeclaredScratch,
) {
    note_registers(ctx, hit.tid, scratch);
    scratch.registers[RSP] = sp;
    numbers(definition, scratch);
    if definition.tests_bytes != 0 {
        bytes(definition, scratch);
    }
    if !counts(definition, scratch) {
        return;
    }
    if definition.tests_bytes == 0 {
        bytes(definition, scratch);
    }
    let flags = if definition.role == CALL && !enter(hit.tid, index, sp, scratch) {
        FLAG_UNPAIRED
    } else {
        0
    };
    for field in 0..MAX_FIELDS {
        scratch.record.fields[field] = scratch.numbers[field];
    }
    let used = load_word(&scratch.used);
    let record = &mut scratch.record;
    record.header.kind = RecordKind::DECLARED;
    record.header.flags = flags;
    record.header.tid = hit.tid;
    // SAFETY: the helper has no precondition.
    record.header.ts_ns = unsafe { bpf_ktime_get_ns() };
    record.sp = sp;
    record.definition = index as u16;
    record.present = scratch.present as u16;
    record.field_count = definition.field_count.into();
    record.bytes = used as u16;
    let length = size_of::<Declared>() as u64 + ((used + 7) & !7 & 2047);
    // SAFETY: the record and what follows it are the scratch's, and longer.
    unsafe { hit.emit_copy((&raw const scratch.record).cast(), length) };
}
