//! What is said of a block I/O and of a sync.
//!
//! In: the kernel's numbers. Out: their meaning. Never: a device's name: that is not the
//! kernel side's to copy.

use std::fmt;

use dial9_bpf_abi::block_io::OP_MASK;

/// A block I/O of the target: one `struct bio`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockIo {
    /// When it was done.
    pub ts_ns: u64,
    /// Time since it was submitted, ns.
    pub duration_ns: u64,
    /// The part of that before a driver got it, ns; `None` where that was not seen.
    pub queue_ns: Option<u64>,
    /// The thread that submitted it.
    pub tid: u32,
    /// The worker that it was then.
    pub worker: Option<u32>,
    /// The task that it polled then; 0 outside polls.
    pub task_id: u64,
    /// The disk.
    pub device: Device,
    /// Where on the disk, in 512 bytes.
    pub sector: u64,
    /// How much.
    pub bytes: u32,
    /// What, and how.
    pub operation: Operation,
    /// Whether it became part of a request that was there before.
    pub is_merged: bool,
    /// `blk_status_t` (`include/linux/blk_types.h`) where it failed.
    pub failure: Option<u32>,
}

/// A thread has waited for a file to be synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synced {
    /// When that was done.
    pub ts_ns: u64,
    /// How long it took, ns.
    pub duration_ns: u64,
    /// The thread.
    pub tid: u32,
    /// The worker that it is.
    pub worker: Option<u32>,
    /// The task that it polls; 0 outside polls.
    pub task_id: u64,
    /// Device of the file system.
    pub device: Device,
    /// Number of the file's inode.
    pub inode: u64,
    /// Whether only the data was wanted, as by `fdatasync`.
    pub is_data_only: bool,
    /// The error's number where it failed.
    pub failure: Option<u32>,
}

/// A device by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Its driver's.
    pub major: u32,
    /// Its own.
    pub minor: u32,
}

impl Device {
    /// From the kernel's `dev_t` (`include/linux/kdev_t.h`).
    pub(crate) const fn of_kernel(device: u32) -> Self {
        const MINOR_BITS: u32 = 20;
        Self {
            major: device >> MINOR_BITS,
            minor: device & ((1 << MINOR_BITS) - 1),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// `bio.bi_opf` (`include/linux/blk_types.h`; these bits are the same from 5.10 to 6.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation(pub u32);

impl Operation {
    const FLUSH: u32 = 2;
    const DISCARD: u32 = 3;
    const SECURE_ERASE: u32 = 5;
    const ZONE_APPEND: u32 = 7;
    const WRITE_ZEROES: u32 = 9;
    const SYNC: u32 = 1 << 11;
    const METADATA: u32 = 1 << 12;
    const FORCED: u32 = 1 << 17;
    const PREFLUSH: u32 = 1 << 18;
    const AHEAD: u32 = 1 << 19;

    /// Its name in the trace. A write of nothing that is to flush the disk's cache first
    /// is a flush.
    pub const fn name(self, bytes: u32) -> &'static str {
        match self.0 & OP_MASK {
            0 => "I/O: read",
            1 if bytes == 0 && self.0 & Self::PREFLUSH != 0 => "I/O: flush",
            1 | Self::ZONE_APPEND => "I/O: write",
            Self::FLUSH => "I/O: flush",
            Self::DISCARD | Self::SECURE_ERASE => "I/O: discard",
            Self::WRITE_ZEROES => "I/O: write zeroes",
            _ => "I/O: other",
        }
    }

    /// Whether somebody waits for it: `REQ_SYNC`, which reads need not have.
    pub const fn is_sync(self) -> bool {
        self.0 & OP_MASK == 0 && !self.is_ahead() || self.0 & Self::SYNC != 0
    }

    /// Whether it is the file system's own: `REQ_META`.
    pub const fn is_metadata(self) -> bool {
        self.0 & Self::METADATA != 0
    }

    /// Whether it is read ahead: `REQ_RAHEAD`.
    pub const fn is_ahead(self) -> bool {
        self.0 & Self::AHEAD != 0
    }

    /// Whether the disk's cache is to be flushed before it: `REQ_PREFLUSH`.
    pub const fn flushes(self) -> bool {
        self.0 & Self::PREFLUSH != 0
    }

    /// Whether it is to be past the disk's cache: `REQ_FUA`.
    pub const fn is_forced(self) -> bool {
        self.0 & Self::FORCED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_what_it_does() {
        let flush = Operation(1 | Operation::PREFLUSH);
        assert_eq!(
            (flush.name(0), flush.name(512)),
            ("I/O: flush", "I/O: write")
        );
        assert_eq!(Operation(0).name(4096), "I/O: read");
        assert!(Operation(0).is_sync() && !Operation(1).is_sync());
        assert!(!Operation(Operation::AHEAD).is_sync());
        assert!(Operation(1 | Operation::SYNC).is_sync());
    }

    #[test]
    fn a_device_has_two_numbers() {
        let device = Device::of_kernel(254 << 20 | 16);
        assert_eq!(device.to_string(), "254:16");
    }
}
