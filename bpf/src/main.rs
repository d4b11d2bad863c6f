//! The kernel side of dial9-bpf: one program for each probe, and one for each of
//! the kernel's tracepoints that tell of the target.
//!
//! In: hits. Out: records in the CPU's ring, or a counted loss. Never: a
//! decision that userspace could take, a loop over data but the few pieces of a
//! text, a log line in the shipped object.
#![no_std]
#![expect(
    internal_features,
    reason = "atomic_xadd: core::sync::atomic has no fetch_add for this target"
)]
#![feature(core_intrinsics)]
#![no_main]

mod away;
mod bio;
mod block_io;
mod block_on;
mod declared;
mod emit;
mod exec;
mod filter;
mod fork;
mod fsync;
mod known;
mod life;
mod listen;
mod maps;
mod panic;
mod queue;
mod sched;
mod sock;
mod stack;
mod task;
mod worker;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// The helper that reads user memory is for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
