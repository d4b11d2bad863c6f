//! A trace as both recorders write it.
//!
//! In: one file, dial9's or ours, through dial9's decoder. Out: polls, parks, wakes,
//! spawns and ends, each at its thread. Never: a guess about a thread; it is the one
//! that parks as that worker.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::Path,
};

use dial9_bpf_integration::segment;
use dial9_trace_format::{
    decoder::{Decoder, RawEvent},
    types::{FieldValueRef, StringMapRef},
};

/// The worker of an event that is none's.
const NO_WORKER: u64 = 255;

/// One poll of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poll {
    pub(crate) task: u64,
    pub(crate) thread: Thread,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// One wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) at: u64,
    pub(crate) woken: u64,
    /// The task in whose poll it was issued, 0 for none.
    pub(crate) waker: u64,
    pub(crate) thread: Thread,
}

/// A worker's going to sleep (`true`) or coming back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Park {
    pub(crate) at: u64,
    pub(crate) thread: Thread,
    pub(crate) parks: bool,
}

/// A task's spawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spawn {
    pub(crate) at: u64,
    pub(crate) task: u64,
    pub(crate) thread: Thread,
}

/// The thread of a worker; `None` for all that are no workers.
pub(crate) type Thread = Option<u32>;

/// What one recorder saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recording {
    /// By start.
    pub(crate) polls: Vec<Poll>,
    /// By time.
    pub(crate) parks: Vec<Park>,
    /// By time.
    pub(crate) wakes: Vec<Wake>,
    /// By time; without those that were there before the recorder.
    pub(crate) spawns: Vec<Spawn>,
    /// Tasks whose wakes are recorded: those that dial9 wraps, with us all.
    pub(crate) wrapped: HashSet<u64>,
    /// Where each task was spawned.
    pub(crate) places: HashMap<u64, String>,
    /// Time and task, by time.
    pub(crate) ends: Vec<(u64, u64)>,
    /// Closures of the blocking pool; dial9 has no event for them.
    pub(crate) closures: HashSet<u64>,
    /// The threads of each runtime.
    pub(crate) runtimes: BTreeMap<String, BTreeSet<u32>>,
    /// The trace's own.
    pub(crate) metadata: HashMap<String, String>,
}

/// An event, before its worker is known as a thread.
#[derive(Debug)]
enum Raw {
    Start { worker: u64, task: u64 },
    End { worker: u64 },
    Park { worker: u64, parks: bool },
    Wake { worker: u64, woken: u64, waker: u64 },
    Spawn { worker: u64, task: u64 },
    Terminate { task: u64 },
}

/// Reads a whole trace.
///
/// # Panics
///
/// When it does not decode, when a worker is two threads, or when polls of a worker
/// are no pairs.
pub(crate) fn recording(files: &[impl AsRef<Path>]) -> Recording {
    let mut found = Recording::default();
    let mut threads = HashMap::new();
    let mut events = Vec::new();
    for path in files {
        let path = path.as_ref();
        let bytes = segment::unpacked(path).expect("a trace can be read");
        let mut decoder = Decoder::new(&bytes).expect("a trace has a header");
        let read = decoder.for_each_event(|event| found.take(&event, &mut threads, &mut events));
        read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(decoder.position(), bytes.len(), "{} is cut", path.display());
    }
    // A thread's own events are in order; dial9 writes the threads' one after another.
    events.sort_by_key(|(at, _)| *at);
    found.place(&events, &threads);
    found
}

