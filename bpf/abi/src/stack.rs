//! The record of a thread's stack: of variable length, in a ring of its own.
//!
//! [`Stack`], then [`Stack::kernel_frames`] words, then [`Stack::user_bytes`] bytes.

use crate::record::RecordHeader;

/// Most bytes that are copied of a user stack at a sample of the profile.
pub const SAMPLE_BYTES: usize = 32 << 10;
/// The same where a thread leaves its CPU.
pub const OFF_CPU_BYTES: usize = 16 << 10;
/// Most frames of a kernel stack: what the kernel itself takes by default
/// (`sysctl kernel.perf_event_max_stack`).
pub const KERNEL_FRAMES: usize = 127;

/// The thread has no registers of user code: it is one of `io_uring`'s.
pub const FLAG_NO_USER: u16 = 1;
/// A breakpoint is right before the instruction pointer: unless the thread has passed it,
/// it is in the trap, and at the breakpoint. The kernel sets the pointer back only as it
/// handles the trap (kernel/events/uprobes.c, `handle_swbp`).
pub const FLAG_BREAKPOINT: u16 = 2;

/// Time between two stacks of threads that leave one CPU, where they leave it often, ns.
pub const PACE_NS: u64 = 4_000_000;
/// Stacks that a CPU takes at once before that counts.
pub const BURST: u64 = 25;

/// What is in front of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Stack {
    /// Kind `CPU_SAMPLE` or `OFF_CPU_STACK`.
    pub header: RecordHeader,
    /// Instruction pointer of the user code.
    pub ip: u64,
    /// Its stack pointer: address of the first byte that is copied.
    pub sp: u64,
    /// Its frame pointer.
    pub bp: u64,
    /// The thread's name, which ends at the first 0.
    pub name: [u8; 16],
    /// The CPU.
    pub cpu: u32,
    /// Return addresses in the kernel, leaf first.
    pub kernel_frames: u32,
    /// Bytes of the user stack, from `sp` up.
    pub user_bytes: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Room for the longest record.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Scratch {
    /// What is in front.
    pub head: Stack,
    /// What follows.
    pub rest: [u8; KERNEL_FRAMES * 8 + SAMPLE_BYTES],
}

/// Least bytes of user memory that are there or not.
pub const PAGE_BYTES: usize = 4096;

/// What a CPU may take of the stacks of threads that leave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Pace {
    /// When it may take the next one, if it never takes several at once,
    /// `CLOCK_MONOTONIC`, ns.
    pub next_ns: u64,
    /// How many it has left out.
    pub left_out: u64,
}

const _: () = assert!(size_of::<Stack>() == 72);
const _: () = assert!(size_of::<Scratch>() == 72 + 1016 + (32 << 10));
