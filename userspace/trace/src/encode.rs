//! Events to batches.
//!
//! In: events in order of time. Out: batches of at most [`MAX_BATCH_BYTES`],
//! each with its own header, schemas and names, so that a file of batches can
//! be cut between any two. Never: an allocation for an event; a batch's first
//! use of a schema, a name or a stack costs a few.

use dial9_trace_format::InternedString;
use dial9_trace_format::encoder::Encoder as WireEncoder;
use dial9_trace_format::types::FieldValue;

use crate::clock::Anchor;
use crate::event::{
    Absence, Ended, Event, Off, PanicPlace, Panicked, ParkEvent, TargetEnd, Waker, signal_name,
};
use crate::location::{LocationId, Locations, MAX_NAME_BYTES};
use crate::loss::Loss;
use crate::segment::Evicted;
use crate::stacks::MAX_FRAMES;
use crate::texts::TextId;
use crate::wire::{
    BlockOnEvent, BlockingTaskEvent, ClockSyncEvent, EvictionEvent, GapEvent, LossEvent,
    OffCpuEvent, PanicEvent, PollEndEvent, PollStartEvent, SegmentMetadataEvent, TargetEndEvent,
    TaskSpawnEvent, TaskTerminateEvent, UnwrittenEvent, WakeEventEvent, WorkerParkEvent,
    WorkerUnparkEvent,
};

mod block_io;
mod declared;
mod samples;
mod symbols;

/// Largest batch, bytes.
pub const MAX_BATCH_BYTES: usize = 1 << 20;
/// Room for one more event with every schema and name it can need.
const HEADROOM_BYTES: usize = MAX_NAME_BYTES + MAX_FRAMES * 10 + (4 << 10);
/// The last frame of each batch: a string pool without strings, which readers
/// pass over. Frames have no length, so that a file cut between two frames
/// would otherwise look whole.
pub const END_OF_BATCH: [u8; 5] = [0x03, 0, 0, 0, 0];
/// What a batch without events consists of.
const HEADER_BYTES: u64 = 5;