impl Recording {
    fn take(
        &mut self,
        event: &RawEvent<'_, '_>,
        threads: &mut HashMap<u64, u32>,
        events: &mut Vec<(u64, Raw)>,
    ) {
        let number =
            |name| maybe(event, name).unwrap_or_else(|| panic!("no {name} in {}", event.name));
        let worker = maybe(event, "worker_id").unwrap_or(NO_WORKER);
        if let Some(place) = place(event) {
            self.places.insert(number("task_id"), place);
        }
        let raw = match event.name {
            "PollStartEvent" => Raw::Start {
                worker,
                task: number("task_id"),
            },
            "PollEndEvent" => Raw::End { worker },
            "WorkerParkEvent" | "WorkerUnparkEvent" => {
                let tid = u32::try_from(number("tid")).expect("a thread id");
                let before = threads.insert(worker, tid);
                assert!(
                    before.is_none_or(|before| before == tid),
                    "worker {worker}: {before:?}, {tid}"
                );
                Raw::Park {
                    worker,
                    parks: event.name == "WorkerParkEvent",
                }
            }
            "WakeEventEvent" => Raw::Wake {
                worker: number("target_worker"),
                woken: number("woken_task_id"),
                waker: number("waker_task_id"),
            },
            // Ours of a task that was there before.
            "TaskSpawnEvent" if maybe(event, "first_sighting") == Some(1) => return,
            "TaskSpawnEvent" => {
                let task = number("task_id");
                if number("instrumented") == 1 {
                    self.wrapped.insert(task);
                }
                Raw::Spawn { worker, task }
            }
            "TaskTerminateEvent" => Raw::Terminate {
                task: number("task_id"),
            },
            "BlockingTaskEvent" => {
                self.closures.insert(number("task_id"));
                return;
            }
            "SegmentMetadataEvent" => {
                let entries = event.fields.iter().filter_map(|field| match field {
                    FieldValueRef::StringMap(entries) => Some(entries),
                    _ => None,
                });
                let entries = entries.flat_map(StringMapRef::iter);
                (self.metadata).extend(entries.map(|(key, value)| (key.into(), value.into())));
                return;
            }
            _ => return,
        };
        events.push((event.timestamp_ns, raw));
    }

    fn place(&mut self, events: &[(u64, Raw)], threads: &HashMap<u64, u32>) {
        let thread = |worker: u64| {
            (worker != NO_WORKER).then(|| match threads.get(&worker) {
                Some(&tid) => tid,
                None => panic!("worker {worker} never parks: {threads:?}"),
            })
        };
        let mut open = HashMap::new();
        for (at, raw) in events {
            let at = *at;
            match *raw {
                Raw::Start { worker, task } => {
                    let poll = Poll {
                        task,
                        thread: thread(worker),
                        start: at,
                        end: 0,
                    };
                    let before = open.insert(worker, self.polls.len());
                    assert_eq!(before, None, "{poll:?} begins in another");
                    self.polls.push(poll);
                }
                Raw::End { worker } => {
                    let index = open.remove(&worker).expect("a poll that ends has begun");
                    self.polls[index].end = at;
                }
                Raw::Park { worker, parks } => self.parks.push(Park {
                    at,
                    thread: thread(worker),
                    parks,
                }),
                Raw::Wake {
                    worker,
                    woken,
                    waker,
                } => self.wakes.push(Wake {
                    at,
                    woken,
                    waker,
                    thread: thread(worker),
                }),
                Raw::Spawn { worker, task } => self.spawns.push(Spawn {
                    at,
                    task,
                    thread: thread(worker),
                }),
                Raw::Terminate { task } => self.ends.push((at, task)),
            }
        }
        assert!(open.is_empty(), "polls without an end: {open:?}");
        for (key, workers) in &self.metadata {
            if let Some(name) = key.strip_prefix("runtime.") {
                let ids = workers.split(',').map(|id| id.parse().expect("an id"));
                let tids = ids.filter_map(thread).collect();
                self.runtimes.insert(name.to_owned(), tids);
            }
        }
    }

    /// What is within that time.
    pub(crate) fn within(mut self, from: u64, to: u64) -> Self {
        let inside = |at: u64| (from..to).contains(&at);
        self.polls.retain(|poll| inside(poll.start));
        self.parks.retain(|park| inside(park.at));
        self.wakes.retain(|wake| inside(wake.at));
        self.spawns.retain(|spawn| inside(spawn.at));
        self.ends.retain(|(at, _)| inside(*at));
        self
    }
}

fn place(event: &RawEvent<'_, '_>) -> Option<String> {
    let mut fields = event.field_names().zip(event.fields);
    match fields.find(|(field, _)| *field == "spawn_loc")?.1 {
        FieldValueRef::PooledString(id) => event.string_pool.get(*id).map(ToOwned::to_owned),
        other => panic!("spawn_loc of {} is {other:?}", event.name),
    }
}

fn maybe(event: &RawEvent<'_, '_>, name: &str) -> Option<u64> {
    let mut fields = event.field_names().zip(event.fields);
    match fields.find(|(field, _)| *field == name)?.1 {
        FieldValueRef::Varint(number) => Some(*number),
        FieldValueRef::Bool(is) => Some(u64::from(*is)),
        FieldValueRef::None => None,
        other => panic!("{name} of {} is {other:?}", event.name),
    }
}
