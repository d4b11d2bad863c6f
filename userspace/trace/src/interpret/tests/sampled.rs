//! Samples of threads: whose they are, and which of those that wait count.

use super::*;
use crate::event::{CpuSample, Moment, ThreadName};
use crate::stacks::{Extent, Sampled};
use crate::stats::StackCounts;

impl Bench {
    fn sampled(&mut self, tid: u32, ts_ns: u64, moment: Moment, frames: &[u64]) -> &mut Self {
        let Self {
            interpreter, lines, ..
        } = self;
        frames.clone_into(interpreter.frames_mut());
        let sampled = Sampled {
            ts_ns,
            tid,
            name: ThreadName(*b"worker\0\0\0\0\0\0\0\0\0\0"),
            moment,
            cpu: 3,
            extent: Extent::Complete,
        };
        interpreter.sampled(&sampled, &mut |event, locations| {
            lines.push(line(event, locations));
        });
        self
    }
}

pub(super) fn sample_line(sample: &CpuSample, locations: &Locations) -> String {
    let CpuSample {
        ts_ns,
        tid,
        name,
        moment,
        cpu,
        worker,
    } = sample;
    let frames = locations.frames();
    let name = name.as_str().unwrap_or_default();
    let worker = worker.map_or(String::new(), |worker| format!(" w{worker}"));
    format!("{ts_ns} {moment:?} tid {tid}{worker} {name} cpu {cpu} {frames:?}")
}

#[test]
fn a_sample_has_its_worker_where_the_thread_is_one() {
    Bench::new()
        .sampled(7, 100, Moment::OnCpu, &[1, 2])
        .start(7, 200, 1, 500)
        .sampled(7, 210, Moment::OnCpu, &[3])
        .sampled(8, 220, Moment::OnCpu, &[4])
        .expect(&[
            "100 OnCpu tid 7 worker cpu 3 [1, 2]",
            "200 sighted #1 app::a",
            "200 start w0 #1 app::a",
            "210 OnCpu tid 7 w0 worker cpu 3 [3]",
            "220 OnCpu tid 8 worker cpu 3 [4]",
        ]);
}

#[test]
fn a_thread_that_waits_outside_polls_has_no_sample() {
    let mut bench = Bench::new();
    bench
        .sampled(7, 100, Moment::SwitchOut, &[1])
        .start(7, 200, 1, 500)
        .sampled(7, 210, Moment::SwitchOut, &[2])
        .end(7, 300, 500)
        .sampled(7, 310, Moment::SwitchOut, &[3])
        .expect(&[
            "200 sighted #1 app::a",
            "200 start w0 #1 app::a",
            "210 SwitchOut tid 7 w0 worker cpu 3 [2]",
            "300 end w0",
        ]);
    let stats = *bench.interpreter.stats();
    let expected = StackCounts {
        complete: 1,
        outside_polls: 2,
        ..StackCounts::default()
    };
    assert_eq!(stats.stacks, expected);
    assert_eq!(stats.records.off_cpu_stack, 3);
}
