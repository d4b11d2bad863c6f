//! Reserve, stamp, fill, submit; or count the loss. The only user of the rings.

use aya_ebpf::helpers::{bpf_ktime_get_ns, generated::bpf_ringbuf_output};
use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_xadd};
use dial9_bpf_abi::{
    loss::{LossCause, counter_index},
    record::{FLAG_GAP_ALL_THREADS, Gap, RecordHeader, RecordKind},
    thread::{LOST_BY_SEVERAL, LostHits, slot_index},
};

use crate::maps::{LOSSES, LOST_HITS, RINGS, Ring, has_lost, note_lost};

/// `BPF_RB_NO_WAKEUP` (include/uapi/linux/bpf.h): the consumer runs on a timer.
/// A wake-up costs the target 1 to 11 us a hit.
pub const NO_WAKEUP: u64 = 1;

/// One hit of a traced thread.
pub struct Hit {
    /// What its record is.
    pub kind: RecordKind,
    /// The CPU.
    pub cpu: u32,
    /// The thread; 0 for none, which has no gaps.
    pub tid: u32,
}

impl Hit {
    /// Submits a record of type `R`; `fill` writes what follows the header,
    /// field by field through the pointer (a struct literal may become a
    /// `memset` call, which the linker refuses).
    #[inline(always)]
    pub fn emit<R: 'static>(&self, flags: u16, fill: impl FnOnce(*mut R)) {
        // SAFETY: the helper has no precondition.
        self.put(flags, || unsafe { bpf_ktime_get_ns() }, fill);
    }

    /// The same with a time that was taken before, `CLOCK_MONOTONIC`, ns.
    #[inline(always)]
    pub fn emit_at<R: 'static>(&self, ts_ns: u64, flags: u16, fill: impl FnOnce(*mut R)) {
        self.put(flags, || ts_ns, fill);
    }

    #[inline(always)]
    fn put<R: 'static>(&self, flags: u16, stamp: impl FnOnce() -> u64, fill: impl FnOnce(*mut R)) {
        let Some(ring) = RINGS.get(self.cpu) else {
            return self.lose(LossCause::NoRing);
        };
        if self.tid != 0 && has_lost() && !tell_gap(ring, self.tid) {
            return self.lose(LossCause::RingFull);
        }
        let Some(mut entry) = ring.reserve_untyped::<R>(0) else {
            return self.lose(LossCause::RingFull);
        };
        let record = entry.as_mut_ptr();
        // SAFETY: every record begins with a header, and the entry is ours
        // until it is submitted.
        unsafe { write_header(record.cast(), self.kind, flags, self.tid, stamp()) };
        fill(record);
        entry.submit(NO_WAKEUP);
    }

    /// Submits a record that is put together elsewhere, of `bytes` bytes.
    ///
    /// # Safety
    /// So many bytes can be read there, and a header is in front of them.
    #[inline(always)]
    pub unsafe fn emit_copy(&self, record: *const c_void, bytes: u64) {
        let Some(ring) = RINGS.get(self.cpu) else {
            return self.lose(LossCause::NoRing);
        };
        if self.tid != 0 && has_lost() && !tell_gap(ring, self.tid) {
            return self.lose(LossCause::RingFull);
        }
        let ring = core::ptr::from_ref(ring).cast_mut().cast();
        // SAFETY: the caller's; the ring is a live map.
        let refused = unsafe { bpf_ringbuf_output(ring, record.cast_mut(), bytes, NO_WAKEUP) };
        if refused != 0 {
            self.lose(LossCause::RingFull);
        }
    }

    /// Counts the hit as lost and marks its thread, so that the thread's next
    /// record is preceded by a gap.
    #[inline(always)]
    pub fn lose(&self, cause: LossCause) {
        lose(counter_index(self.kind, cause), self.tid);
    }
}

/// Counts one at the index, and one for the thread if there is one.
///
/// The slot is written by its own thread, or by another whose tid agrees in
/// the low bits: then the gap becomes everybody's. Not inlined, as `tell_gap`: what a
/// program may have on its stack is little (`xtask/src/object/stack.rs`).
#[inline(never)]
fn lose(counter: u32, tid: u32) {
    if let Some(count) = LOSSES.get_ptr_mut(counter) {
        // SAFETY: the pointer is to a map value; the add is atomic, since on
        // preemptible kernels two programs interleave on one CPU.
        unsafe {
            atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(count, 1);
        }
    }
    if tid == 0 {
        return;
    }
    note_lost();
    let Some(slot) = LOST_HITS.get_ptr_mut(slot_index(tid)) else {
        return;
    };
    // SAFETY: a map value lives as long as the program; above is who writes.
    let slot = unsafe { &mut *slot };
    if slot.lost == 0 {
        slot.tid = tid;
        // SAFETY: the helper has no precondition.
        slot.since_ns = unsafe { bpf_ktime_get_ns() };
    } else if slot.tid != tid {
        slot.tid = LOST_BY_SEVERAL;
    }
    slot.lost += 1;
}

/// Submits what the thread's slot holds; false when the ring is full.
#[inline(never)]
fn tell_gap(ring: &Ring, tid: u32) -> bool {
    let Some(slot) = LOST_HITS.get_ptr_mut(slot_index(tid)) else {
        return true;
    };
    // SAFETY: as in `lose`.
    let slot = unsafe { &mut *slot };
    slot.lost == 0 || emit_gap(ring, slot)
}

/// Submits the gap that a slot holds; false when the ring is full.
#[inline(always)]
fn emit_gap(ring: &Ring, slot: &mut LostHits) -> bool {
    let Some(mut entry) = ring.reserve_untyped::<Gap>(0) else {
        return false;
    };
    let several = slot.tid == LOST_BY_SEVERAL;
    let (tid, flags) = if several {
        (0, FLAG_GAP_ALL_THREADS)
    } else {
        (slot.tid, 0)
    };
    let gap = entry.as_mut_ptr();
    // SAFETY: the entry is ours until it is submitted.
    unsafe {
        write_header(gap.cast(), RecordKind::GAP, flags, tid, slot.since_ns);
        (&raw mut (*gap).lost).write(slot.lost);
    }
    slot.lost = 0;
    entry.submit(NO_WAKEUP);
    true
}

/// # Safety
/// `header` is valid for writes.
#[inline(always)]
unsafe fn write_header(
    header: *mut RecordHeader,
    kind: RecordKind,
    flags: u16,
    tid: u32,
    ts_ns: u64,
) {
    // SAFETY: the caller's.
    unsafe {
        (&raw mut (*header).kind).write(kind);
        (&raw mut (*header).flags).write(flags);
        (&raw mut (*header).tid).write(tid);
        (&raw mut (*header).ts_ns).write(ts_ns);
    }
}
