use dial9_bpf_abi::record::{
    FLAG_BLOCKING, FLAG_GAP_ALL_THREADS, Gap, Park, RecordKind, TaskRecord,
};

use super::*;
use crate::event::{Absence, ParkEvent, RuntimeMetrics};
use crate::location::TaskType;

mod accept_queue;
mod block_io;
mod block_on;
mod gaps;
mod lanes;
mod life;
mod objects;
mod off_cpu;
mod polls;
mod queue;
mod sampled;
mod tasks;

/// Records by hand, and the events as lines.
struct Bench {
    interpreter: Interpreter,
    lines: Vec<String>,
}

/// Index of the type whose tasks are closures of the blocking pool.
const CLOSURE: u64 = 1;

impl Bench {
    fn new() -> Self {
        let types = [("app::a", false), ("app::closure", true), ("app::b", false)];
        let types: Vec<TaskType> = (0x1000..)
            .step_by(0x1000)
            .zip(types)
            .map(|(address, (name, blocking))| TaskType {
                name: Some(name.into()),
                address,
                blocking,
            })
            .collect();
        let interpreter = Interpreter::new(Locations::new(&types, 0x10_0000));
        Self {
            interpreter,
            lines: Vec::new(),
        }
    }

    fn feed(&mut self, record: Record) -> &mut Self {
        let mut events = Vec::new();
        self.interpreter
            .record(&record, &mut |event, _| events.push(*event));
        self.note(&events)
    }

    fn note(&mut self, events: &[Event]) -> &mut Self {
        let locations = self.interpreter.locations();
        self.lines
            .extend(events.iter().map(|event| line(event, locations)));
        self
    }

    fn start(&mut self, tid: u32, ts: u64, task_id: u64, sp: u64) -> &mut Self {
        self.start_of_type(tid, ts, task_id, sp, 0)
    }

    fn start_of_type(
        &mut self,
        tid: u32,
        ts: u64,
        task_id: u64,
        sp: u64,
        vtable: u64,
    ) -> &mut Self {
        self.feed(start(tid, ts, task_id, sp, vtable))
    }

    fn end(&mut self, tid: u32, ts: u64, sp: u64) -> &mut Self {
        self.feed(end(tid, ts, sp))
    }

    fn wake(&mut self, tid: u32, ts: u64, task_id: u64) -> &mut Self {
        let header = header(RecordKind::WAKE, tid, ts);
        self.feed(Record::Wake(TaskRecord { header, task_id }))
    }

    fn spawn(&mut self, tid: u32, ts: u64, task_id: u64, vtable: u64) -> &mut Self {
        let flags = FLAG_VTABLE_ADDRESS;
        let header = RecordHeader {
            flags,
            ..header(RecordKind::SPAWN, tid, ts)
        };
        self.feed(Record::Spawn(Spawn {
            header,
            task_id,
            vtable,
        }))
    }

    fn terminate(&mut self, tid: u32, ts: u64, task_id: u64) -> &mut Self {
        self.terminate_in(tid, ts, task_id, 0)
    }

    fn terminate_in(&mut self, tid: u32, ts: u64, task_id: u64, owner: u64) -> &mut Self {
        let header = header(RecordKind::TERMINATE, tid, ts);
        self.feed(Record::Terminate(Terminate {
            header,
            task_id,
            owner,
            scheduler: 0,
        }))
    }

    fn terminate_blocking(&mut self, tid: u32, ts: u64, task_id: u64) -> &mut Self {
        let mut header = header(RecordKind::TERMINATE, tid, ts);
        header.flags = FLAG_BLOCKING;
        self.feed(Record::Terminate(Terminate {
            header,
            task_id,
            owner: 0,
            scheduler: 0,
        }))
    }

    fn park(&mut self, tid: u32, ts: u64, cpu_ns: u64) -> &mut Self {
        self.feed(park(tid, ts, cpu_ns))
    }

    fn unpark(&mut self, tid: u32, ts: u64, cpu_ns: u64) -> &mut Self {
        self.feed(unpark(tid, ts, cpu_ns))
    }

    fn gap(&mut self, tid: u32, ts: u64, lost: u64) -> &mut Self {
        self.feed(gap(tid, ts, lost))
    }

    fn rotate(&mut self) -> &mut Self {
        let mut events = Vec::new();
        self.interpreter.rotate(&mut |event, _| events.push(*event));
        self.note(&events)
    }

    fn stats(&self) -> &Stats {
        self.interpreter.stats()
    }

    #[track_caller]
    fn expect(&mut self, lines: &[&str]) -> &mut Self {
        assert_eq!(self.lines, lines);
        self.lines.clear();
        self
    }
}

fn header(kind: RecordKind, tid: u32, ts_ns: u64) -> RecordHeader {
    RecordHeader {
        kind,
        flags: 0,
        tid,
        ts_ns,
    }
}

fn start(tid: u32, ts: u64, task_id: u64, sp: u64, vtable: u64) -> Record {
    let header = header(RecordKind::POLL_START, tid, ts);
    Record::PollStart(PollStart {
        header,
        task_id,
        sp,
        vtable,
    })
}

