//! What the target reads from its disks and writes to them.
//!
//! In: records of I/O that begins and that is done, and of syncs. Out: an event of each
//! that is done, with the poll in which it was submitted. Never: the poll that runs when
//! it is done.

use std::collections::HashMap;

use dial9_bpf_abi::block_io::MAX_IN_FLIGHT;
use dial9_bpf_abi::record::{self, FLAG_DATA_ONLY, FLAG_MERGED, IoBegin, IoEnd};
use foldhash::fast::RandomState;

use super::Interpreter;
use super::lane::{Out, visit_for};
use crate::block_io::{BlockIo, Device, Operation, Synced};
use crate::event::Event;
use crate::location::Locations;
use crate::threads::Thread;

/// What submitted the I/O that is under way, by the address of its `struct bio`.
#[derive(Debug, Default)]
pub(super) struct Submitted(HashMap<u64, Submission, RandomState>);

#[derive(Clone, Copy, Debug)]
struct Submission {
    begin_ns: u64,
    task_id: u64,
    worker: Option<u32>,
}

impl Submitted {
    /// I/O that has begun and is not done.
    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }
}

impl Interpreter {
    pub(super) fn io_begin(&mut self, begin: &IoBegin, out: &mut impl FnMut(&Event, &Locations)) {
        let IoBegin { header, bio } = *begin;
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let (task_id, worker) =
            visit_for(Thread::innermost_or_closure, &mut self.threads, header, out);
        let submission = Submission {
            begin_ns: header.ts_ns,
            task_id,
            worker,
        };
        let submitted = &mut self.submitted.0;
        // The kernel keeps no more; those whose end was lost stay until their address
        // comes again.
        if submitted.len() < MAX_IN_FLIGHT as usize || submitted.contains_key(&bio) {
            submitted.insert(bio, submission);
        }
    }

    pub(super) fn io_end(&mut self, end: &IoEnd, out: &mut impl FnMut(&Event, &Locations)) {
        let IoEnd {
            header,
            bio,
            begin_ns,
            issue_ns,
            sector,
            bytes,
            operation,
            major,
            minor,
            submitter,
            status,
        } = *end;
        let submission = self.submitted.0.remove(&bio);
        // Another one's, whose end was lost, tells nothing of this.
        let submission = submission.filter(|of| of.begin_ns == begin_ns);
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        out.event(&Event::BlockIo(BlockIo {
            ts_ns: header.ts_ns,
            duration_ns: header.ts_ns.saturating_sub(begin_ns),
            queue_ns: (issue_ns > 0).then(|| issue_ns.saturating_sub(begin_ns)),
            tid: submitter,
            worker: submission.and_then(|of| of.worker),
            task_id: submission.map_or(0, |of| of.task_id),
            device: Device { major, minor },
            sector,
            bytes,
            operation: Operation(operation),
            is_merged: header.flags & FLAG_MERGED != 0,
            failure: (status > 0).then_some(status),
        }));
    }

    /// Its thread did nothing meanwhile: what it polls now it polled then.
    pub(super) fn sync(&mut self, sync: &record::Sync, out: &mut impl FnMut(&Event, &Locations)) {
        let record::Sync {
            header,
            begin_ns,
            inode,
            device,
            error,
        } = *sync;
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let (task_id, worker) =
            visit_for(Thread::innermost_or_closure, &mut self.threads, header, out);
        out.event(&Event::Synced(Synced {
            ts_ns: header.ts_ns,
            duration_ns: header.ts_ns.saturating_sub(begin_ns),
            tid: header.tid,
            worker,
            task_id,
            device: Device::of_kernel(device),
            inode,
            is_data_only: header.flags & FLAG_DATA_ONLY != 0,
            failure: (error < 0).then(|| error.unsigned_abs()),
        }));
    }
}