/// Encodes events into one batch after another.
pub struct Encoder {
    wire: WireEncoder<Vec<u8>>,
    /// The previous batch; its buffer becomes the next one's.
    done: Vec<u8>,
    /// This batch's handle for each location.
    names: Vec<Option<InternedString>>,
    /// This batch's handle for each reason to be off the CPU.
    reasons: [Option<InternedString>; Off::ALL.len()],
    /// Room for the fields of a declared event.
    fields: Vec<FieldValue>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder")
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

/// dial9's field has no value for what was not measured: the segment's metadata says
/// whether there is such an event. A queue has at most 256 tasks.
fn local_queue(queued: Option<u32>) -> u8 {
    queued.map_or(0, |depth| u8::try_from(depth).unwrap_or(u8::MAX))
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// An encoder with an empty batch.
    pub fn new() -> Self {
        Self {
            wire: WireEncoder::new(),
            done: Vec::new(),
            names: Vec::new(),
            reasons: [None; Off::ALL.len()],
            fields: Vec::new(),
        }
    }

    /// Appends an event to the batch.
    #[inline]
    #[expect(clippy::too_many_lines, reason = "a table of events")]
    pub fn event(&mut self, event: &Event, locations: &Locations) {
        match *event {
            Event::PollStart {
                ts_ns,
                worker,
                task_id,
                location,
                queued,
            } => {
                let spawn_loc = self.name(location, locations);
                let worker_id = worker.into();
                let event = PollStartEvent {
                    ts_ns,
                    worker_id,
                    local_queue: local_queue(queued),
                    task_id,
                    spawn_loc,
                };
                self.wire.write_infallible(&event);
            }
            Event::PollEnd { ts_ns, worker } => {
                self.wire.write_infallible(&PollEndEvent {
                    ts_ns,
                    worker_id: worker.into(),
                });
            }
            Event::Wake {
                ts_ns,
                waker,
                woken,
                target_worker,
            } => {
                let (waker_task_id, woken_task_id) = (waker, woken);
                let event = WakeEventEvent {
                    ts_ns,
                    waker_task_id,
                    woken_task_id,
                    target_worker,
                };
                self.wire.write_infallible(&event);
            }
            Event::Park(ref park) => self.park(park),
            Event::Unpark(ref park) => self.unpark(park),
            Event::Terminate { ts_ns, task_id } => {
                self.wire
                    .write_infallible(&TaskTerminateEvent { ts_ns, task_id });
            }
            Event::Spawn {
                ts_ns,
                task_id,
                location,
                worker,
                first_sighting,
            } => {
                let spawn_loc = self.name(location, locations);
                let worker_id = worker.map(u64::from);
                // Readers take this for "the task's wakes are recorded".
                let instrumented = true;
                self.wire.write_infallible(&TaskSpawnEvent {
                    ts_ns,
                    task_id,
                    spawn_loc,
                    instrumented,
                    worker_id,
                    first_sighting,
                });
            }
            Event::Blocking {
                ts_ns,
                duration_ns,
                location,
                tid,
                task_id,
                worker,
            } => {
                let name = self.name(location, locations);
                let worker_id = worker.map(u64::from);
                let event = BlockingTaskEvent {
                    ts_ns,
                    duration_ns,
                    name,
                    tid,
                    task_id,
                    worker_id,
                };
                self.wire.write_infallible(&event);
            }
            Event::BlockOn {
                ts_ns,
                duration_ns,
                tid,
            } => {
                let name = self.wire.intern_string_infallible("block_on");
                self.wire.write_infallible(&BlockOnEvent {
                    ts_ns,
                    duration_ns,
                    name,
                    tid,
                });
            }
            Event::Gap {
                ts_ns,
                duration_ns,
                tid,
                lost,
            } => {
                self.wire.write_infallible(&GapEvent {
                    ts_ns,
                    duration_ns,
                    tid,
                    lost,
                });
            }
            Event::RuntimeMetrics(ref sample) => self.runtime_metrics(sample),
            Event::Panic(ref panicked) => self.panic(panicked, locations),
            Event::OffCpu(ref absence) => self.off_cpu(absence),
            Event::CpuSample(ref sample) => self.cpu_sample(sample, locations),
            Event::AcceptQueue(ref queue) => self.accept_queue(queue),
            Event::Usage(ref usage) => self.usage(usage),
            Event::BlockIo(ref io) => self.block_io(io),
            Event::Synced(ref synced) => self.synced(synced),
            Event::KernelIo(ref io) => self.kernel_io(io),
            Event::Declared(ref hit) => self.declared(hit, locations),
            Event::TargetEnd(ref end) => self.target_end(end, locations),
        }
    }

    /// Appends the wall clock.
    pub fn clock_sync(&mut self, anchor: Anchor) {
        let Anchor { mono_ns, unix_ns } = anchor;
        self.wire.write_infallible(&ClockSyncEvent {
            ts_ns: mono_ns,
            realtime_ns: unix_ns,
        });
    }

    /// Appends a segment's metadata.
    pub(crate) fn metadata(&mut self, ts_ns: u64, entries: Vec<(String, String)>) {
        self.wire
            .write_infallible(&SegmentMetadataEvent { ts_ns, entries });
    }

    /// Appends a loss.
    pub(crate) fn loss(&mut self, ts_ns: u64, loss: &Loss) {
        let Loss {
            cpu,
            kind,
            cause,
            lost,
            total,
        } = *loss;
        let kind = self
            .wire
            .intern_string_infallible(kind.name().unwrap_or("unknown"));
        let cause = self.wire.intern_string_infallible(cause.name());
        self.wire.write_infallible(&LossEvent {
            ts_ns,
            cpu,
            kind,
            cause,
            lost,
            total,
        });
    }

    /// Appends an eviction.
    pub(crate) fn eviction(&mut self, ts_ns: u64, evicted: Evicted) {
        let Evicted { index, bytes } = evicted;
        self.wire.write_infallible(&EvictionEvent {
            ts_ns,
            segment: index,
            bytes,
        });
    }

    /// Appends an interval without events, which ends at `ts_ns`.
    pub(crate) fn unwritten(&mut self, ts_ns: u64, since_ns: u64, events: u64, cause: &str) {
        let cause = self.wire.intern_string_infallible(cause);
        self.wire.write_infallible(&UnwrittenEvent {
            ts_ns,
            duration_ns: ts_ns.saturating_sub(since_ns),
            events,
            cause,
        });
    }

    /// Size of the batch so far, bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.wire.as_inner().len()
    }

    /// Whether the batch has no event.
    pub fn is_empty(&self) -> bool {
        self.wire.bytes_written() <= HEADER_BYTES
    }