fn end(tid: u32, ts: u64, sp: u64) -> Record {
    Record::PollEnd(PollEnd {
        header: header(RecordKind::POLL_END, tid, ts),
        sp,
    })
}

fn park(tid: u32, ts: u64, cpu_ns: u64) -> Record {
    Record::Park(Park {
        header: header(RecordKind::PARK, tid, ts),
        cpu_ns,
        core: 0,
        queue: 0,
    })
}

fn unpark(tid: u32, ts: u64, cpu_ns: u64) -> Record {
    Record::Unpark(Park {
        header: header(RecordKind::UNPARK, tid, ts),
        cpu_ns,
        core: 0,
        queue: 0,
    })
}

fn gap(tid: u32, ts: u64, lost: u64) -> Record {
    Record::Gap(Gap {
        header: header(RecordKind::GAP, tid, ts),
        lost,
    })
}

fn away_line(absence: &Absence) -> String {
    let Absence {
        ts_ns,
        duration_ns,
        tid,
        why,
        wait_ns,
        woken_by,
        worker,
        task_id,
    } = absence;
    let worker = worker.map_or_else(String::new, |worker| format!(" w{worker}"));
    format!(
        "{ts_ns} off {duration_ns} tid {tid}{worker} #{task_id} {why:?} \
         wait {wait_ns:?} by {woken_by:?}"
    )
}

#[expect(clippy::too_many_lines, reason = "a table of events")]
fn line(event: &Event, locations: &Locations) -> String {
    match *event {
        Event::PollStart {
            ts_ns,
            worker,
            task_id,
            location,
            queued,
        } => {
            let queued = queued.map_or_else(String::new, |depth| format!(" queued {depth}"));
            format!(
                "{ts_ns} start w{worker} #{task_id} {}{queued}",
                locations.name(location)
            )
        }
        Event::PollEnd { ts_ns, worker } => format!("{ts_ns} end w{worker}"),
        Event::Park(ParkEvent {
            ts_ns,
            worker,
            cpu_ns,
            tid,
            queued,
            ..
        }) => {
            let queued = queued.map_or_else(String::new, |depth| format!(" queued {depth}"));
            format!("{ts_ns} park w{worker} cpu {cpu_ns} tid {tid}{queued}")
        }
        Event::Unpark(ParkEvent {
            ts_ns,
            worker,
            cpu_ns,
            tid,
            wait_ns,
            queued,
        }) => {
            let wait = wait_ns.map_or_else(String::new, |ns| format!(" waited {ns}"));
            let queued = queued.map_or_else(String::new, |depth| format!(" queued {depth}"));
            format!("{ts_ns} unpark w{worker} cpu {cpu_ns} tid {tid}{wait}{queued}")
        }
        Event::OffCpu(absence) => away_line(&absence),
        Event::CpuSample(sample) => sampled::sample_line(&sample, locations),
        Event::AcceptQueue(queue) => accept_queue::queue_line(&queue),
        Event::Usage(usage) => format!("{} usage", usage.ts_ns),
        Event::BlockIo(io) => block_io::io_line(&io),
        Event::Synced(synced) => block_io::sync_line(&synced),
        Event::KernelIo(io) => format!("{} kernel I/O", io.ts_ns),
        Event::Spawn {
            ts_ns,
            task_id,
            location,
            worker,
            first_sighting,
        } => {
            let how = if first_sighting { "sighted" } else { "spawned" };
            let by = worker.map_or(String::new(), |worker| format!(" by w{worker}"));
            format!("{ts_ns} {how} #{task_id} {}{by}", locations.name(location))
        }
        Event::Terminate { ts_ns, task_id } => format!("{ts_ns} over #{task_id}"),
        Event::Wake {
            ts_ns,
            waker,
            woken,
            target_worker,
        } => {
            format!("{ts_ns} wake #{woken} by #{waker} w{target_worker}")
        }
        Event::Blocking {
            ts_ns,
            duration_ns,
            location,
            tid,
            task_id,
            worker,
        } => {
            let name = locations.name(location);
            let as_worker = worker.map_or(String::new(), |worker| format!(" as w{worker}"));
            format!("{ts_ns} blocked {duration_ns} #{task_id} {name} tid {tid}{as_worker}")
        }
        Event::BlockOn {
            ts_ns,
            duration_ns,
            tid,
        } => format!("{ts_ns} blocked on a future {duration_ns} tid {tid}"),
        Event::Gap {
            ts_ns,
            duration_ns,
            tid,
            lost,
        } => {
            format!("{ts_ns} gap {duration_ns} tid {tid} lost {lost}")
        }
        Event::RuntimeMetrics(RuntimeMetrics {
            ts_ns,
            number,
            global_queue,
            alive_tasks,
        }) => {
            format!("{ts_ns} runtime {number} queue {global_queue} alive {alive_tasks}")
        }
        Event::Panic(panicked) => life::panic_line(&panicked, locations),
        Event::Declared(hit) => format!("{} declared {}", hit.ts_ns, hit.event),
        Event::TargetEnd(end) => life::end_line(&end, locations),
    }
}
