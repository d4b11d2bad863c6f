//! Counters that were read rather than recorded.
//!
//! In: a sample of a runtime or of the process. Out: dial9's event of it.

use std::io::Write as _;

use super::Encoder;
use crate::event::{ResourceUsage, RuntimeMetrics};
use crate::metadata::RUNTIME;
use crate::wire::{ProcessResourceUsageEvent, RuntimeMetricsEvent};

impl Encoder {
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
