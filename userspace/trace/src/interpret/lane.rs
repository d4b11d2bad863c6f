//! The steps that every kind of record shares: a record arrives at its thread,
//! a poll closes, a gap cuts.
//!
//! In: a thread's state and a time. Out: events, and counters of what could
//! not become one. Never: a time in a worker's lane that is before the last.

use dial9_bpf_abi::record::{FLAG_GAP_ALL_THREADS, Gap, RecordHeader};

use super::Interpreter;
use crate::event::Event;
use crate::location::Locations;
use crate::stats::Stats;
use crate::threads::{OpenPoll, PendingGap, Thread, Threads, Work};

impl Interpreter {
    pub(super) fn gap(&mut self, gap: &Gap, out: &mut impl FnMut(&Event, &Locations)) {
        let Gap { header, lost } = *gap;
        if header.flags & FLAG_GAP_ALL_THREADS == 0 {
            self.get_over(header.tid, out);
        } else {
            self.get_over_all(out);
        }
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let pending = PendingGap {
            since_ns: header.ts_ns,
            lost,
        };
        if header.flags & FLAG_GAP_ALL_THREADS != 0 {
            cut_all(&mut self.threads, pending, out);
        }
        cut(self.threads.enter(header.tid), pending, out);
    }
}

/// Where events go: counted, then to the caller, with the names they use.
pub(super) struct Out<'a, F> {
    pub(super) stats: &'a mut Stats,
    locations: &'a Locations,
    each: &'a mut F,
}

impl<'a, F: FnMut(&Event, &Locations)> Out<'a, F> {
    pub(super) fn new(stats: &'a mut Stats, locations: &'a Locations, each: &'a mut F) -> Self {
        Self {
            stats,
            locations,
            each,
        }
    }

    #[inline]
    pub(super) fn event(&mut self, event: &Event) {
        self.stats.events.count(event);
        (self.each)(event, self.locations);
    }
}

/// A record about a task: the task and the worker that the thread polls, where
/// it does. A late record is nobody's.
#[inline]
pub(super) fn visit(
    threads: &mut Threads,
    header: RecordHeader,
    out: &mut Out<'_, impl FnMut(&Event, &Locations)>,
) -> (u64, Option<u32>) {
    visit_for(Thread::innermost, threads, header, out)
}

/// The same, with what is to be known of the task that the thread runs.
#[inline]
pub(super) fn visit_for(
    task_of: fn(&Thread) -> u64,
    threads: &mut Threads,
    header: RecordHeader,
    out: &mut Out<'_, impl FnMut(&Event, &Locations)>,
) -> (u64, Option<u32>) {
    let RecordHeader { tid, ts_ns, .. } = header;
    let Some(thread) = threads.get(tid) else {
        return (0, None);
    };
    if ts_ns < thread.last_ns {
        return (0, None);
    }
    let had_gap = thread.gap.is_some();
    arrive(thread, ts_ns, out);
    let found = (task_of(thread), thread.current_worker());
    if had_gap {
        threads.forget_if_idle(tid);
    }
    found
}

/// A record of the thread: ends its gap. False when the record is older than
/// the thread's last, which happens to late records only.
#[inline]
pub(super) fn arrive(
    thread: &mut Thread,
    ts_ns: u64,
    out: &mut Out<'_, impl FnMut(&Event, &Locations)>,
) -> bool {
    if ts_ns < thread.last_ns {
        out.stats.out_of_order += 1;
        return false;
    }
    thread.last_ns = ts_ns;
    end_gap(thread, ts_ns, out);
    true
}

#[inline]
pub(super) fn end_gap(
    thread: &mut Thread,
    ts_ns: u64,
    out: &mut Out<'_, impl FnMut(&Event, &Locations)>,
) {
    if let Some(PendingGap { since_ns, lost }) = thread.gap.take() {
        let duration_ns = ts_ns.saturating_sub(since_ns);
        out.event(&Event::Gap {
            ts_ns,
            duration_ns,
            tid: thread.tid,
            lost,
        });
    }
}

/// The poll is off the stack: a task's poll ends in the trace.
#[inline]
pub(super) fn close(
    thread: &mut Thread,
    poll: OpenPoll,
    ts_ns: u64,
    out: &mut Out<'_, impl FnMut(&Event, &Locations)>,
) {
    if let Work::Task { worker } = poll.work {
        thread.depth -= 1;
        out.event(&Event::PollEnd { ts_ns, worker });
    }
}

/// Drops what the thread has open, without an event.
pub(super) fn forget(thread: &mut Thread, stats: &mut Stats) {
    stats.block_ons_cut += thread.blocked.drain(..).count() as u64;
    stats.unpaired_calls += thread.calls.drain(..).count() as u64;
    for poll in thread.open.drain(..) {
        match poll.work {
            Work::Task { .. } => stats.polls_interrupted += 1,
            Work::Closure { .. } => stats.blocking_cut_by_gap += 1,
            Work::WorkerLoop { .. } => {}
        }
    }
    thread.depth = 0;
    thread.is_after_gap = true;
    thread.has_queue = false;
    thread.parked_wait_ns = None;
}

/// Closes what the thread has open at the first lost hit; the thread's last
/// record proves that it was open until then.
pub(super) fn cut(
    thread: &mut Thread,
    gap: PendingGap,
    out: &mut Out<'_, impl FnMut(&Event, &Locations)>,
) {
    let since_ns = gap.since_ns.max(thread.last_ns);
    out.stats.block_ons_cut += thread.blocked.drain(..).count() as u64;
    out.stats.unpaired_calls += thread.calls.drain(..).count() as u64;
    while let Some(poll) = thread.open.pop() {
        match poll.work {
            Work::Task { .. } => out.stats.polls_cut_by_gap += 1,
            Work::Closure { .. } => out.stats.blocking_cut_by_gap += 1,
            Work::WorkerLoop { .. } => {}
        }
        close(thread, poll, since_ns, out);
    }
    thread.is_after_gap = true;
    thread.has_queue = false;
    thread.parked_wait_ns = None;
    thread.last_ns = since_ns;
    // Two gaps without a record between them are one.
    let earlier = thread.gap.take();
    thread.gap = Some(PendingGap {
        since_ns: earlier.map_or(since_ns, |earlier| earlier.since_ns),
        lost: gap
            .lost
            .saturating_add(earlier.map_or(0, |earlier| earlier.lost)),
    });
}

pub(super) fn cut_all(
    threads: &mut Threads,
    gap: PendingGap,
    out: &mut Out<'_, impl FnMut(&Event, &Locations)>,
) {
    for thread in threads.iter_mut() {
        // The hits are counted once, by the thread that reported them.
        cut(thread, PendingGap { lost: 0, ..gap }, out);
    }
}
