//! Wakes of tasks.
//!
//! In: a wake, and what the waking thread polls. Out: dial9's event of it. Never: one of a
//! closure of the blocking pool, which is no task to readers.

use dial9_bpf_abi::record::TaskRecord;

use super::Interpreter;
use super::lane::{Out, visit};
use crate::event::{Event, NO_WORKER};
use crate::location::Locations;
use crate::object::{self, unique};
use crate::tasks::Sighting;

/// Largest worker id that a wake can name.
const MAX_WAKE_WORKER: u32 = 253;

impl Interpreter {
    pub(super) fn wake(&mut self, wake: &TaskRecord, out: &mut impl FnMut(&Event, &Locations)) {
        let TaskRecord { header, task_id } = *wake;
        let task_id = unique(object::of(header), task_id);
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let (waker, worker) = visit(&mut self.threads, header, out);
        if task_id == 0 {
            out.stats.zero_tasks += 1;
            return;
        }
        match self.tasks.wake(task_id, header.ts_ns) {
            Sighting::Known => {}
            Sighting::Announce(event) => out.event(&event),
            Sighting::Blocking => {
                out.stats.blocking_wakes += 1;
                return;
            }
        }
        let target_worker = worker
            .filter(|&worker| worker <= MAX_WAKE_WORKER)
            .and_then(|worker| u8::try_from(worker).ok())
            .unwrap_or(NO_WORKER);
        let event = Event::Wake {
            ts_ns: header.ts_ns,
            waker,
            woken: task_id,
            target_worker,
        };
        out.event(&event);
    }
}
