//! What the interpreter has counted.
//!
//! In: one call for each record and event. Out: named counters, since the
//! start. Never: a number that is not also explained here.

use dial9_bpf_abi::record::Text;
use dial9_bpf_abi::text::Piece;

use crate::decode::Record;
use crate::event::Event;
use crate::stacks::{Extent, Moment};

/// Counters of an interpreter; all count from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records by kind.
    pub records: RecordCounts,
    /// Events by kind.
    pub events: EventCounts,
    /// Poll ends without an open poll: normal after an attach in mid-poll.
    pub stray_ends: u64,
    /// Poll ends whose start was lost in a gap.
    pub ends_after_gap: u64,
    /// Polls that were closed because the stack showed that they had ended.
    pub unended_polls: u64,
    /// Polls that were closed at a gap.
    pub polls_cut_by_gap: u64,
    /// Polls open while events could not be written: no end.
    pub polls_interrupted: u64,
    /// Open blocking tasks whose end a gap hid: no event.
    pub blocking_cut_by_gap: u64,
    /// Calls of `block_on` that a gap hid or that were open when events could not be
    /// written: no event.
    pub block_ons_cut: u64,
    /// Ends of `block_on` without a begin, which is normal after an attach, and begins
    /// without an end: no event.
    pub unpaired_block_ons: u64,
    /// Parks after a park and unparks after an unpark: no event.
    pub dropped_unpaired: u64,
    /// Poll and park records older than their thread's last: no event.
    pub out_of_order: u64,
    /// Spawns of blocking tasks: no event.
    pub blocking_spawns: u64,
    /// Wakes of blocking tasks: no event.
    pub blocking_wakes: u64,
    /// Ends of blocking tasks: no event of their own.
    pub blocking_terminates: u64,
    /// Records with task id 0, which Tokio never gives: no event.
    pub zero_tasks: u64,
    /// Spawns of tasks that were already known: no event.
    pub repeated_spawns: u64,
    /// Texts of which pieces are missing, or that are no UTF-8: absent.
    pub unreadable_texts: u64,
    /// Pieces that belong to no text.
    pub stray_pieces: u64,
    /// Connections that came to one of several listeners, and it is not known to which:
    /// not counted as any one's arrival.
    pub unresolved_arrivals: u64,
    /// Intervals off the CPU of which the kernel told one switch only: no event.
    pub untold_absences: u64,
    /// I/O that was not done at the end of the recording, or whose end was lost: no event.
    pub unfinished_io: u64,
    /// Calls of declared probes of which one side was not seen: no event.
    pub unpaired_calls: u64,
    /// Hits of declared probes that nobody has declared: no event.
    pub unknown_definitions: u64,
    /// Tasks forgotten before their end was seen, to bound memory.
    pub forgotten_tasks: u64,
    /// Stacks by how much of them there is.
    pub stacks: StackCounts,
    /// Events by whether the depth of the worker's queue was measured.
    pub queues: QueueCounts,
}

/// Events that have a field for the depth of the worker's queue, by whether it was
/// measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Parks and unparks with it.
    pub measured_parks: u64,
    /// Parks and unparks without.
    pub other_parks: u64,
    /// Polls with it.
    pub measured_polls: u64,
    /// Polls without.
    pub other_polls: u64,
}

impl QueueCounts {
    pub(crate) fn park(&mut self, queued: Option<u32>) {
        *match queued {
            Some(_) => &mut self.measured_parks,
            None => &mut self.other_parks,
        } += 1;
    }

    pub(crate) fn poll(&mut self, queued: Option<u32>) {
        *match queued {
            Some(_) => &mut self.measured_polls,
            None => &mut self.other_polls,
        } += 1;
    }

    /// What was counted since.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            measured_parks: self.measured_parks - before.measured_parks,
            other_parks: self.other_parks - before.other_parks,
            measured_polls: self.measured_polls - before.measured_polls,
            other_polls: self.other_polls - before.other_polls,
        }
    }

    /// Whether there are any, and none is without.
    pub(crate) fn are_all_measured(&self) -> bool {
        self.other_parks + self.other_polls == 0 && self.measured_parks + self.measured_polls > 0
    }
}

/// Stacks by how much of them there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounts {
    /// To the thread's first function.
    pub complete: u64,
    /// They go on behind what was copied.
    pub truncated: u64,
    /// No rule is known by which they would go on.
    pub failed: u64,
    /// Of threads without user code.
    pub kernel: u64,
    /// Of threads that left their CPUs outside polls, or in one whose begin is not known:
    /// no event.
    pub outside_polls: u64,
}

