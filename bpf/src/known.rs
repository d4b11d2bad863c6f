//! The id of a task, from the array of known tasks or from its header. The rules
//! are in `dial9_bpf_abi::known`.

use aya_ebpf::helpers::{
    bpf_ktime_get_ns, bpf_probe_read_user,
    generated::{self, bpf_copy_from_user},
};
use core::{
    intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xchg},
    mem::MaybeUninit,
};
use dial9_bpf_abi::{
    cookie::{self, BY_VTABLE},
    known::{STATE_COMPLETE, id_of, index, is_known_form, is_vacant, occupied, vacant},
};

use crate::maps::{KNOWN, is_sleepable};

/// Offset of the vtable pointer in Tokio's task header, bytes (Tokio 1.22 and
/// later, src/runtime/task/core.rs, `Header`).
pub const HEADER_VTABLE: u64 = 16;
/// Offset of the owner's number in it, bytes (as above); the task's core follows,
/// and begins with the scheduler.
pub const HEADER_OWNER: u64 = 24;
/// Offset, in a task vtable, of the id's offset from the header, bytes: behind
/// seven functions and two other offsets (Tokio 1.24 to 1.54,
/// src/runtime/task/raw.rs, `Vtable`; the scan takes no table of another shape).
const VTABLE_ID_OFFSET: u64 = 72;

/// The id of the task of `header`; remembers it. `None` when it cannot be read.
#[inline(always)]
pub fn task_id(header: u64, cookie: u64) -> Option<u64> {
    let Some(entry) = entry(header, cookie) else {
        return read_id(header, cookie);
    };
    // SAFETY: a map value lives as long as the program.
    let word = unsafe { core::ptr::read_volatile(entry) };
    if let Some(id) = id_of(word, header) {
        return Some(id);
    }
    let id = read_id(header, cookie)?;
    let state = read_user(header)?;
    if is_vacant(word)
        && state & STATE_COMPLETE == 0
        && let Some(new) = occupied(header, id)
    {
        // SAFETY: as above; the exchange is atomic.
        unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
                entry, word, new,
            );
        }
    }
    Some(id)
}

/// The id of the task of `header`, whose state is complete; forgets it.
#[inline(always)]
pub fn last_task_id(header: u64, cookie: u64) -> Option<u64> {
    let Some(entry) = entry(header, cookie) else {
        return read_id(header, cookie);
    };
    // SAFETY: the helper has no precondition.
    let fresh = vacant(unsafe { bpf_ktime_get_ns() });
    // SAFETY: a map value lives as long as the program; the exchange is atomic.
    let word = unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(entry, fresh) };
    id_of(word, header).map_or_else(|| read_id(header, cookie), Some)
}

/// The id in the task itself, where the cookie or the task's vtable says.
#[inline(always)]
fn read_id(header: u64, cookie: u64) -> Option<u64> {
    let offset = match cookie::id_offset(cookie) {
        offset if offset == BY_VTABLE as u64 => {
            read_user(read_user(header + HEADER_VTABLE)? + VTABLE_ID_OFFSET)?
        }
        offset => offset,
    };
    read_user(header + offset)
}

#[inline(always)]
fn entry(header: u64, cookie: u64) -> Option<*mut u64> {
    if !cookie::remembers(cookie) || !is_known_form(header) {
        return None;
    }
    KNOWN.get_ptr_mut(index(header))
}

/// Eight bytes of the target's memory. A sleepable program faults the page in,
/// as the target is about to do itself; a plain one gives up.
#[inline(always)]
pub fn read_user(address: u64) -> Option<u64> {
    if !is_sleepable() {
        // SAFETY: the helper checks the address.
        return unsafe { bpf_probe_read_user(address as *const u64) }.ok();
    }
    let mut value = 0u64;
    // SAFETY: the destination is eight bytes of our stack; the helper checks the
    // source.
    let status = unsafe {
        bpf_copy_from_user(
            (&raw mut value).cast(),
            8,
            address as *const core::ffi::c_void,
        )
    };
    (status == 0).then_some(value)
}

/// Up to 24 bytes of the target's memory, with zeros behind them.
#[inline(always)]
pub fn read_user_piece(address: u64, bytes: u64) -> Option<[u64; 3]> {
    if bytes > 24 {
        return None;
    }
    let mut words = MaybeUninit::<[u64; 3]>::uninit();
    let first: *mut u64 = words.as_mut_ptr().cast();
    let from = address as *const core::ffi::c_void;
    // SAFETY: three words are ours, and each is written, one by one: an array's
    // literal would be a `memset` call, which the linker refuses. The helpers
    // check the source.
    let status = unsafe {
        first.write_volatile(0);
        first.add(1).write_volatile(0);
        first.add(2).write_volatile(0);
        if is_sleepable() {
            bpf_copy_from_user(first.cast(), bytes as u32, from)
        } else {
            generated::bpf_probe_read_user(first.cast(), bytes as u32, from)
        }
    };
    // SAFETY: written above.
    (status == 0).then_some(unsafe { words.assume_init() })
}
