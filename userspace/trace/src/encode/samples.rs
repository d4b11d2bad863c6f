//! What was looked at rather than told: counters, and where threads are.
//!
//! In: a sample of a runtime, of the process, of a listener or of a thread. Out: dial9's
//! event of it.

use std::io::Write as _;

use super::Encoder;
use crate::event::{AcceptQueue, CpuSample, ResourceUsage, RuntimeMetrics};
use crate::location::Locations;
use crate::metadata::RUNTIME;
use crate::wire::{
    CpuSampleEvent, ProcessResourceUsageEvent, RuntimeMetricsEvent, TcpAcceptQueueEvent,
};

/// What dial9 has for a thread that is no worker, or not known as one.
const NO_WORKER: u64 = 255;

impl Encoder {
    pub(super) fn cpu_sample(&mut self, sample: &CpuSample, locations: &Locations) {
        let CpuSample {
            ts_ns,
            tid,
            name,
            moment,
            cpu,
            worker,
        } = *sample;
        let thread_name = name.as_str();
        let thread_name = thread_name.map(|name| self.wire.intern_string_infallible(name));
        let callchain = self.wire.intern_stack_frames_infallible(locations.frames());
        self.wire.write_infallible(&CpuSampleEvent {
            ts_ns,
            worker_id: worker.map_or(NO_WORKER, u64::from),
            tid,
            source: moment.source(),
            thread_name,
            callchain,
            cpu: Some(cpu.into()),
        });
    }

    pub(super) fn runtime_metrics(&mut self, sample: &RuntimeMetrics) {
        let RuntimeMetrics {
            ts_ns,
            number,
            global_queue,
            alive_tasks,
        } = *sample;
        // A prefix and a number of up to 20 digits.
        let mut name = [0; 32];
        let mut rest = &mut name[..];
        write!(rest, "{RUNTIME}-{number}").expect("it has room");
        let left = rest.len();
        let name = std::str::from_utf8(&name[..name.len() - left]).expect("ASCII");
        let runtime_name = self.wire.intern_string_infallible(name);
        self.wire.write_infallible(&RuntimeMetricsEvent {
            ts_ns,
            runtime_name,
            global_queue_depth: global_queue,
            alive_tasks,
        });
    }

    pub(super) fn accept_queue(&mut self, queue: &AcceptQueue) {
        // An address of IPv6 has at most 45 letters.
        let mut text = [0; 48];
        let mut rest = &mut text[..];
        write!(rest, "{}", queue.address).expect("it has room");
        let left = rest.len();
        let local_addr = std::str::from_utf8(&text[..text.len() - left]).expect("ASCII");
        let why = self.wire.intern_string_infallible(queue.why.name());
        self.wire.write_infallible(&TcpAcceptQueueEvent {
            ts_ns: queue.ts_ns,
            socket_cookie: queue.cookie,
            socket_inode: queue.inode,
            ip_version: if queue.address.is_ipv4() { 4 } else { 6 },
            local_addr,
            local_port: queue.port,
            pending_connections: queue.pending,
            backlog_limit: queue.limit,
            arrivals: queue.arrivals,
            drops: queue.drops.into(),
            why,
        });
    }

    pub(super) fn usage(&mut self, usage: &ResourceUsage) {
        let ResourceUsage {
            ts_ns,
            user_cpu_ns,
            system_cpu_ns,
            max_rss_bytes,
            minor_faults,
            major_faults,
            block_input_ops,
            block_output_ops,
            voluntary_context_switches,
            involuntary_context_switches,
        } = *usage;
        self.wire.write_infallible(&ProcessResourceUsageEvent {
            ts_ns,
            user_cpu_ns,
            system_cpu_ns,
            max_rss_bytes,
            minor_faults,
            major_faults,
            block_input_ops,
            block_output_ops,
            voluntary_context_switches,
            involuntary_context_switches,
        });
    }
}
