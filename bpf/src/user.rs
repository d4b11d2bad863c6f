//! The target's memory.

use aya_ebpf::helpers::{bpf_probe_read_user, generated::bpf_copy_from_user};

use crate::maps::is_sleepable;

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