impl StackCounts {
    pub(crate) fn count(&mut self, extent: Extent) {
        *match extent {
            Extent::Complete => &mut self.complete,
            Extent::Truncated => &mut self.truncated,
            Extent::Failed => &mut self.failed,
            Extent::Kernel => &mut self.kernel,
        } += 1;
    }

    /// What was counted since.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            complete: self.complete - before.complete,
            truncated: self.truncated - before.truncated,
            failed: self.failed - before.failed,
            kernel: self.kernel - before.kernel,
            outside_polls: self.outside_polls - before.outside_polls,
        }
    }

    /// Those that became events.
    pub fn said(&self) -> u64 {
        self.complete + self.truncated + self.failed + self.kernel
    }
}

/// Records by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Poll functions entered.
    pub poll_start: u64,
    /// Poll calls returned.
    pub poll_end: u64,
    /// Wakes.
    pub wake: u64,
    /// Tasks bound to a runtime.
    pub spawn: u64,
    /// Tasks ended.
    pub terminate: u64,
    /// Parks begun.
    pub park: u64,
    /// Parks over.
    pub unpark: u64,
    /// Gaps.
    pub gap: u64,
    /// Exits of the last thread.
    pub exit: u64,
    /// Signals that end the target.
    pub signal: u64,
    /// Panics.
    pub panic: u64,
    /// Messages of panics: their first pieces.
    pub message: u64,
    /// Other pieces of texts.
    pub piece: u64,
    /// Threads on a CPU again.
    pub off_cpu: u64,
    /// Calls of `block_on` begun.
    pub block_on: u64,
    /// Calls of `block_on` over.
    pub block_on_end: u64,
    /// Accept queues read, as at each connection.
    pub accept_queue: u64,
    /// Samples of the profile.
    pub cpu_sample: u64,
    /// Stacks of threads that left their CPUs.
    pub off_cpu_stack: u64,
    /// I/O begun.
    pub io_begin: u64,
    /// I/O done.
    pub io_end: u64,
    /// Files synced.
    pub sync: u64,
    /// Declared probes hit; calls count twice.
    pub declared: u64,
}

impl RecordCounts {
    #[inline]
    pub(crate) fn count(&mut self, record: &Record) {
        let counter = match record {
            Record::PollStart(_) => &mut self.poll_start,
            Record::PollEnd(_) => &mut self.poll_end,
            Record::Wake(_) => &mut self.wake,
            Record::Spawn(_) => &mut self.spawn,
            Record::Terminate(_) => &mut self.terminate,
            Record::Park(_) => &mut self.park,
            Record::Unpark(_) => &mut self.unpark,
            Record::Gap(_) => &mut self.gap,
            Record::Exit(_) => &mut self.exit,
            Record::Signal(_) => &mut self.signal,
            Record::Panic(_) => &mut self.panic,
            Record::Text(text) if is_first_of_message(text) => &mut self.message,
            Record::Text(_) => &mut self.piece,
            Record::OffCpu(_) => &mut self.off_cpu,
            Record::BlockOn(_) => &mut self.block_on,
            Record::BlockOnEnd(_) => &mut self.block_on_end,
            Record::AcceptQueue(_) => &mut self.accept_queue,
            Record::IoBegin(_) => &mut self.io_begin,
            Record::IoEnd(_) => &mut self.io_end,
            Record::Sync(_) => &mut self.sync,
            Record::Declared(..) => &mut self.declared,
        };
        *counter += 1;
    }

    pub(crate) fn count_stack(&mut self, moment: Moment) {
        *match moment {
            Moment::OnCpu => &mut self.cpu_sample,
            Moment::SwitchOut => &mut self.off_cpu_stack,
        } += 1;
    }

    /// Hits among them: all but the gaps. A text counts as often as it has pieces.
    pub fn hits(&self) -> u64 {
        let Self {
            poll_start,
            poll_end,
            wake,
            spawn,
            terminate,
            park,
            unpark,
            gap: _,
            exit,
            signal,
            panic,
            message,
            piece,
            off_cpu,
            block_on,
            block_on_end,
            accept_queue,
            cpu_sample,
            off_cpu_stack,
            io_begin,
            io_end,
            sync,
            declared,
        } = *self;
        let of_tasks = poll_start + poll_end + wake + spawn + terminate + park + unpark;
        let of_threads = block_on + block_on_end + off_cpu + cpu_sample + off_cpu_stack;
        let of_kernel = accept_queue + io_begin + io_end + sync;
        of_tasks + of_threads + of_kernel + declared + exit + signal + panic + message + piece
    }
}

fn is_first_of_message(text: &Text) -> bool {
    let piece = Piece::unpack(text.header.flags);
    piece.is_some_and(|piece| piece.is_message && piece.index == 0)
}

