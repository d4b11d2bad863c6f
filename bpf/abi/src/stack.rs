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
    pub kernel_frames: u16,
    /// 1 where the stack may go on behind what was copied.
    pub is_cut: u16,
    /// Bytes of the user stack, from `sp` up.
    pub user_bytes: u32,
    /// Always 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Stack>() == 72);
