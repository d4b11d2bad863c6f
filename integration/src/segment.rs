//! What a segment says.
//!
//! In: a sealed file. Out: [`Facts`], counted by task and by event. Never: a
//! segment read only in part; a byte that does not decode is an error.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use dial9_trace_format::{
    decoder::{Decoder, RawEvent},
    types::FieldValueRef,
};

use crate::block_io::{IoFacts, SyncFacts};

/// Everything counted in one or more segments.
#[derive(Debug, Default)]
pub struct Facts {
    /// Events by schema.
    pub counts: BTreeMap<String, u64>,
    /// By Tokio's task id.
    pub tasks: HashMap<u64, TaskFacts>,
    /// By the worker's id in the trace.
    pub workers: BTreeMap<u64, WorkerFacts>,
    /// The last of each key.
    pub metadata: BTreeMap<String, String>,
    /// Lost hits by kind and cause, from the loss events.
    pub lost: BTreeMap<(String, String), u64>,
    /// Polls and parks that begin twice or end twice, and times that go back,
    /// in one worker's events.
    pub broken: Vec<String>,
    /// Counters of runtimes, in the order of the trace.
    pub samples: Vec<SampleFacts>,
    /// Closures of the blocking pool, workers' loops among them.
    pub closures: Vec<ClosureFacts>,
    /// Calls of `block_on`: thread, begin and end, ns.
    pub block_ons: Vec<(u64, [u64; 2])>,
    /// Wakes by threads that are no workers, by the woken task.
    pub wakes_from_outside: HashMap<u64, u64>,
    /// Panics.
    pub panics: Vec<PanicFacts>,
    /// Threads off their CPUs.
    pub away: Vec<AwayFacts>,
    /// Where threads were.
    pub stacks: Vec<StackFacts>,
    /// Queues of listeners, in the order of the trace.
    pub queues: Vec<QueueFacts>,
    /// Block I/O, in the order in which it was done.
    pub ios: Vec<IoFacts>,
    /// Waits for files to be synced.
    pub syncs: Vec<SyncFacts>,
    /// The target's end.
    pub end: Option<EndFacts>,
    /// Time of the first event, ns.
    pub first_ns: u64,
    /// Time of the last event, ns.
    pub last_ns: u64,
}

/// What happened to one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFacts {
    /// Poll starts.
    pub polls: u64,
    /// Wakes of it.
    pub wakes: u64,
    /// Ends.
    pub ends: u64,
    /// Spawns that are exact.
    pub spawns: u64,
    /// Spawns that are first sightings.
    pub sightings: u64,
    /// Runs of it as a closure of the blocking pool.
    pub blocking_runs: u64,
    /// Its name, from spawn or poll.
    pub location: String,
}

/// What happened on one worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerFacts {
    /// Poll starts.
    pub polls: u64,
    /// Parks.
    pub parks: u64,
    /// Unparks.
    pub unparks: u64,
    /// The task whose poll is open after the last event.
    pub open_poll: Option<u64>,
    parked: Option<bool>,
    last_ns: u64,
}

/// Counters of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleFacts {
    /// When, ns.
    pub at_ns: u64,
    /// The runtime.
    pub runtime: String,
    /// Tasks in its global queue.
    pub global_queue: u64,
    /// Tasks alive.
    pub alive_tasks: u64,
}

/// A closure of the blocking pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClosureFacts {
    /// The task.
    pub task: u64,
    /// The thread.
    pub tid: u64,
    /// When it began and ended, ns.
    pub run_ns: [u64; 2],
    /// The worker that its thread was meanwhile.
    pub worker: Option<u64>,
}

/// A panic.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PanicFacts {
    /// The thread.
    pub tid: u64,
    /// The worker.
    pub worker: Option<u64>,
    /// The task.
    pub task: Option<u64>,
    /// `FILE:LINE:COLUMN`.
    pub place: Option<String>,
    /// The message.
    pub message: Option<String>,
    /// Whether the message goes on.
    pub is_cut: bool,
}