    /// Whether the batch must be cut before the next event.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() > MAX_BATCH_BYTES - HEADROOM_BYTES
    }

    /// Ends the batch, with [`END_OF_BATCH`], and begins the next. The bytes
    /// stay until the next cut.
    ///
    /// # Panics
    ///
    /// Never: a `Vec` takes every byte.
    pub fn cut(&mut self) -> &[u8] {
        self.wire
            .write_string_pool(&[])
            .expect("a Vec takes every byte");
        let mut buffer = std::mem::take(&mut self.done);
        buffer.clear();
        self.done = self.wire.reset_to_infallible(buffer);
        self.names.fill(None);
        self.reasons.fill(None);
        &self.done
    }

    fn park(&mut self, park: &ParkEvent) {
        self.wire.write_infallible(&WorkerParkEvent {
            ts_ns: park.ts_ns,
            worker_id: park.worker.into(),
            local_queue: local_queue(park.queued),
            cpu_time_ns: park.cpu_ns,
            tid: park.tid,
        });
    }

    fn unpark(&mut self, park: &ParkEvent) {
        self.wire.write_infallible(&WorkerUnparkEvent {
            ts_ns: park.ts_ns,
            worker_id: park.worker.into(),
            local_queue: local_queue(park.queued),
            cpu_time_ns: park.cpu_ns,
            sched_wait_ns: park.wait_ns,
            tid: park.tid,
        });
    }

    fn off_cpu(&mut self, absence: &Absence) {
        let Absence {
            ts_ns,
            duration_ns,
            tid,
            why,
            wait_ns,
            woken_by,
            worker,
            task_id,
        } = *absence;
        let wire = &mut self.wire;
        let name = *self.reasons[why as usize]
            .get_or_insert_with(|| wire.intern_string_infallible(why.name()));
        let waker_tid = match woken_by {
            Some(Waker::Thread(tid)) => Some(tid),
            Some(Waker::Interrupt) | None => None,
        };
        wire.write_infallible(&OffCpuEvent {
            ts_ns,
            duration_ns,
            name,
            tid,
            worker_id: worker.map(u64::from),
            task_id: (task_id > 0).then_some(task_id),
            wait_ns,
            waker_tid,
            woken_by_interrupt: woken_by.map(|waker| waker == Waker::Interrupt),
        });
    }

    fn panic(&mut self, panicked: &Panicked, locations: &Locations) {
        let Panicked {
            ts_ns,
            tid,
            task_id,
            worker,
            at: PanicPlace { file, line, column },
            message,
            is_message_cut,
        } = *panicked;
        let event = PanicEvent {
            ts_ns,
            tid,
            worker_id: worker.map(u64::from),
            task_id: (task_id > 0).then_some(task_id),
            file: self.text(file, locations),
            line: (line > 0).then_some(line),
            column: (column > 0).then_some(column),
            message: self.text(message, locations),
            message_cut: is_message_cut,
        };
        self.wire.write_infallible(&event);
    }

    fn target_end(&mut self, end: &TargetEnd, locations: &Locations) {
        let TargetEnd {
            ts_ns,
            how,
            tid,
            fault_address,
            panic,
        } = *end;
        let (exit_code, signal, core_dumped) = match how {
            Ended::Exit { code } => (Some(code), None, None),
            Ended::Signal {
                number,
                is_core_dumped,
            } => (None, Some(number), Some(is_core_dumped)),
        };
        let signal_name = signal
            .and_then(signal_name)
            .map(|name| self.wire.intern_string_infallible(name));
        let (PanicPlace { file, line, column }, message) = panic.unwrap_or_default();
        let event = TargetEndEvent {
            ts_ns,
            exit_code,
            signal,
            signal_name,
            core_dumped,
            tid,
            fault_address,
            panic_file: self.text(file, locations),
            panic_line: (line > 0).then_some(line),
            panic_column: (column > 0).then_some(column),
            panic_message: self.text(message, locations),
        };
        self.wire.write_infallible(&event);
    }

    fn text(&mut self, text: Option<TextId>, locations: &Locations) -> Option<InternedString> {
        text.map(|text| self.wire.intern_string_infallible(locations.text(text)))
    }

    #[inline]
    fn name(&mut self, location: LocationId, locations: &Locations) -> InternedString {
        match self.names.get(location.0 as usize) {
            Some(&Some(name)) => name,
            _ => self.intern(location, locations),
        }
    }

    #[cold]
    fn intern(&mut self, location: LocationId, locations: &Locations) -> InternedString {
        if self.names.len() < locations.len() {
            self.names.resize(locations.len(), None);
        }
        let name = self.wire.intern_string_infallible(locations.name(location));
        self.names[location.0 as usize] = Some(name);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::TaskType;

    #[test]
    fn a_batch_stands_alone_and_stays_below_its_limit() {
        let long = |i| format!("{i}{}", "x".repeat(1 << 20));
        let types: Vec<TaskType> = (0..200)
            .map(|i| TaskType {
                name: Some(long(i)),
                address: i * 8,
                blocking: false,
            })
            .collect();
        let locations = Locations::new(&types, 0);
        let mut encoder = Encoder::new();
        assert!(encoder.is_empty());
        let mut batches = 0;
        for i in 0..200_u64 {
            if encoder.is_full() {
                let batch = encoder.cut();
                assert!(batch.len() <= MAX_BATCH_BYTES, "{}", batch.len());
                assert_eq!(&batch[..4], b"TRC\0");
                batches += 1;
            }
            let location = locations.of_index(0, i);
            let event = Event::PollStart {
                ts_ns: i << 40,
                worker: 0,
                task_id: u64::MAX,
                location,
                queued: None,
            };
            encoder.event(&event, &locations);
        }
        assert_eq!(batches, 3);
    }

    #[test]
    fn a_cut_batch_decodes() {
        let locations = Locations::new(&[], 0);
        let mut encoder = Encoder::new();
        for round in 0..3 {
            encoder.event(
                &Event::Terminate {
                    ts_ns: 5,
                    task_id: round,
                },
                &locations,
            );
            let mut seen = Vec::new();
            let mut decoder =
                dial9_trace_format::decoder::Decoder::new(encoder.cut()).expect("a header");
            decoder
                .for_each_event(|event| seen.push(event.timestamp_ns))
                .expect("whole");
            assert_eq!(seen, [5]);
            assert!(encoder.is_empty());
        }
    }
}
