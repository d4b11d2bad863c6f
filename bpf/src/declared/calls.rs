//! Which calls a thread has open, so that the return of one that does not count is no hit.

use dial9_bpf_abi::{
    declared::{DeclaredScratch, MAX_OPEN, OpenCall, OpenCalls},
    thread::slot_index,
};

use super::words::{load_word, store_word};
use crate::maps::OPEN_CALLS;

/// Notes a call of the thread; false when it has too many open.
#[inline(never)]
pub fn enter(tid: u32, definition: u32, sp: u64, scratch: &mut DeclaredScratch) -> bool {
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
    drop_ended(open, (definition, sp), &mut scratch.next);
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
/// down, and what is below has been left, by a return or not. At the same place are other
/// probes of the same function; one of the same probe has been left.
#[inline(always)]
fn drop_ended(open: &mut OpenCalls, (definition, sp): (u32, u64), count: &mut u64) {
    store_word(count, 0);
    for at in 0..MAX_OPEN {
        if at >= open.count as usize {
            break;
        }
        let call = &mut open.calls[at];
        if call.sp == sp && call.definition == u64::from(definition) {
            call.sp = LEFT;
        } else if call.sp >= sp {
            store_word(count, at as u64 + 1);
        }
    }
}

/// Stack pointer of a call that has been left, while others are open behind it.
const LEFT: u64 = 0;

/// Takes a call out that returns; false when none is open.
#[inline(never)]
pub fn leave(tid: u32, definition: u32, sp: u64) -> bool {
    let Some(open) = OPEN_CALLS.get_ptr_mut(slot_index(tid)) else {
        return false;
    };
    // SAFETY: as in `enter`.
    let open = unsafe { &mut *open };
    if open.tid != tid {
        return false;
    }
    for at in 0..MAX_OPEN {
        if at >= open.count as usize {
            break;
        }
        let call = &mut open.calls[at];
        if call.sp == sp && call.definition == u64::from(definition) {
            call.sp = LEFT;
            return true;
        }
    }
    false
}
