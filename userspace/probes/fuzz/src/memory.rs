//! Ends the process where a scan allocates more than its input can be worth.
//!
//! In: every allocation. Out: those of the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes at a time; inputs have at most 64 KiB, of which a decoded function takes 40
/// times as much.
const MAX_LIVE_BYTES: usize = 64 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Limited;

#[global_allocator]
static LIMITED: Limited = Limited;

// SAFETY: the system's allocator does it.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if LIVE.fetch_add(layout.size(), Relaxed) + layout.size() > MAX_LIVE_BYTES {
            eprintln!("more than {MAX_LIVE_BYTES} bytes are allocated");
            std::process::abort();
        }
        // SAFETY: as we are called.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as we are called.
        unsafe { System.dealloc(start, layout) }
    }
}
