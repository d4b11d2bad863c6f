//! The first thing every program does: is this process traced?

use aya_ebpf::helpers::bpf_get_current_pid_tgid;

use crate::maps::TARGETS;

/// The tid of the current thread, if its process is a target.
///
/// Kernels 6.6 to 6.9 have a broken pid filter on uprobe_multi links, and a
/// link without a pid may serve several targets: so the program filters always.
#[inline(always)]
pub fn traced_tid() -> Option<u32> {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    let word = *TARGETS.get(tgid >> 6)?;
    if word >> (tgid & 63) & 1 == 0 {
        return None;
    }
    Some(pid_tgid as u32)
}