impl PanicFacts {
    fn of(event: &RawEvent<'_, '_>) -> Self {
        Self {
            tid: number(event, "tid"),
            worker: maybe_number(event, "worker_id"),
            task: maybe_number(event, "task_id"),
            place: place(event, ["file", "line", "column"]),
            message: maybe_text(event, "message"),
            is_cut: is_set(event, "message_cut"),
        }
    }
}

/// A thread off its CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwayFacts {
    /// The thread.
    pub tid: u64,
    /// When it left and when it was back, ns.
    pub times: [u64; 2],
    /// Why.
    pub name: String,
    /// The worker.
    pub worker: Option<u64>,
    /// The task that it polled.
    pub task: Option<u64>,
    /// The part of the time in which it could have run, ns.
    pub wait_ns: Option<u64>,
    /// Who woke it.
    pub waker: Option<u64>,
    /// Whether an interrupt did.
    pub by_interrupt: Option<bool>,
}

impl AwayFacts {
    fn of(event: &RawEvent<'_, '_>) -> Self {
        let end = event.timestamp_ns;
        Self {
            tid: number(event, "tid"),
            times: [end - number(event, "duration_ns"), end],
            name: text(event, "name"),
            worker: maybe_number(event, "worker_id"),
            task: maybe_number(event, "task_id"),
            wait_ns: maybe_number(event, "wait_ns"),
            waker: maybe_number(event, "waker_tid"),
            by_interrupt: match field(event, "woken_by_interrupt") {
                Some(FieldValueRef::Bool(is_it)) => Some(*is_it),
                _ => None,
            },
        }
    }
}

/// Where a thread was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackFacts {
    /// The thread.
    pub tid: u64,
    /// Its name.
    pub name: Option<String>,
    /// The worker; `None` for another thread.
    pub worker: Option<u64>,
    /// Whether it left its CPU there.
    pub waits: bool,
    /// Leaf first.
    pub frames: Vec<u64>,
}

impl StackFacts {
    fn of(event: &RawEvent<'_, '_>) -> Self {
        const NO_WORKER: u64 = 255;
        let worker = number(event, "worker_id");
        let frames = match field(event, "callchain") {
            Some(FieldValueRef::PooledStackFrames(id)) => event.stack_pool.get(*id),
            _ => None,
        };
        Self {
            tid: number(event, "tid"),
            name: maybe_text(event, "thread_name"),
            worker: (worker != NO_WORKER).then_some(worker),
            waits: number(event, "source") == 1,
            frames: frames.expect("a stack").to_vec(),
        }
    }
}

/// A listener's queue at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueFacts {
    /// When, ns.
    pub at_ns: u64,
    /// The listener's inode.
    pub inode: u64,
    /// `ADDRESS PORT`.
    pub address: String,
    /// Connections that wait.
    pub pending: u64,
    /// How many may.
    pub limit: u64,
    /// Connections queued so far.
    pub arrivals: u64,
    /// What it has dropped so far.
    pub drops: u64,
    /// Why it was read.
    pub why: String,
}

impl QueueFacts {
    fn of(event: &RawEvent<'_, '_>) -> Self {
        let port = number(event, "local_port");
        Self {
            at_ns: event.timestamp_ns,
            inode: number(event, "socket_inode"),
            address: format!("{} {port}", text(event, "local_addr")),
            pending: number(event, "pending_connections"),
            limit: number(event, "backlog_limit"),
            arrivals: number(event, "arrivals"),
            drops: number(event, "drops"),
            why: text(event, "why"),
        }
    }
}

/// How the target ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndFacts {
    /// The exit code.
    pub exit_code: Option<u64>,
    /// Number and name of the signal.
    pub signal: Option<(u64, String)>,
    /// The thread that got it.
    pub tid: Option<u64>,
    /// The address of a fault.
    pub fault_address: Option<u64>,
    /// `FILE:LINE:COLUMN` of the panic that led to it.
    pub place: Option<String>,
    /// The message of that panic.
    pub message: Option<String>,
}

impl EndFacts {
    fn of(event: &RawEvent<'_, '_>) -> Self {
        let signal = maybe_number(event, "signal");
        Self {
            exit_code: maybe_number(event, "exit_code"),
            signal: signal.map(|number| (number, text(event, "signal_name"))),
            tid: maybe_number(event, "tid"),
            fault_address: maybe_number(event, "fault_address"),
            place: place(event, ["panic_file", "panic_line", "panic_column"]),
            message: maybe_text(event, "panic_message"),
        }
    }
}

