//! Probes that probe files declare, of whatever function: one program for all, driven by
//! definitions.
//!
//! A hit's values are put together in the CPU's scratch and copied into its ring. The
//! program does not sleep, but on kernels that preempt it another thread's hit can come
//! in between: that one is lost, and counted.

use aya_ebpf::{
    helpers::{
        bpf_ktime_get_ns,
        generated::{bpf_probe_read_user, bpf_probe_read_user_str},
    },
    macros::uprobe,
    programs::ProbeContext,
};
use core::{
    ffi::c_void,
    intrinsics::{AtomicOrdering, atomic_xchg},
};
use dial9_bpf_abi::{
    declared::{
        ACCEPT, BYTES, CALL, CONSTANT, CONSTANT_BYTES, Declared, DeclaredScratch, Definition,
        MAX_BYTES, MAX_FIELDS, MAX_OPEN, MAX_READS, MAX_STEPS, MAX_TESTS, MAX_VALUE_BYTES,
        NO_LENGTH, NO_REGISTER, NUMBER, OpenCall, OpenCalls, RETURN, Read, THREAD, Test,
        definition_of, operator, pushed_of,
    },
    loss::LossCause,
    record::{FLAG_UNPAIRED, RecordKind},
    thread::slot_index,
};

use crate::{
    emit::Hit,
    filter::traced,
    maps::{DECLARED_SCRATCH, DEFINITIONS, OPEN_CALLS},
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

/// What the loops below carry along is in the scratch rather than in registers: a word that
/// was read back is any word to the verifier, so that all ways through an iteration are one
/// to it. Otherwise it follows each of them to the end, and gives up.
#[inline(always)]
fn load_word(word: &u64) -> u64 {
    // SAFETY: a reference is valid to read.
    unsafe { core::ptr::read_volatile(word) }
}

#[inline(always)]
fn store_word(word: &mut u64, value: u64) {
    // SAFETY: a reference is valid to write.
    unsafe { core::ptr::write_volatile(word, value) }
}

/// The registers by their numbers in instruction encoding.
#[inline(always)]
fn note_registers(ctx: &ProbeContext, tid: u32, scratch: &mut DeclaredScratch) {
    macro_rules! note {
        ($($number:literal $field:ident),*) => {
            $(
                // SAFETY: a field of the program's own context.
                scratch.registers[$number] =
                    unsafe { core::ptr::read_volatile(&raw const (*ctx.regs).$field) };
            )*
        };
    }
    note!(0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi, 7 rdi);
    note!(8 r8, 9 r9, 10 r10, 11 r11, 12 r12, 13 r13, 14 r14, 15 r15);
    scratch.registers[THREAD as usize] = tid.into();
    scratch.registers[NO_REGISTER as usize] = 0;
}

/// Reads numbers, addresses and lengths.
#[inline(always)]
fn numbers(definition: &Definition, scratch: &mut DeclaredScratch) {
    store_word(&mut scratch.present, 0);
    store_word(&mut scratch.used, 0);
    for at in 0..MAX_READS {
        if at >= definition.read_count as usize {
            break;
        }
        let read = &definition.reads[at];
        if number(read, scratch, at) {
            let present = load_word(&scratch.present) | 1 << at;
            store_word(&mut scratch.present, present);
        }
    }
}

/// Reads one of them; false where it cannot be read, and then it is 0.
#[inline(always)]
fn number(read: &Read, scratch: &mut DeclaredScratch, at: usize) -> bool {
    let base = if read.register == CONSTANT {
        read.constant
    } else {
        scratch.registers[read.register as usize & 31]
    };
    let index = scratch.registers[read.index as usize & 31] << (read.shift & 3);
    let value = &mut scratch.numbers[at];
    store_word(value, base.wrapping_add(index));
    for step in 0..MAX_STEPS {
        if step >= read.steps as usize {
            break;
        }
        let address = load_word(value).wrapping_add(read.offsets[step] as i64 as u64);
        if !load(value, address, read.sizes[step]) {
            return false;
        }
    }
    let steps = read.steps as usize;
    if steps > MAX_STEPS {
        return false;
    }
    let sum = load_word(value).wrapping_add(read.offsets[steps] as i64 as u64);
    let is_number = read.what == NUMBER;
    let size = if is_number { read.size } else { 8 };
    store_word(value, narrowed(sum, size, read.is_signed != 0));
    true
}

/// Puts so many bytes at an address in place of the word; false where they cannot be read,
/// and then it is 0.
#[inline(always)]
fn load(word: &mut u64, address: u64, size: u8) -> bool {
    store_word(word, 0);
    let size = u32::from(size & 15);
    if size > 8 {
        return false;
    }
    // SAFETY: at most the eight bytes of the word; the helper checks the source.
    unsafe {
        bpf_probe_read_user(
            core::ptr::from_mut(word).cast(),
            size,
            address as *const c_void,
        ) == 0
    }
}

#[inline(always)]
fn narrowed(value: u64, size: u8, is_signed: bool) -> u64 {
    match (size, is_signed) {
        (1, false) => value as u8 as u64,
        (1, true) => value as i8 as i64 as u64,
        (2, false) => value as u16 as u64,
        (2, true) => value as i16 as i64 as u64,
        (4, false) => value as u32 as u64,
        (4, true) => value as i32 as i64 as u64,
        _ => value,
    }
}

/// Reads what is no number.
#[inline(always)]
fn bytes(definition: &Definition, scratch: &mut DeclaredScratch) {
    for at in 0..MAX_READS {
        if at >= definition.read_count as usize {
            break;
        }
        let read = &definition.reads[at];
        let present = load_word(&scratch.present);
        if read.what == NUMBER || present & (1 << at) == 0 {
            continue;
        }
        let used = load_word(&scratch.used);
        store_word(&mut scratch.starts[at], used);
        match copied(read, at, scratch) {
            Some(got) => {
                store_word(&mut scratch.numbers[at], got);
                store_word(&mut scratch.used, used + got);
            }
            None => {
                store_word(&mut scratch.numbers[at], 0);
                store_word(&mut scratch.present, present & !(1 << at));
            }
        }
    }
}

/// Copies one value behind the others; returns its bytes.
#[inline(always)]
fn copied(read: &Read, at: usize, scratch: &mut DeclaredScratch) -> Option<u64> {
    let address = load_word(&scratch.numbers[at]) as *const c_void;
    let mut length = u64::from(read.max);
    if read.length != NO_LENGTH {
        let of = read.length as usize & (MAX_READS - 1);
        if load_word(&scratch.present) & (1 << of) == 0 {
            return None;
        }
        let actual = load_word(&scratch.numbers[of]);
        if actual < length {
            length = actual;
        }
    }
    let used = load_word(&scratch.used);
    if length > u64::from(MAX_VALUE_BYTES) || used > MAX_BYTES as u64 {
        return None;
    }
    // SAFETY: the scratch has room for all bytes and one value more.
    let to: *mut c_void = unsafe { scratch.bytes.as_mut_ptr().add(used as usize).cast() };
    if read.what == BYTES {
        // SAFETY: as above; the helper checks the source.
        let status = unsafe { bpf_probe_read_user(to, length as u32, address) };
        return (status == 0).then_some(length);
    }
    // SAFETY: the same. The zero byte counts, and is not taken.
    let got = unsafe { bpf_probe_read_user_str(to, length as u32 + 1, address) };
    if got <= 0 {
        return None;
    }
    let got = got as u64 - 1;
    (got <= u64::from(MAX_VALUE_BYTES)).then_some(got)
}

/// Whether the hit counts.
#[inline(always)]
fn counts(definition: &Definition, scratch: &mut DeclaredScratch) -> bool {
    if definition.test_count == 0 {
        return true;
    }
    store_word(&mut scratch.next, 0);
    // Each test leads to a later one.
    for _ in 0..MAX_TESTS {
        let next = load_word(&scratch.next);
        if next >= MAX_TESTS as u64 {
            break;
        }
        let test = &definition.tests[next as usize];
        let next = if is_true(test, scratch) {
            test.on_true
        } else {
            test.on_false
        };
        store_word(&mut scratch.next, next.into());
    }
    load_word(&scratch.next) == u64::from(ACCEPT)
}

#[inline(always)]
fn is_true(test: &Test, scratch: &DeclaredScratch) -> bool {
    let value = test.value as usize & (MAX_READS - 1);
    load_word(&scratch.present) & (1 << value) != 0
        && if test.is_bytes != 0 {
            compares_bytes(test, value, scratch)
        } else {
            compares(test, load_word(&scratch.numbers[value]))
        }
}

#[inline(always)]
fn compares(test: &Test, value: u64) -> bool {
    let constant = test.number;
    let is_less = if test.is_signed != 0 {
        (value as i64) < constant as i64
    } else {
        value < constant
    };
    match test.operator {
        operator::EQUAL => value == constant,
        operator::NOT_EQUAL => value != constant,
        operator::LESS => is_less,
        operator::LESS_OR_EQUAL => is_less || value == constant,
        operator::GREATER => !is_less && value != constant,
        operator::GREATER_OR_EQUAL => !is_less,
        operator::ANY_BIT => value & constant != 0,
        _ => false,
    }
}

#[inline(always)]
fn compares_bytes(test: &Test, value: usize, scratch: &DeclaredScratch) -> bool {
    let length = load_word(&scratch.numbers[value]);
    let start = load_word(&scratch.starts[value]);
    let begins = length >= test.length.into() && begins(test, start, scratch);
    let is_equal = begins && length == test.length.into();
    match test.operator {
        operator::EQUAL => is_equal,
        operator::NOT_EQUAL => !is_equal,
        operator::STARTS => begins,
        _ => false,
    }
}

#[inline(always)]
fn begins(test: &Test, start: u64, scratch: &DeclaredScratch) -> bool {
    if start > MAX_BYTES as u64 {
        return false;
    }
    for at in 0..CONSTANT_BYTES {
        if at >= test.length as usize {
            break;
        }
        let byte = scratch.bytes[start as usize + at];
        if byte != test.bytes[at] {
            return false;
        }
    }
    true
}

/// Notes a call of the thread; false when it has too many open.
#[inline(always)]
fn enter(tid: u32, definition: u32, sp: u64, scratch: &mut DeclaredScratch) -> bool {
    let Some(open) = OPEN_CALLS.get_ptr_mut(slot_index(tid)) else {
        return false;
    };
    // SAFETY: a map value. A thread's slot is written by the thread; of two that share
    // one, the later takes it over.
    let open = unsafe { &mut *open };
    if open.tid != tid {
        open.tid = tid;
        open.count = 0;
    }
    drop_ended(open, sp, &mut scratch.next);
    let count = load_word(&scratch.next);
    if count >= MAX_OPEN as u64 {
        return false;
    }
    open.calls[count as usize] = OpenCall {
        sp,
        definition: definition.into(),
    };
    open.count = count as u32 + 1;
    true
}

/// Counts the calls that are still open where the stack pointer is this: the stack grows
/// down, and what is below has been left, by a return or not.
#[inline(always)]
fn drop_ended(open: &OpenCalls, sp: u64, count: &mut u64) {
    store_word(count, 0);
    for at in 0..MAX_OPEN {
        if at < open.count as usize && open.calls[at].sp > sp {
            store_word(count, at as u64 + 1);
        }
    }
}

/// Takes a call out that returns; false when none is open.
#[inline(always)]
fn leave(tid: u32, definition: u32, sp: u64) -> bool {
    let Some(open) = OPEN_CALLS.get_ptr_mut(slot_index(tid)) else {
        return false;
    };
    // SAFETY: as in `enter`.
    let open = unsafe { &mut *open };
    if open.tid != tid {
        return false;
    }
    for at in 0..MAX_OPEN {
        if at < open.count as usize
            && open.calls[at].sp == sp
            && open.calls[at].definition == u64::from(definition)
        {
            open.count = at as u32;
            return true;
        }
    }
    false
}
