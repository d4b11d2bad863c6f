//! The depth of a worker's queue: of which queue, and for how long.

use dial9_bpf_abi::queue::with_depth;

use super::*;
use crate::stats::QueueCounts;

const QUEUE: u64 = 0x7f00_0000_1000;
const CORE: u64 = 0x7f00_0000_2000;

impl Bench {
    fn queued(&mut self, kind: RecordKind, ts: u64, queue: u64) -> &mut Self {
        let park = Park {
            header: header(kind, 1, ts),
            cpu_ns: 5,
            core: if kind == RecordKind::PARK { CORE } else { 0 },
            queue,
        };
        self.feed(if kind == RecordKind::PARK {
            Record::Park(park)
        } else {
            Record::Unpark(park)
        })
    }

    fn polled(&mut self, ts: u64, sp: u64, depth: u32) -> &mut Self {
        self.feed(start(1, ts, 9, sp, with_depth(0, depth)))
    }

    fn cores(&mut self) -> Vec<u64> {
        let mut cores = Vec::new();
        self.interpreter.take_cores(|core| cores.push(core));
        cores
    }
}

#[test]
fn depths_are_those_of_known_queues() {
    let mut bench = Bench::new();
    let (park, unpark) = (RecordKind::PARK, RecordKind::UNPARK);
    bench
        .queued(park, 10, with_depth(QUEUE, 0))
        .queued(unpark, 20, with_depth(QUEUE, 3))
        .polled(30, 64, 2)
        .end(1, 40, 64)
        .expect(&[
            "10 park w0 cpu 5 tid 1",
            "20 unpark w0 cpu 5 tid 1",
            "30 sighted #9 app::a",
            "30 start w0 #9 app::a",
            "40 end w0",
        ]);
    assert_eq!(bench.cores(), [CORE]);
    bench.interpreter.know_queues([QUEUE].into_iter());
    bench
        .queued(park, 50, with_depth(QUEUE, 0))
        .queued(unpark, 60, with_depth(QUEUE, 3))
        .polled(70, 64, 2)
        .polled(75, 32, 2)
        .end(1, 76, 32)
        .end(1, 80, 64)
        .expect(&[
            "50 park w0 cpu 5 tid 1 queued 0",
            "60 unpark w0 cpu 5 tid 1 queued 3",
            "70 start w0 #9 app::a queued 2",
            "75 start w1 #9 app::a",
            "76 end w1",
            "80 end w0",
        ]);
    assert!(bench.cores().is_empty(), "its queue is known");
    let counts = QueueCounts {
        measured_parks: 2,
        other_parks: 2,
        measured_polls: 1,
        other_polls: 2,
    };
    assert_eq!(bench.stats().queues, counts);
}

#[test]
fn what_a_thread_has_is_forgotten_with_a_gap_and_a_closure() {
    let mut bench = Bench::new();
    bench.interpreter.know_queues([QUEUE].into_iter());
    bench
        .queued(RecordKind::UNPARK, 10, with_depth(QUEUE, 3))
        .gap(1, 20, 1)
        .polled(30, 64, 2)
        .end(1, 40, 64);
    assert_eq!(bench.stats().queues.measured_polls, 0);
    bench
        .queued(RecordKind::PARK, 50, with_depth(QUEUE, 0))
        .start_of_type(1, 60, 10, 96, CLOSURE)
        .polled(70, 64, 2);
    assert_eq!(bench.stats().queues.measured_polls, 0);
}
