//! Why a thread was off its CPU, and what it was doing.
//!
//! In: the record of a thread that is on a CPU again. Out: the interval, with the poll
//! that it interrupts; the waits of parks. Never: a waker that was not seen.

use dial9_bpf_abi::record::{
    FLAG_UNTOLD, FLAG_WAKER, FLAG_WOKEN_BY_INTERRUPT, OffCpu, RecordHeader,
};

use super::Interpreter;
use super::lane::{Out, visit};
use crate::event::{Absence, Event, Off, Waker};
use crate::location::Locations;

impl Interpreter {
    pub(super) fn off_cpu(&mut self, off: &OffCpu, out: &mut impl FnMut(&Event, &Locations)) {
        let RecordHeader {
            tid, ts_ns, flags, ..
        } = off.header;
        if flags & FLAG_UNTOLD != 0 {
            self.stats.untold_absences += 1;
            if let Some(thread) = self.threads.get(tid) {
                thread.parked_wait_ns = None;
            }
            return;
        }
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        // The thread did nothing meanwhile: what it polls now it polled then.
        let (task_id, worker) = visit(&mut self.threads, off.header, out);
        let why = Off::of_state(off.state);
        let wait_ns = wait_ns(off, why);
        if let Some(thread) = self.threads.get(tid) {
            let sum = thread.parked_wait_ns.zip(wait_ns);
            thread.parked_wait_ns = sum.map(|(before, wait)| before + wait);
        }
        out.event(&Event::OffCpu(Absence {
            ts_ns,
            duration_ns: ts_ns.saturating_sub(off.off_ns),
            tid,
            why,
            wait_ns,
            woken_by: waker(off, why),
            worker,
            task_id,
        }));
    }
}

/// How long the thread could have run; a wake may be older than the switch by the time
/// between the two tracepoints.
fn wait_ns(off: &OffCpu, why: Off) -> Option<u64> {
    let since_ns = match why {
        Off::Preempted => off.off_ns,
        _ if off.wake_ns == 0 => return None,
        _ => off.wake_ns.max(off.off_ns),
    };
    Some(off.header.ts_ns.saturating_sub(since_ns))
}

/// A preempted thread is woken by nobody.
fn waker(off: &OffCpu, why: Off) -> Option<Waker> {
    if why == Off::Preempted {
        return None;
    }
    let flags = off.header.flags;
    if flags & FLAG_WAKER != 0 {
        Some(Waker::Thread(off.waker))
    } else {
        (flags & FLAG_WOKEN_BY_INTERRUPT != 0).then_some(Waker::Interrupt)
    }
}
