//! The same of block I/O.
//!
//! In: nothing. Out: texts. Never: in the built library.

use super::{Meaning, TID};

const SUBMITTING_TASK: (&str, &str) = (
    "task_id",
    "tokio::task::Id of the task that it was polling then, or of the blocking task that it was running; absent where neither was seen to begin",
);
const DEVICE: (&str, &str) = (
    "device",
    "MAJOR:MINOR of the disk; metadata device.MAJOR:MINOR has its name",
);

pub(in crate::schemas) const BLOCK_IO: Meaning = (
    "ours: a block I/O that a thread of the target has submitted; a span that ends when it is done. \
     One struct bio: what merges into one request is one event each, what is split is one",
    &[
        ("duration_ns", "time since it was submitted, ns"),
        (
            "name",
            "read, write, flush, discard, write zeroes or other; a flush is also the write of nothing by which a file system flushes the disk's cache",
        ),
        (
            "tid",
            "thread that submitted it, in the initial pid namespace",
        ),
        (
            "worker_id",
            "the worker that it was then; absent for others",
        ),
        SUBMITTING_TASK,
        DEVICE,
        ("sector", "where on the disk, in 512 bytes"),
        ("bytes", "how much"),
        (
            "queue_ns",
            "the part before a driver got it for the last time, ns; absent where no request was seen",
        ),
        (
            "sync",
            "somebody waits for it: a read that is not ahead, or REQ_SYNC",
        ),
        ("metadata", "it is the file system's own: REQ_META"),
        ("readahead", "nobody has asked for it yet: REQ_RAHEAD"),
        (
            "preflush",
            "the disk's cache is flushed before it: REQ_PREFLUSH",
        ),
        (
            "fua",
            "it is past the disk's cache when it is done: REQ_FUA",
        ),
        ("merged", "it became part of a request that was there"),
        ("error", "blk_status_t; absent where it did not fail"),
    ],
);
pub(in crate::schemas) const FILE_SYNC: Meaning = (
    "ours: a thread has waited until a file of ext4 was on its disk: by fsync, fdatasync, msync, io_uring, \
     or a write with O_SYNC or O_DSYNC; a span that ends here",
    &[
        ("duration_ns", "how long, ns"),
        ("name", "fsync, or fdatasync where only the data was wanted"),
        TID,
        (
            "worker_id",
            "the worker that the thread is; absent for others",
        ),
        SUBMITTING_TASK,
        ("device", "MAJOR:MINOR of the file system"),
        ("inode", "number of the file's inode"),
        ("error", "errno; absent where it did not fail"),
    ],
);
pub(in crate::schemas) const KERNEL_IO: Meaning = (
    "ours: block I/O that threads of the kernel have submitted since the recording began, for whomever: \
     cached writes of any process, journals; once a second and at the end",
    &[
        ("reads", "how many"),
        ("read_bytes", "their bytes"),
        ("writes", "how many"),
        ("write_bytes", "their bytes"),
        ("others", "flushes, discards and such"),
        ("other_bytes", "their bytes"),
    ],
);
