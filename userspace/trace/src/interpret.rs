//! Records to events.
//!
//! In: records in order of time, and the threads whose losses are still open
//! at the end. Out: events, through a callback. Never: a guess: what a gap
//! hides is closed at the gap and counted, and what cannot be paired is
//! dropped and counted.
//!
//! Polls are paired by stack pointer. The stack grows down, so an inner poll
//! has a smaller one, and a start at or above the innermost open poll shows
//! that this one has ended. A worker id belongs to a thread and a nesting depth
//! of task polls, so the polls of one worker never nest; it is free again when the
//! thread's worker loop, which is a closure of the blocking pool, has ended.

use dial9_bpf_abi::queue::split;
use dial9_bpf_abi::record::{
    FLAG_BLOCKING, FLAG_VTABLE_ADDRESS, PollEnd, PollStart, RecordHeader, Spawn, Terminate,
};

use crate::decode::Record;
use crate::event::{Event, Sample, TargetEnd};
use crate::location::{LocationId, Locations, ObjectTypes};
use crate::metadata::Runtime;
use crate::object::{self, unique};
use crate::payloads::Payloads;
use crate::schedulers::Schedulers;
use crate::stats::Stats;
use crate::tasks::{Sighting, Tasks};
use crate::threads::{OpenPoll, ParkSide, PendingGap, Threads, Work, Workers};
use accept_queue::Listeners;
use block_io::Submitted;
use lane::{Out, arrive, close, cut, cut_all, end_gap, visit};
use life::Life;
use queue::Queues;
use watch::Watch;

pub use watch::LongPoll;

pub(crate) mod accept_queue;
mod block_io;
mod block_on;
mod declared;
mod lane;
mod life;
mod off_cpu;
mod park;
mod queue;
mod sampled;
mod wake;
mod watch;

/// Losses of a thread that no later record has reported, from the kernel's
/// thread slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenGap {
    /// The thread; `None` when several share the slot.
    pub tid: Option<u32>,
    /// Time of the first lost hit, `CLOCK_MONOTONIC` ns.
    pub since_ns: u64,
    /// Hits lost.
    pub lost: u64,
}

/// State of one target across its segments.
#[derive(Debug)]
pub struct Interpreter {
    locations: Locations,
    threads: Threads,
    tasks: Tasks,
    workers: Workers,
    schedulers: Schedulers,
    life: Life,
    listeners: Listeners,
    submitted: Submitted,
    queues: Queues,
    payloads: Payloads,
    watch: Watch,
    /// Whether every interval off the CPU has its wake.
    tells_waits: bool,
    stats: Stats,
}

impl Interpreter {
    /// A fresh state for a target with these task types.
    pub fn new(locations: Locations) -> Self {
        Self {
            locations,
            threads: Threads::default(),
            tasks: Tasks::new(),
            workers: Workers::default(),
            schedulers: Schedulers::default(),
            life: Life::default(),
            listeners: Listeners::default(),
            submitted: Submitted::default(),
            queues: Queues::default(),
            payloads: Payloads::default(),
            watch: Watch::default(),
            tells_waits: false,
            stats: Stats::default(),
        }
    }

    /// The names that events refer to.
    pub fn locations(&self) -> &Locations {
        &self.locations
    }

    /// The target has one more object, of the next number.
    pub fn add_object(&mut self, object: ObjectTypes) {
        self.locations.add_object(object);
    }

    /// Counters since the start.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// How the target ended, once it has.
    pub fn target_end(&self) -> Option<&TargetEnd> {
        self.life.end()
    }

    /// Takes note of polls that last so long from now on, ns.
    pub fn watch_polls(&mut self, limit_ns: u64) {
        self.watch.limit_ns = limit_ns;
    }

    /// Whether intervals off the CPU come with their wakes: then a park without any has
    /// not waited.
    pub fn tell_waits(&mut self, tells_waits: bool) {
        self.tells_waits = tells_waits;
    }

    /// The longest of those since this was last asked.
    pub fn take_long_poll(&mut self) -> Option<LongPoll> {
        self.watch.longest.take()
    }

    /// Every worker id given so far, by runtime as far as that is known.
    pub fn runtimes(&self) -> Vec<Runtime> {
        self.workers.runtimes()
    }

    /// The number of each list of tasks and the address of its scheduler, as far as they
    /// have become known since this was last asked.
    pub fn take_schedulers(&mut self, each: impl FnMut((u64, u64))) {
        self.schedulers.take(each);
    }

    /// Says a runtime's counters.
    pub fn sample(&mut self, sample: Sample, out: &mut impl FnMut(&Event, &Locations)) {
        let mut out = Out::new(&mut self.stats, &self.locations, out);
        out.event(&match sample {
            Sample::Runtime(sample) => Event::RuntimeMetrics(sample),
            Sample::Process(usage) => Event::Usage(usage),
            Sample::KernelIo(io) => Event::KernelIo(io),
        });
    }

