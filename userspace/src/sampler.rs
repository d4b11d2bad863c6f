//! When the counters of runtimes and of the process are read.
//!
//! In: the time, and what the line has learned of schedulers and of workers' cores. Out:
//! samples and the workers' queues, to the line; where these are, to the kernel side;
//! what there is to say of their absence. Never: a read that waits for a thread of
//! the target.

use dial9_bpf_attach::{Runtimes, Tracer};
use dial9_bpf_trace::{
    clock::monotonic_ns,
    event::{RuntimeMetrics, Sample},
    line::Line,
    metadata::{LOCAL_QUEUE, RUNTIME_METRICS},
};

use crate::usage::Meter;

/// Time between two samples, ns: dial9's.
const INTERVAL_NS: u64 = 10_000_000;
/// Time between two readings of the process, ns: dial9's.
const USAGE_INTERVAL_NS: u64 = 100_000_000;

/// Samples a target.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Where Tokio is traced.
    runtimes: Option<Runtimes>,
    due_ns: u64,
    /// Until the target has ended.
    meter: Option<Meter>,
    usage_due_ns: u64,
}

impl Sampler {
    /// A sampler of these runtimes and of their process, each where that is wanted.
    pub(crate) fn new(runtimes: Option<Runtimes>, meter: Option<Meter>) -> Self {
        Self {
            runtimes,
            due_ns: 0,
            meter,
            usage_due_ns: 0,
        }
    }

    /// Hears of new runtimes, and samples what it is time for.
    pub(crate) fn turn(&mut self, tracer: &mut Tracer, line: &mut Line) {
        if let Some(runtimes) = &mut self.runtimes {
            line.take_schedulers(|(number, address)| runtimes.meet(number, address));
            line.take_cores(|core| runtimes.see_core(core));
            if let Some(queues) = runtimes.new_queues() {
                line.know_queues(queues);
            }
            if let Some(offset) = runtimes.find_queue() {
                // Where it cannot be said, the depths stay absent.
                let _ = tracer.read_queues(offset, false);
            }
        }
        let ts_ns = monotonic_ns();
        if ts_ns < self.due_ns {
            return;
        }
        self.due_ns = ts_ns + INTERVAL_NS;
        if let Some(runtimes) = &mut self.runtimes {
            runtimes.sample(|sample| {
                line.sample(Sample::Runtime(RuntimeMetrics {
                    ts_ns,
                    number: sample.number,
                    global_queue: sample.global_queue,
                    alive_tasks: sample.alive_tasks,
                }));
            });
        }
        if ts_ns >= self.usage_due_ns {
            self.usage_due_ns = ts_ns + USAGE_INTERVAL_NS;
            self.read_usage(ts_ns, line);
        }
    }

    /// A process that has ended has no counters.
    fn read_usage(&mut self, ts_ns: u64, line: &mut Line) {
        let Some(meter) = &mut self.meter else { return };
        match meter.read(ts_ns) {
            Ok(usage) => line.sample(Sample::Process(usage)),
            Err(_) => self.meter = None,
        }
    }

    /// Tells the line what is missing of them, as far as that is known, and what threads
    /// are called.
    pub(crate) fn tell(&self, line: &mut Line) {
        if let Some(meter) = &self.meter {
            line.note_threads(meter.names());
        }
        let Some(runtimes) = &self.runtimes else {
            return;
        };
        match runtimes.absent() {
            Some(reason) => line.note_absent(&[(RUNTIME_METRICS, reason.to_owned())]),
            None => line.note_present(RUNTIME_METRICS),
        }
        if line.stats().queues.measured_parks > 0 {
            line.note_present(LOCAL_QUEUE);
        } else {
            line.note_absent(&[(LOCAL_QUEUE, runtimes.no_queues().to_owned())]);
        }
    }
}