fn place(event: &RawEvent<'_, '_>, [file, line, column]: [&str; 3]) -> Option<String> {
    let file = maybe_text(event, file)?;
    let (line, column) = (maybe_number(event, line)?, maybe_number(event, column)?);
    Some(format!("{file}:{line}:{column}"))
}

impl Facts {
    /// Reads the sealed segments of a folder.
    ///
    /// # Panics
    ///
    /// When there is none, when one does not decode, or when anything else of
    /// the tracer's is left in the folder.
    pub fn of_dir(dir: &Path) -> Self {
        let segments = sealed_segments(dir);
        assert!(!segments.is_empty(), "no segment in {}", dir.display());
        Self::of(&segments)
    }

    /// Reads these files.
    ///
    /// # Panics
    ///
    /// When one does not decode.
    pub fn of(files: &[PathBuf]) -> Self {
        let mut facts = Self::default();
        for path in files {
            facts
                .add(path)
                .unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
        }
        facts
    }

    /// Reads one more file.
    ///
    /// # Errors
    ///
    /// When it does not decode.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        each_event(path, |event| self.take(event))
    }

    fn take(&mut self, event: &RawEvent<'_, '_>) {
        let name = event.name;
        match self.counts.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(self.counts.insert(name.to_owned(), 1)),
        }
        if self.first_ns == 0 {
            self.first_ns = event.timestamp_ns;
        }
        self.last_ns = self.last_ns.max(event.timestamp_ns);
        match name {
            "PollStartEvent" => self.poll_start(event),
            "PollEndEvent" => self.poll_end(event),
            "WorkerParkEvent" => self.park(event, true),
            "WorkerUnparkEvent" => self.park(event, false),
            "WakeEventEvent" => self.wake(event),
            "TaskTerminateEvent" => self.task(event, "task_id").ends += 1,
            "TaskSpawnEvent" => self.spawn(event),
            "BlockingTaskEvent" => self.blocking(event),
            "BlockOnEvent" => {
                let end_ns = event.timestamp_ns;
                let begin_ns = end_ns - number(event, "duration_ns");
                let tid = number(event, "tid");
                self.block_ons.push((tid, [begin_ns, end_ns]));
            }
            "LossEvent" => {
                let key = (text(event, "kind"), text(event, "cause"));
                *self.lost.entry(key).or_default() += number(event, "lost");
            }
            "RuntimeMetricsEvent" => self.samples.push(SampleFacts {
                at_ns: event.timestamp_ns,
                runtime: text(event, "runtime_name"),
                global_queue: number(event, "global_queue_depth"),
                alive_tasks: number(event, "alive_tasks"),
            }),
            "PanicEvent" => self.panics.push(PanicFacts::of(event)),
            "TcpAcceptQueueEvent" => self.queues.push(QueueFacts::of(event)),
            "OffCpuEvent" => self.away.push(AwayFacts::of(event)),
            "CpuSampleEvent" => self.stacks.push(StackFacts::of(event)),
            "BlockIoEvent" => self.ios.push(IoFacts::of(event)),
            "FileSyncEvent" => self.syncs.push(SyncFacts::of(event)),
            "TargetEndEvent" => {
                let end = EndFacts::of(event);
                assert_eq!(self.end.replace(end), None, "it ends twice");
            }
            "SegmentMetadataEvent" => {
                if let Some(FieldValueRef::StringMap(entries)) = field(event, "entries") {
                    let entries = entries
                        .iter()
                        .map(|(key, value)| (key.into(), value.into()));
                    self.metadata.extend(entries);
                }
            }
            _ => (),
        }
    }

    fn task(&mut self, event: &RawEvent<'_, '_>, id: &str) -> &mut TaskFacts {
        self.tasks.entry(number(event, id)).or_default()
    }

    fn wake(&mut self, event: &RawEvent<'_, '_>) {
        const NO_WORKER: u64 = 255;
        self.task(event, "woken_task_id").wakes += 1;
        if number(event, "target_worker") == NO_WORKER {
            let woken = number(event, "woken_task_id");
            *self.wakes_from_outside.entry(woken).or_default() += 1;
        }
    }

    fn blocking(&mut self, event: &RawEvent<'_, '_>) {
        let worker = maybe_number(event, "worker_id");
        let end_ns = event.timestamp_ns;
        self.closures.push(ClosureFacts {
            task: number(event, "task_id"),
            tid: number(event, "tid"),
            run_ns: [end_ns - number(event, "duration_ns"), end_ns],
            worker,
        });
        if worker.is_none() {
            self.task(event, "task_id").blocking_runs += 1;
        }
    }

    fn spawn(&mut self, event: &RawEvent<'_, '_>) {
        let location = text(event, "spawn_loc");
        let sighted = is_set(event, "first_sighting");
        let task = self.task(event, "task_id");
        if sighted {
            task.sightings += 1;
        } else {
            task.spawns += 1;
        }
        task.location = location;
    }

    fn poll_start(&mut self, event: &RawEvent<'_, '_>) {
        let id = number(event, "task_id");
        self.task(event, "task_id").polls += 1;
        let worker = self.worker(event);
        worker.polls += 1;
        if let Some(open) = worker.open_poll.replace(id) {
            self.broken(
                event,
                &format!("a poll of {id} begins inside one of {open}"),
            );
        }
    }

    fn poll_end(&mut self, event: &RawEvent<'_, '_>) {
        if self.worker(event).open_poll.take().is_none() {
            self.broken(event, "a poll ends that did not begin");
        }
    }

    fn park(&mut self, event: &RawEvent<'_, '_>, parks: bool) {
        let worker = self.worker(event);
        *(if parks {
            &mut worker.parks
        } else {
            &mut worker.unparks
        }) += 1;
        let polls = worker.open_poll.is_some();
        if worker.parked.replace(parks) == Some(parks) {
            self.broken(event, "the same twice");
        }
        if polls {
            self.broken(event, "within a poll");
        }
    }

    fn worker(&mut self, event: &RawEvent<'_, '_>) -> &mut WorkerFacts {
        let id = number(event, "worker_id");
        let last_ns = self.workers.entry(id).or_default().last_ns;
        if event.timestamp_ns < last_ns {
            self.broken(event, "earlier than the one before");
        }
        let worker = self.workers.entry(id).or_default();
        worker.last_ns = event.timestamp_ns;
        worker
    }

    fn broken(&mut self, event: &RawEvent<'_, '_>, what: &str) {
        let worker = number(event, "worker_id");
        let line = format!(
            "{} at {} on {worker}: {what}",
            event.name, event.timestamp_ns
        );
        self.broken.push(line);
    }

    /// Events of a schema.
    pub fn count(&self, schema: &str) -> u64 {
        self.counts.get(schema).copied().unwrap_or(0)
    }

    /// Lost hits of a kind.
    pub fn lost_of(&self, kind: &str) -> u64 {
        self.lost
            .iter()
            .filter(|((of, _), _)| of == kind)
            .map(|(_, lost)| lost)
            .sum()
    }

    /// All lost hits.
    pub fn total_lost(&self) -> u64 {
        self.lost.values().sum()
    }

    /// Asserts that polls and parks are pairs and that time goes forward. A
    /// poll may be open at the end: the recording ended within it.
    ///
    /// # Panics
    ///
    /// When one of that is not so.
    #[track_caller]
    pub fn expect_sound(&self) -> &Self {
        let shown = &self.broken[..self.broken.len().min(10)];
        assert!(
            shown.is_empty(),
            "{} broken events: {shown:#?}",
            self.broken.len()
        );
        self
    }

    /// Asserts the same of a recording whose target was at rest at the end, so
    /// that a poll that is open there is a ghost.
    ///
    /// # Panics
    ///
    /// When one of that is not so.
    #[track_caller]
    pub fn expect_at_rest(&self) -> &Self {
        for (id, worker) in &self.workers {
            assert_eq!(
                worker.open_poll, None,
                "worker {id} has a poll open at the end"
            );
        }
        self.expect_sound()
    }

    /// Asserts that nothing was lost.
    ///
    /// # Panics
    ///
    /// When something was.
    #[track_caller]
    pub fn expect_lossless(&self) -> &Self {
        assert_eq!(self.total_lost(), 0, "{:?}", self.lost);
        assert_eq!(self.count("GapEvent"), 0);
        self
    }
}

