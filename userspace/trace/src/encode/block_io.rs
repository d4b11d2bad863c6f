//! Block I/O and syncs.
//!
//! In: what the interpreter says of them. Out: our events.

use std::io::Write as _;

use dial9_trace_format::InternedString;

use super::Encoder;
use crate::event::{BlockIo, Device, KernelIo, Synced};
use crate::wire::{BlockIoEvent, FileSyncEvent, KernelIoEvent};

impl Encoder {
    pub(super) fn block_io(&mut self, io: &BlockIo) {
        let BlockIo {
            ts_ns,
            duration_ns,
            queue_ns,
            tid,
            worker,
            task_id,
            device,
            sector,
            bytes,
            operation,
            is_merged,
            failure,
        } = *io;
        let name = self.wire.intern_string_infallible(operation.name(bytes));
        let device = self.device(device);
        self.wire.write_infallible(&BlockIoEvent {
            ts_ns,
            duration_ns,
            name,
            tid,
            worker_id: worker.map(u64::from),
            task_id: (task_id > 0).then_some(task_id),
            device,
            sector,
            bytes: bytes.into(),
            queue_ns,
            sync: operation.is_sync(),
            metadata: operation.is_metadata(),
            readahead: operation.is_ahead(),
            preflush: operation.flushes(),
            fua: operation.is_forced(),
            merged: is_merged,
            error: failure,
        });
    }

    pub(super) fn synced(&mut self, synced: &Synced) {
        let Synced {
            ts_ns,
            duration_ns,
            tid,
            worker,
            task_id,
            device,
            inode,
            is_data_only,
            failure,
        } = *synced;
        let name = if is_data_only { "fdatasync" } else { "fsync" };
        let name = self.wire.intern_string_infallible(name);
        let device = self.device(device);
        self.wire.write_infallible(&FileSyncEvent {
            ts_ns,
            duration_ns,
            name,
            tid,
            worker_id: worker.map(u64::from),
            task_id: (task_id > 0).then_some(task_id),
            device,
            inode,
            error: failure,
        });
    }

    pub(super) fn kernel_io(&mut self, io: &KernelIo) {
        let KernelIo {
            ts_ns,
            reads: [reads, read_bytes],
            writes: [writes, write_bytes],
            others: [others, other_bytes],
        } = *io;
        self.wire.write_infallible(&KernelIoEvent {
            ts_ns,
            reads,
            read_bytes,
            writes,
            write_bytes,
            others,
            other_bytes,
        });
    }

    fn device(&mut self, device: Device) -> InternedString {
        // Two numbers of up to 10 digits.
        let mut text = [0; 24];
        let mut rest = &mut text[..];
        write!(rest, "{device}").expect("it has room");
        let left = rest.len();
        let text = std::str::from_utf8(&text[..text.len() - left]).expect("ASCII");
        self.wire.intern_string_infallible(text)
    }
}