/// Events by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Polls begun.
    pub poll_start: u64,
    /// Polls over.
    pub poll_end: u64,
    /// Parks begun.
    pub park: u64,
    /// Parks over.
    pub unpark: u64,
    /// Tasks announced.
    pub spawn: u64,
    /// Tasks ended.
    pub terminate: u64,
    /// Wakes.
    pub wake: u64,
    /// Blocking tasks.
    pub blocking: u64,
    /// Calls of `block_on`.
    pub block_on: u64,
    /// Gaps.
    pub gap: u64,
    /// Samples of a runtime's counters.
    pub runtime_metrics: u64,
    /// Panics.
    pub panic: u64,
    /// Intervals off the CPU.
    pub off_cpu: u64,
    /// Threads sampled, on their CPUs.
    pub cpu_sample: u64,
    /// The same where they left them.
    pub off_cpu_sample: u64,
    /// Changes of accept queues.
    pub accept_queue: u64,
    /// Samples of what the target has used.
    pub usage: u64,
    /// Block I/O.
    pub block_io: u64,
    /// Files synced.
    pub synced: u64,
    /// Samples of what the kernel's own threads have submitted.
    pub kernel_io: u64,
    /// Declared events.
    pub declared: u64,
    /// The target's end.
    pub target_end: u64,
}

impl EventCounts {
    #[inline]
    pub(crate) fn count(&mut self, event: &Event) {
        let counter = match event {
            Event::PollStart { .. } => &mut self.poll_start,
            Event::PollEnd { .. } => &mut self.poll_end,
            Event::Park(_) => &mut self.park,
            Event::Unpark(_) => &mut self.unpark,
            Event::Spawn { .. } => &mut self.spawn,
            Event::Terminate { .. } => &mut self.terminate,
            Event::Wake { .. } => &mut self.wake,
            Event::Blocking { .. } => &mut self.blocking,
            Event::BlockOn { .. } => &mut self.block_on,
            Event::Gap { .. } => &mut self.gap,
            Event::RuntimeMetrics(_) => &mut self.runtime_metrics,
            Event::Panic(_) => &mut self.panic,
            Event::OffCpu(_) => &mut self.off_cpu,
            Event::CpuSample(sample) => match sample.moment {
                Moment::OnCpu => &mut self.cpu_sample,
                Moment::SwitchOut => &mut self.off_cpu_sample,
            },
            Event::AcceptQueue(_) => &mut self.accept_queue,
            Event::Usage(_) => &mut self.usage,
            Event::BlockIo(_) => &mut self.block_io,
            Event::Synced(_) => &mut self.synced,
            Event::KernelIo(_) => &mut self.kernel_io,
            Event::Declared(_) => &mut self.declared,
            Event::TargetEnd(_) => &mut self.target_end,
        };
        *counter += 1;
    }

    /// All events.
    pub fn total(&self) -> u64 {
        let Self {
            poll_start,
            poll_end,
            park,
            unpark,
            spawn,
            terminate,
            wake,
            blocking,
            block_on,
            gap,
            runtime_metrics,
            panic,
            off_cpu,
            cpu_sample,
            off_cpu_sample,
            accept_queue,
            usage,
            block_io,
            synced,
            kernel_io,
            declared,
            target_end,
        } = *self;
        let of_tasks = poll_start + poll_end + park + unpark + spawn + terminate + wake + blocking;
        let of_threads =
            block_on + off_cpu + cpu_sample + off_cpu_sample + panic + block_io + synced;
        let samples = runtime_metrics + usage + accept_queue + kernel_io;
        of_tasks + of_threads + samples + declared + gap + target_end
    }
}

#[cfg(test)]
mod tests {
    use super::EventCounts;

    #[test]
    fn every_event_is_in_the_total_once() {
        let counts = EventCounts {
            poll_start: 1 << 0,
            poll_end: 1 << 1,
            park: 1 << 2,
            unpark: 1 << 3,
            spawn: 1 << 4,
            terminate: 1 << 5,
            wake: 1 << 6,
            blocking: 1 << 7,
            block_on: 1 << 8,
            gap: 1 << 9,
            runtime_metrics: 1 << 10,
            panic: 1 << 11,
            off_cpu: 1 << 12,
            cpu_sample: 1 << 13,
            off_cpu_sample: 1 << 14,
            accept_queue: 1 << 15,
            usage: 1 << 16,
            block_io: 1 << 17,
            synced: 1 << 18,
            kernel_io: 1 << 19,
            declared: 1 << 20,
            target_end: 1 << 21,
        };
        assert_eq!(counts.total(), (1 << 22) - 1);
    }
}
