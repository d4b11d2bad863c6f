//! Parks and unparks.
//!
//! In: a worker's record. Out: the event, with the worker, the CPU time, what it
//! waited, and what is in its queue. Never: two of one kind in a row.

use dial9_bpf_abi::record::Park;

use super::Interpreter;
use super::lane::{Out, arrive};
use crate::event::{Event, ParkEvent};
use crate::location::Locations;
use crate::threads::ParkSide;

impl Interpreter {
    pub(super) fn park(
        &mut self,
        park: &Park,
        side: ParkSide,
        out: &mut impl FnMut(&Event, &Locations),
    ) {
        let Park { header, cpu_ns, .. } = *park;
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let thread = self.threads.enter(header.tid);
        if !arrive(thread, header.ts_ns, out) {
            return;
        }
        thread.mark_worker_loops();
        let queued = self.queues.at_park(park, thread);
        thread.cpu_ns = thread.cpu_ns.max(cpu_ns);
        // Within a poll it is a runtime's that the poll blocks on.
        let worker = thread.worker_at(thread.depth, &mut self.workers);
        if !self.workers.turn(worker, side) {
            out.stats.dropped_unpaired += 1;
            return;
        }
        let waited_ns = thread.parked_wait_ns.take();
        if side == ParkSide::Park && self.tells_waits {
            thread.parked_wait_ns = Some(0);
        }
        let event = ParkEvent {
            ts_ns: header.ts_ns,
            worker,
            cpu_ns: thread.cpu_ns,
            tid: header.tid,
            wait_ns: waited_ns.filter(|_| side == ParkSide::Unpark),
            queued,
        };
        out.stats.queues.park(queued);
        let event = match side {
            ParkSide::Park => Event::Park(event),
            ParkSide::Unpark => Event::Unpark(event),
        };
        out.event(&event);
    }
}