    /// Interprets one record.
    #[inline]
    pub fn record(&mut self, record: &Record, out: &mut impl FnMut(&Event, &Locations)) {
        self.stats.records.count(record);
        match record {
            Record::PollStart(start) => self.poll_start(start, out),
            Record::PollEnd(end) => {
                self.get_over(end.header.tid, out);
                self.poll_end(end, out);
            }
            Record::Wake(wake) => self.wake(wake, out),
            Record::Spawn(spawn) => self.spawn(spawn, out),
            Record::Terminate(task) => {
                self.get_over(task.header.tid, out);
                self.terminate(task, out);
            }
            Record::Park(park) => self.park(park, ParkSide::Park, out),
            Record::Unpark(park) => self.park(park, ParkSide::Unpark, out),
            Record::Gap(gap) => self.gap(gap, out),
            Record::Panic(panic) => self.panic(panic, out),
            Record::Text(text) => self.text(text, out),
            Record::Signal(signal) => self.signal(signal, out),
            Record::Exit(exit) => self.exit(exit, out),
            Record::OffCpu(off) => self.off_cpu(off, out),
            Record::BlockOn(begin) => self.block_on(begin, out),
            Record::BlockOnEnd(end) => self.block_on_end(end, out),
            Record::AcceptQueue(queue) => self.accept_queue(queue, out),
            Record::IoBegin(begin) => self.io_begin(begin, out),
            Record::IoEnd(end) => self.io_end(end, out),
            Record::Sync(sync) => self.sync(sync, out),
            Record::Declared(record, payload) => self.declared(record, *payload, out),
        }
    }

    /// Ends a segment: says what it still lacks. The next record belongs to
    /// the next segment.
    pub fn rotate(&mut self, out: &mut impl FnMut(&Event, &Locations)) {
        let mut saying = Out::new(&mut self.stats, &self.locations, out);
        let forgotten = self.tasks.rotate(|event| saying.event(event));
        self.stats.forgotten_tasks += forgotten;
        self.rotate_listeners(out);
    }

    /// The events since some time are in no file: what is open now ends
    /// unseen, so that no interval of the trace spans what is missing.
    pub fn interrupt(&mut self) {
        for thread in self.threads.iter_mut() {
            lane::forget(thread, &mut self.stats);
        }
    }

    /// Workers with the thread that each of them is at this moment.
    pub fn worker_threads(&mut self) -> Vec<(u32, u32)> {
        let mut pairs: Vec<(u32, u32)> = self
            .threads
            .iter_mut()
            .filter_map(|thread| Some((thread.first_worker()?, thread.tid)))
            .collect();
        pairs.sort_unstable();
        pairs
    }

    /// Ends the recording: closes what the kernel lost and nobody reported, and
    /// says the panics whose message has not come. Polls that are truly open stay
    /// open.
    pub fn finish(
        &mut self,
        now_ns: u64,
        gaps: &[OpenGap],
        out: &mut impl FnMut(&Event, &Locations),
    ) {
        let mut closing = Out::new(&mut self.stats, &self.locations, out);
        for gap in gaps {
            let pending = PendingGap {
                since_ns: gap.since_ns,
                lost: gap.lost,
            };
            match gap.tid {
                Some(tid) => cut(self.threads.enter(tid), pending, &mut closing),
                None => cut_all(&mut self.threads, pending, &mut closing),
            }
        }
        for thread in self.threads.iter_mut() {
            end_gap(thread, now_ns, &mut closing);
        }
        self.get_over_all(out);
        self.rotate(out);
        self.stats.unfinished_io = self.submitted.count();
    }

    fn poll_start(&mut self, start: &PollStart, out: &mut impl FnMut(&Event, &Locations)) {
        let PollStart {
            header,
            task_id,
            sp,
            vtable: word,
        } = *start;
        let (vtable, _) = split(word);
        let ts_ns = header.ts_ns;
        let of = object::of(header);
        let task_id = unique(of, task_id);
        if task_id == 0 {
            self.stats.zero_tasks += 1;
            return;
        }
        let location = locate(&mut self.locations, header, vtable);
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let thread = self.threads.enter(header.tid);
        if !arrive(thread, ts_ns, out) {
            return;
        }
        thread.is_after_gap = false;
        while let Some(poll) = thread.open.pop_if(|poll| poll.sp <= sp) {
            out.stats.unended_polls += 1;
            close(thread, poll, ts_ns, out);
        }
        let work = if self.locations.is_blocking(location) {
            if thread.open.is_empty() {
                // The bottom of a pool's thread: the worker that it was, by a loop that
                // began unseen, it is no more.
                thread.leave_workers(&mut self.workers);
                thread.has_queue = false;
            }
            self.tasks.block(task_id, ts_ns, location);
            Work::Closure { location }
        } else {
            thread.mark_worker_loops();
            let queued = queue::at_poll(word, thread);
            out.stats.queues.poll(queued);
            let worker = thread.worker_at(thread.depth, &mut self.workers);
            self.workers.note_awake(worker, of);
            thread.depth += 1;
            if let Sighting::Announce(event) = self.tasks.poll(task_id, ts_ns, location) {
                out.event(&event);
            }
            out.event(&Event::PollStart {
                ts_ns,
                worker,
                task_id,
                location,
                queued,
            });
            Work::Task { worker }
        };
        thread.open.push(OpenPoll {
            sp,
            task_id,
            start_ns: ts_ns,
            work,
        });
    }

