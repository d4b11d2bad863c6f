//! What the kernel keeps of block I/O between its begin and its end.

/// I/O of the target that is under way at a time, and is kept.
pub const MAX_IN_FLIGHT: u32 = 1 << 13;
/// Threads of the target that wait for a file to be synced at a time, and are kept.
pub const MAX_SYNCING: u32 = 1 << 12;

/// The low bits of `bio.bi_opf` that are the operation (`REQ_OP_BITS`,
/// `include/linux/blk_types.h`, 5.10 to 6.18).
pub const OP_MASK: u32 = 0xff;
/// `REQ_OP_READ` and `REQ_OP_WRITE`.
pub const OP_READ: u32 = 0;
/// See [`OP_READ`].
pub const OP_WRITE: u32 = 1;

/// One I/O that the target has submitted, by the address of its `struct bio`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InFlight {
    /// When it was submitted, `CLOCK_MONOTONIC`, ns.
    pub begin_ns: u64,
    /// When a driver got its request, `CLOCK_MONOTONIC`, ns; 0 before that.
    pub issue_ns: u64,
    /// Where on the disk, in 512 bytes.
    pub sector: u64,
    /// How much, bytes.
    pub bytes: u32,
    /// `bio.bi_opf`.
    pub flags: u32,
    /// The disk's major number.
    pub major: u32,
    /// Its first minor number.
    pub minor: u32,
    /// The thread that submitted it.
    pub tid: u32,
    /// 1 once it is part of a request that was there before.
    pub is_merged: u32,
}

/// A thread that waits for a file to be synced, by its tid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Syncing {
    /// Since when, `CLOCK_MONOTONIC`, ns.
    pub begin_ns: u64,
    /// 1 where only the file's data and what leads to it is wanted.
    pub is_data_only: u64,
}

/// What is counted of the I/O of the kernel's own threads: index into the per-CPU array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum KernelIoCount {
    /// Reads.
    Reads = 0,
    /// Their bytes.
    ReadBytes = 1,
    /// Writes.
    Writes = 2,
    /// Their bytes.
    WriteBytes = 3,
    /// Whatever is neither.
    Others = 4,
    /// Their bytes.
    OtherBytes = 5,
}

/// Entries of that array.
pub const KERNEL_IO_COUNTS: u32 = 6;

const _: () = assert!(size_of::<InFlight>() == 48);
const _: () = assert!(size_of::<Syncing>() == 16);
const _: () = assert!(size_of::<crate::record::IoBegin>() == 24);
const _: () = assert!(size_of::<crate::record::IoEnd>() == 72);
const _: () = assert!(size_of::<crate::record::Sync>() == 40);
