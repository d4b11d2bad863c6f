//! What the kernel's structures say of a block I/O.

use dial9_bpf_abi::block_io::InFlight;

use crate::maps::global;

/// 1 where the tracepoints `block_bio_queue`, `block_bio_backmerge`,
/// `block_bio_frontmerge` and `block_rq_issue` have a queue before what they are about
/// (before 5.11).
#[unsafe(no_mangle)]
static BIO_HAS_QUEUE: u32 = 0;
/// Offset of `bi_opf` in `struct bio`, bytes.
#[unsafe(no_mangle)]
static BIO_OPF: u32 = 0;
/// Offset of `bi_status` in `struct bio`, bytes.
#[unsafe(no_mangle)]
static BIO_STATUS: u32 = 0;
/// Offset of `bi_iter.bi_sector` in `struct bio`, bytes.
#[unsafe(no_mangle)]
static BIO_SECTOR: u32 = 0;
/// Offset of `bi_iter.bi_size` in `struct bio`, bytes.
#[unsafe(no_mangle)]
static BIO_SIZE: u32 = 0;
/// Offset of `bi_next` in `struct bio`, bytes.
#[unsafe(no_mangle)]
static BIO_NEXT: u32 = 0;
/// Offset of `bi_bdev` in `struct bio`, bytes; of `bi_disk` where there is a queue.
#[unsafe(no_mangle)]
static BIO_DEVICE: u32 = 0;
/// Offset of `bd_disk` in `struct block_device`, bytes.
#[unsafe(no_mangle)]
static DEVICE_DISK: u32 = 0;
/// Offset of `major` in `struct gendisk`, bytes.
#[unsafe(no_mangle)]
static DISK_MAJOR: u32 = 0;
/// Offset of `first_minor` in `struct gendisk`, bytes.
#[unsafe(no_mangle)]
static DISK_MINOR: u32 = 0;
/// Offset of `bio` in `struct request`, bytes.
#[unsafe(no_mangle)]
static REQUEST_BIO: u32 = 0;
/// Offset of `i_ino` in `struct inode`, bytes.
#[unsafe(no_mangle)]
static INODE_NUMBER: u32 = 0;
/// Offset of `i_sb` in `struct inode`, bytes.
#[unsafe(no_mangle)]
static INODE_FILE_SYSTEM: u32 = 0;
/// Offset of `s_dev` in `struct super_block`, bytes.
#[unsafe(no_mangle)]
static FILE_SYSTEM_DEVICE: u32 = 0;

#[inline(always)]
pub fn has_queue() -> bool {
    global(&BIO_HAS_QUEUE) == 1
}

/// A `struct bio` that a tracepoint has handed out.
#[derive(Clone, Copy)]
pub struct Bio(pub *const u8);

impl Bio {
    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// `bi_opf`: the operation and its flags.
    #[inline(always)]
    pub fn operation(self) -> u32 {
        self.read(&BIO_OPF)
    }

    #[inline(always)]
    pub fn bytes(self) -> u32 {
        self.read(&BIO_SIZE)
    }

    #[inline(always)]
    pub fn status(self) -> u8 {
        self.read(&BIO_STATUS)
    }

    /// The next of the same request.
    #[inline(always)]
    pub fn next(self) -> Self {
        Self(self.read(&BIO_NEXT))
    }

    /// What it is that begins; the rest is zero.
    #[inline(always)]
    pub fn begun(self, tid: u32, begin_ns: u64) -> InFlight {
        let device: *const u8 = self.read(&BIO_DEVICE);
        let disk = if has_queue() {
            device
        } else {
            read(device, &DEVICE_DISK)
        };
        InFlight {
            begin_ns,
            issue_ns: 0,
            sector: self.read(&BIO_SECTOR),
            bytes: self.bytes(),
            flags: self.operation(),
            major: read(disk, &DISK_MAJOR),
            minor: read(disk, &DISK_MINOR),
            tid,
            is_merged: 0,
        }
    }

    #[inline(always)]
    fn read<T: Copy>(self, offset: &'static u32) -> T {
        read(self.0, offset)
    }
}

/// The first I/O of a request.
#[inline(always)]
pub fn first_of(request: *const u8) -> Bio {
    Bio(read(request, &REQUEST_BIO))
}

/// Number of an inode and the device of its file system, from an address.
#[inline(always)]
pub fn inode(inode: u64) -> (u64, u32) {
    use crate::sock::read;
    let file_system: u64 = read(inode, &INODE_FILE_SYSTEM);
    (
        read(inode, &INODE_NUMBER),
        read(file_system, &FILE_SYSTEM_DEVICE),
    )
}

/// Reads a member; each by itself, since the verifier knows members.
#[inline(always)]
fn read<T: Copy>(structure: *const u8, offset: &'static u32) -> T {
    // SAFETY: a structure that the kernel has handed out, or that such a one points to:
    // the kernel handles a fault there. The offset is this kernel's.
    unsafe { core::ptr::read_volatile(structure.add(global(offset) as usize).cast::<T>()) }
}