    fn poll_end(&mut self, end: &PollEnd, out: &mut impl FnMut(&Event, &Locations)) {
        let RecordHeader { tid, ts_ns, .. } = end.header;
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let Some(thread) = self.threads.get(tid) else {
            out.stats.stray_ends += 1;
            return;
        };
        if !arrive(thread, ts_ns, out) {
            return;
        }
        let Some(at) = thread.open.iter().rposition(|poll| poll.sp == end.sp) else {
            if thread.is_after_gap {
                out.stats.ends_after_gap += 1;
            } else {
                out.stats.stray_ends += 1;
            }
            self.threads.forget_if_idle(tid);
            return;
        };
        while thread.open.len() > at + 1
            && let Some(poll) = thread.open.pop()
        {
            out.stats.unended_polls += 1;
            close(thread, poll, ts_ns, out);
        }
        let Some(poll) = thread.open.pop() else {
            return;
        };
        close(thread, poll, ts_ns, out);
        let duration_ns = ts_ns - poll.start_ns;
        let task_id = poll.task_id;
        let (location, worker) = match poll.work {
            Work::Task { .. } => {
                self.watch.see(LongPoll {
                    duration_ns,
                    task_id,
                    tid,
                });
                return;
            }
            Work::Closure { location } => (location, None),
            Work::WorkerLoop { location } => (location, thread.first_worker()),
        };
        out.event(&Event::Blocking {
            ts_ns,
            duration_ns,
            location,
            tid,
            task_id,
            worker,
        });
        if thread.open.is_empty() {
            thread.leave_workers(&mut self.workers);
        }
        self.threads.forget_if_idle(tid);
    }

    fn spawn(&mut self, spawn: &Spawn, out: &mut impl FnMut(&Event, &Locations)) {
        let Spawn {
            header,
            task_id,
            vtable,
        } = *spawn;
        let task_id = unique(object::of(header), task_id);
        let location = locate(&mut self.locations, header, vtable);
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let (_, worker) = visit(&mut self.threads, header, out);
        if task_id == 0 {
            out.stats.zero_tasks += 1;
        } else if self.locations.is_blocking(location) {
            out.stats.blocking_spawns += 1;
        } else if let Some(event) = self.tasks.spawn(task_id, header.ts_ns, location, worker) {
            out.event(&event);
        } else {
            out.stats.repeated_spawns += 1;
        }
    }

    fn terminate(&mut self, task: &Terminate, out: &mut impl FnMut(&Event, &Locations)) {
        let Terminate {
            header,
            task_id,
            owner,
            scheduler,
        } = *task;
        // Of another file's Tokio neither the version nor the place of the counters is known.
        if header.flags & FLAG_BLOCKING == 0 && object::of(header) == 0 {
            self.schedulers.see(owner, scheduler);
        }
        let [task_id, owner] = [task_id, owner].map(|number| unique(object::of(header), number));
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let (polled, worker) = visit(&mut self.threads, header, out);
        // Another thread may end it, of whatever runtime.
        if polled == task_id
            && let Some(worker) = worker
        {
            self.workers.own(worker, owner);
        }
        if task_id == 0 {
            out.stats.zero_tasks += 1;
            return;
        }
        if header.flags & FLAG_BLOCKING != 0 {
            // Its start may be older than the attach, or lost.
            (self.tasks).block(task_id, header.ts_ns, LocationId::UNKNOWN_TYPE);
        }
        match self.tasks.end(task_id, header.ts_ns) {
            Sighting::Known => {}
            Sighting::Announce(event) => out.event(&event),
            Sighting::Blocking => {
                out.stats.blocking_terminates += 1;
                return;
            }
        }
        out.event(&Event::Terminate {
            ts_ns: header.ts_ns,
            task_id,
        });
    }
}

fn locate(locations: &mut Locations, header: RecordHeader, vtable: u64) -> LocationId {
    if header.flags & FLAG_VTABLE_ADDRESS == 0 {
        locations.of_index(object::of(header), vtable)
    } else {
        locations.of_address(object::of(header), vtable)
    }
}

#[cfg(test)]
mod tests;
