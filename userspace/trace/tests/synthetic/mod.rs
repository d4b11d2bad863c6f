//! A stream of records like that of a busy service: workers that park, wake
//! and poll, tasks that come and go. The same for the same seed.

use std::collections::VecDeque;

use dial9_bpf_abi::record::{
    FLAG_VTABLE_ADDRESS, Park, PollEnd, PollStart, RecordHeader, RecordKind, Spawn, TaskRecord,
    Terminate,
};
use dial9_bpf_trace::decode::Record;
use dial9_bpf_trace::location::{Locations, TaskType};

const TYPES: u64 = 64;
const BIAS: u64 = 0x5555_5555_4000;
const FIRST_TID: u32 = 4000;
/// The one thread of the blocking pool.
const POOL_TID: u32 = 4999;

/// Types of the synthetic target.
pub(crate) fn locations() -> Locations {
    let mut types: Vec<TaskType> = (0..TYPES)
        .map(|i| TaskType {
            name: Some(format!("service::handlers::route_{i}::{{closure#0}}")),
            address: 0x10_0000 + i * 0x40,
            blocking: false,
        })
        .collect();
    types.push(TaskType {
        name: Some("service::read_file::{closure#0}".into()),
        address: 0x20_0000,
        blocking: true,
    });
    Locations::new(&types, BIAS)
}

/// An endless stream, in order of time, with the CPU of each record.
pub(crate) struct Stream {
    now_ns: u64,
    random: u64,
    next_task: u64,
    tasks: Vec<u64>,
    /// Mean number of polls in a task's life.
    polls: u64,
    cpu_ns: Vec<u64>,
    turn: u32,
    queue: VecDeque<(u32, Record)>,
}

impl Stream {
    /// A target with this many workers, each on a CPU of its own, and tasks
    /// that live for so many polls.
    pub(crate) fn new(workers: usize, tasks: u64, polls: u64) -> Self {
        Self {
            now_ns: 1_000_000_000_000,
            random: 0x9e37_79b9_7f4a_7c15,
            next_task: 100_000 + tasks,
            tasks: (100_000..100_000 + tasks).collect(),
            polls,
            cpu_ns: vec![1_000_000; workers],
            turn: 0,
            queue: VecDeque::with_capacity(64),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % below
    }

    fn any_task(&mut self) -> usize {
        usize::try_from(self.random(self.tasks.len() as u64)).expect("fewer than there are")
    }

    fn put(&mut self, worker: u32, kind: RecordKind, record: impl FnOnce(RecordHeader) -> Record) {
        let step_ns = 300 + self.random(1500);
        self.now_ns += step_ns;
        self.cpu_ns[worker as usize] += step_ns;
        let header = RecordHeader {
            kind,
            flags: 0,
            tid: FIRST_TID + worker,
            ts_ns: self.now_ns,
        };
        self.queue.push_back((worker, record(header)));
    }

    /// One closure of the blocking pool.
    fn block(&mut self) {
        let task_id = self.next_task;
        self.next_task += 1;
        let sp = 0x7ffe_0000_1000;
        let pooled = |header| RecordHeader {
            tid: POOL_TID,
            ..header
        };
        self.put(0, RecordKind::POLL_START, |header| {
            Record::PollStart(PollStart {
                header: pooled(header),
                task_id,
                sp,
                vtable: TYPES,
            })
        });
        self.put(0, RecordKind::TERMINATE, |header| {
            Record::Terminate(Terminate {
                header: pooled(header),
                task_id,
                owner: 0,
                scheduler: 0,
            })
        });
        self.put(0, RecordKind::POLL_END, |header| {
            Record::PollEnd(PollEnd {
                header: pooled(header),
                sp,
            })
        });
    }

    /// One poll of one worker, with what happens around it.
    fn poll(&mut self) {
        let workers = u32::try_from(self.cpu_ns.len()).expect("few workers");
        let worker = self.turn % workers;
        self.turn = self.turn.wrapping_add(1);
        let at = self.any_task();
        let task_id = self.tasks[at];
        let sp = 0x7fff_0000_1000 + u64::from(worker) * 0x10_0000;
        if self.random(8) == 0 {
            let cpu_ns = self.cpu_ns[worker as usize];
            self.put(worker, RecordKind::PARK, |header| {
                Record::Park(Park {
                    header,
                    cpu_ns,
                    core: 0,
                    queue: 0,
                })
            });
            self.now_ns += self.random(200_000);
            let cpu_ns = cpu_ns + 500;
            self.put(worker, RecordKind::UNPARK, |header| {
                Record::Unpark(Park {
                    header,
                    cpu_ns,
                    core: 0,
                    queue: 0,
                })
            });
        }
        let vtable = task_id % TYPES;
        self.put(worker, RecordKind::POLL_START, |header| {
            Record::PollStart(PollStart {
                header,
                task_id,
                sp,
                vtable,
            })
        });
        let other = self.any_task();
        let woken = self.tasks[other];
        self.put(worker, RecordKind::WAKE, |header| {
            Record::Wake(TaskRecord {
                header,
                task_id: woken,
            })
        });
        let ends = self.random(self.polls) == 0;
        if ends {
            self.put(worker, RecordKind::TERMINATE, |header| {
                Record::Terminate(Terminate {
                    header,
                    task_id,
                    owner: 1,
                    scheduler: 0,
                })
            });
            let task_id = self.next_task;
            self.next_task += 1;
            self.tasks[at] = task_id;
            let vtable = BIAS + 0x10_0000 + task_id % TYPES * 0x40;
            self.put(worker, RecordKind::SPAWN, |header| {
                let header = RecordHeader {
                    flags: FLAG_VTABLE_ADDRESS,
                    ..header
                };
                Record::Spawn(Spawn {
                    header,
                    task_id,
                    vtable,
                })
            });
        }
        self.put(worker, RecordKind::POLL_END, |header| {
            Record::PollEnd(PollEnd { header, sp })
        });
    }
}

impl Iterator for Stream {
    type Item = (u32, Record);

    fn next(&mut self) -> Option<Self::Item> {
        while self.queue.is_empty() {
            if self.random(200) == 0 {
                self.block();
            }
            self.poll();
        }
        self.queue.pop_front()
    }
}