/// Sealed segments of a folder, oldest first.
///
/// # Panics
///
/// When the folder holds anything else of the tracer's but a lock.
pub fn sealed_segments(dir: &Path) -> Vec<PathBuf> {
    let mut segments = Vec::new();
    for path in files(dir) {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        match index(&name) {
            Some(index) => segments.push((index, path)),
            None => assert!(
                !name.starts_with("trace."),
                "{} is left over",
                path.display()
            ),
        }
    }
    segments.sort();
    segments.into_iter().map(|(_, path)| path).collect()
}

/// Files of a folder.
///
/// # Panics
///
/// When it cannot be read.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    entries
        .map(|entry| entry.expect("a folder can be read on").path())
        .collect()
}

/// N of `trace.N.bin` or `trace.N.bin.gz`.
fn index(name: &str) -> Option<u64> {
    let rest = name.strip_prefix("trace.")?;
    rest.strip_suffix(".bin")
        .or_else(|| rest.strip_suffix(".bin.gz"))?
        .parse()
        .ok()
}

/// The bytes of a segment; compressed, it has to be one gzip member.
///
/// # Errors
///
/// When it is not.
pub fn unpacked(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path)?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut decoder = flate2::bufread::GzDecoder::new(&bytes[..]);
    let mut unpacked = Vec::new();
    decoder.read_to_end(&mut unpacked)?;
    let rest = decoder.into_inner();
    ensure!(
        rest.is_empty(),
        "{} bytes after the gzip member",
        rest.len()
    );
    Ok(unpacked)
}

/// Calls `each` for every event of a file.
///
/// # Errors
///
/// When it does not decode to its last byte.
pub(crate) fn each_event(path: &Path, mut each: impl FnMut(&RawEvent<'_, '_>)) -> Result<()> {
    let bytes = unpacked(path)?;
    let mut decoder = Decoder::new(&bytes).context("no header")?;
    decoder.for_each_event(|event| each(&event))?;
    ensure!(
        decoder.position() == bytes.len(),
        "{} of {} bytes decode",
        decoder.position(),
        bytes.len()
    );
    Ok(())
}

fn field<'f, 'a>(event: &RawEvent<'a, 'f>, name: &str) -> Option<&'f FieldValueRef<'a>> {
    event
        .field_names()
        .zip(event.fields)
        .find(|(field, _)| *field == name)
        .map(|(_, value)| value)
}

/// Whether a field is true.
pub(crate) fn is_set(event: &RawEvent<'_, '_>, name: &str) -> bool {
    field(event, name) == Some(&FieldValueRef::Bool(true))
}

/// An unsigned field.
pub(crate) fn number(event: &RawEvent<'_, '_>, name: &str) -> u64 {
    match field(event, name) {
        Some(FieldValueRef::Varint(number)) => *number,
        other => panic!("{} of {} is {other:?}", name, event.name),
    }
}

/// An unsigned field that may be absent.
pub(crate) fn maybe_number(event: &RawEvent<'_, '_>, name: &str) -> Option<u64> {
    (field(event, name) != Some(&FieldValueRef::None)).then(|| number(event, name))
}

/// A text field that may be absent.
fn maybe_text(event: &RawEvent<'_, '_>, name: &str) -> Option<String> {
    (field(event, name) != Some(&FieldValueRef::None)).then(|| text(event, name))
}

/// A text field, pooled or not.
pub(crate) fn text(event: &RawEvent<'_, '_>, name: &str) -> String {
    let text = match field(event, name) {
        Some(FieldValueRef::PooledString(id)) => event.string_pool.get(*id),
        Some(FieldValueRef::String(text)) => Some(*text),
        _ => None,
    };
    text.unwrap_or_else(|| panic!("no text {name} in {}", event.name))
        .to_owned()
}
