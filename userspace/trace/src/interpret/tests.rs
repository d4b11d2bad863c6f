use dial9_bpf_abi::record::RecordKind;
use proptest::prelude::*;

use super::*;
use crate::location::TaskType;

/// Records by hand, and the events as lines.
struct Bench {
    interpreter: Interpreter,
    lines: Vec<String>,
}

/// Index of the type whose tasks are closures of the blocking pool.
const CLOSURE: u64 = 1;

impl Bench {
    fn new() -> Self {
        let types = [("app::a", false), ("app::closure", true), ("app::b", false)];
        let types: Vec<TaskType> = (0x1000..)
            .step_by(0x1000)
            .zip(types)
            .map(|(address, (name, blocking))| TaskType {
                name: Some(name.into()),
                address,
                blocking,
            })
            .collect();
        let interpreter = Interpreter::new(Locations::new(&types, 0x10_0000));
        Self {
            interpreter,
            lines: Vec::new(),
        }
    }

    fn feed(&mut self, record: Record) -> &mut Self {
        let mut events = Vec::new();
        self.interpreter
            .record(&record, &mut |event, _| events.push(*event));
        self.note(&events)
    }

    fn note(&mut self, events: &[Event]) -> &mut Self {
        let locations = self.interpreter.locations();
        self.lines
            .extend(events.iter().map(|event| line(event, locations)));
        self
    }

    fn start(&mut self, tid: u32, ts: u64, task_id: u64, sp: u64) -> &mut Self {
        self.start_of_type(tid, ts, task_id, sp, 0)
    }

    fn start_of_type(
        &mut self,
        tid: u32,
        ts: u64,
        task_id: u64,
        sp: u64,
        vtable: u64,
    ) -> &mut Self {
        self.feed(start(tid, ts, task_id, sp, vtable))
    }

    fn end(&mut self, tid: u32, ts: u64, sp: u64) -> &mut Self {
        self.feed(end(tid, ts, sp))
    }

    fn wake(&mut self, tid: u32, ts: u64, task_id: u64) -> &mut Self {
        let header = header(RecordKind::WAKE, tid, ts);
        self.feed(Record::Wake(TaskRecord { header, task_id }))
    }

    fn spawn(&mut self, tid: u32, ts: u64, task_id: u64, vtable: u64) -> &mut Self {
        let flags = FLAG_VTABLE_ADDRESS;
        let header = RecordHeader {
            flags,
            ..header(RecordKind::SPAWN, tid, ts)
        };
        self.feed(Record::Spawn(Spawn {
            header,
            task_id,
            vtable,
        }))
    }

    fn terminate(&mut self, tid: u32, ts: u64, task_id: u64) -> &mut Self {
        let header = header(RecordKind::TERMINATE, tid, ts);
        self.feed(Record::Terminate(TaskRecord { header, task_id }))
    }

    fn park(&mut self, tid: u32, ts: u64, cpu_ns: u64) -> &mut Self {
        self.feed(park(tid, ts, cpu_ns))
    }

    fn unpark(&mut self, tid: u32, ts: u64, cpu_ns: u64) -> &mut Self {
        self.feed(unpark(tid, ts, cpu_ns))
    }

    fn gap(&mut self, tid: u32, ts: u64, lost: u64) -> &mut Self {
        self.feed(gap(tid, ts, lost))
    }

    fn rotate(&mut self) -> &mut Self {
        let mut events = Vec::new();
        self.interpreter.rotate(&mut |event, _| events.push(*event));
        self.note(&events)
    }

    fn stats(&self) -> &Stats {
        self.interpreter.stats()
    }

    #[track_caller]
    fn expect(&mut self, lines: &[&str]) -> &mut Self {
        assert_eq!(self.lines, lines);
        self.lines.clear();
        self
    }
}

fn header(kind: RecordKind, tid: u32, ts_ns: u64) -> RecordHeader {
    RecordHeader {
        kind,
        flags: 0,
        tid,
        ts_ns,
    }
}

fn start(tid: u32, ts: u64, task_id: u64, sp: u64, vtable: u64) -> Record {
    let header = header(RecordKind::POLL_START, tid, ts);
    Record::PollStart(PollStart {
        header,
        task_id,
        sp,
        vtable,
    })
}

fn end(tid: u32, ts: u64, sp: u64) -> Record {
    Record::PollEnd(PollEnd {
        header: header(RecordKind::POLL_END, tid, ts),
        sp,
    })
}

fn park(tid: u32, ts: u64, cpu_ns: u64) -> Record {
    Record::Park(Park {
        header: header(RecordKind::PARK, tid, ts),
        cpu_ns,
    })
}

fn unpark(tid: u32, ts: u64, cpu_ns: u64) -> Record {
    Record::Unpark(Park {
        header: header(RecordKind::UNPARK, tid, ts),
        cpu_ns,
    })
}

fn gap(tid: u32, ts: u64, lost: u64) -> Record {
    Record::Gap(Gap {
        header: header(RecordKind::GAP, tid, ts),
        lost,
    })
}

fn line(event: &Event, locations: &Locations) -> String {
    match *event {
        Event::PollStart {
            ts_ns,
            worker,
            task_id,
            location,
        } => {
            format!(
                "{ts_ns} start w{worker} #{task_id} {}",
                locations.name(location)
            )
        }
        Event::PollEnd { ts_ns, worker } => format!("{ts_ns} end w{worker}"),
        Event::Park(ParkEvent {
            ts_ns,
            worker,
            cpu_ns,
            tid,
        }) => {
            format!("{ts_ns} park w{worker} cpu {cpu_ns} tid {tid}")
        }
        Event::Unpark(ParkEvent {
            ts_ns,
            worker,
            cpu_ns,
            tid,
        }) => {
            format!("{ts_ns} unpark w{worker} cpu {cpu_ns} tid {tid}")
        }
        Event::Spawn {
            ts_ns,
            task_id,
            location,
            worker,
            first_sighting,
        } => {
            let how = if first_sighting { "sighted" } else { "spawned" };
            let by = worker.map_or(String::new(), |worker| format!(" by w{worker}"));
            format!("{ts_ns} {how} #{task_id} {}{by}", locations.name(location))
        }
        Event::Terminate { ts_ns, task_id } => format!("{ts_ns} over #{task_id}"),
        Event::Wake {
            ts_ns,
            waker,
            woken,
            target_worker,
        } => {
            format!("{ts_ns} wake #{woken} by #{waker} w{target_worker}")
        }
        Event::Blocking {
            ts_ns,
            duration_ns,
            location,
            tid,
            task_id,
        } => {
            let name = locations.name(location);
            format!("{ts_ns} blocked {duration_ns} #{task_id} {name} tid {tid}")
        }
        Event::Gap {
            ts_ns,
            duration_ns,
            tid,
            lost,
        } => {
            format!("{ts_ns} gap {duration_ns} tid {tid} lost {lost}")
        }
    }
}

#[test]
fn polls_of_two_threads_are_two_workers() {
    let mut bench = Bench::new();
    bench
        .start(10, 1, 7, 100)
        .start(11, 2, 8, 100)
        .end(10, 3, 100)
        .end(11, 4, 100);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 sighted #8 app::a",
        "2 start w1 #8 app::a",
        "3 end w0",
        "4 end w1",
    ]);
    bench.start(10, 5, 7, 100).end(10, 6, 100);
    bench.expect(&["5 start w0 #7 app::a", "6 end w0"]);
}

#[test]
fn a_nested_poll_is_another_worker() {
    let mut bench = Bench::new();
    bench
        .start(10, 1, 7, 100)
        .start_of_type(10, 2, 8, 50, 2)
        .end(10, 3, 50)
        .end(10, 4, 100);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 sighted #8 app::b",
        "2 start w1 #8 app::b",
        "3 end w1",
        "4 end w0",
    ]);
}

#[test]
fn a_stray_end_is_dropped_and_counted() {
    let mut bench = Bench::new();
    bench
        .end(10, 1, 100)
        .start(10, 2, 7, 100)
        .end(10, 3, 60)
        .end(10, 4, 100);
    bench.expect(&["2 sighted #7 app::a", "2 start w0 #7 app::a", "4 end w0"]);
    assert_eq!(bench.stats().stray_ends, 2);
}

#[test]
fn a_start_at_or_above_the_open_poll_shows_that_it_ended() {
    let mut bench = Bench::new();
    bench
        .start(10, 1, 7, 100)
        .start(10, 2, 8, 50)
        .start(10, 3, 7, 100)
        .end(10, 4, 100);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 sighted #8 app::a",
        "2 start w1 #8 app::a",
        "3 end w1",
        "3 end w0",
        "3 start w0 #7 app::a",
        "4 end w0",
    ]);
    assert_eq!(bench.stats().unended_polls, 2);
}

#[test]
fn an_outer_end_closes_what_is_nested_in_it() {
    let mut bench = Bench::new();
    bench
        .start(10, 1, 7, 100)
        .start(10, 2, 7, 50)
        .end(10, 3, 100);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 start w1 #7 app::a",
        "3 end w1",
        "3 end w0",
    ]);
    assert_eq!(bench.stats().unended_polls, 1);
}

#[test]
fn a_blocking_task_is_a_span_and_leaves_no_thread_behind() {
    let mut bench = Bench::new();
    bench
        .start_of_type(20, 1, 9, 100, CLOSURE)
        .terminate(20, 4, 9)
        .end(20, 5, 100);
    bench.expect(&["5 blocked 4 #9 app::closure tid 20"]);
    assert_eq!(bench.stats().blocking_terminates, 1);
    assert!(bench.interpreter.threads.get(20).is_none());
    assert_eq!(bench.interpreter.workers().count(), 0);
}

#[test]
fn a_workers_own_loop_is_not_a_blocking_task() {
    let mut bench = Bench::new();
    bench
        .start_of_type(20, 1, 9, 100, CLOSURE)
        .start(20, 2, 7, 50)
        .end(20, 3, 50);
    bench.end(20, 4, 100);
    bench.expect(&["2 sighted #7 app::a", "2 start w0 #7 app::a", "3 end w0"]);
    bench
        .start_of_type(21, 5, 10, 100, CLOSURE)
        .park(21, 6, 1)
        .end(21, 7, 100);
    bench.expect(&["6 park w0 cpu 1 tid 21"]);
}

#[test]
fn a_worker_that_left_its_loop_leaves_its_id() {
    let mut bench = Bench::new();
    // What block_in_place does: another thread takes over in mid-poll.
    bench
        .start_of_type(20, 1, 9, 100, CLOSURE)
        .unpark(20, 2, 5)
        .start(20, 3, 7, 50);
    bench
        .start_of_type(21, 4, 10, 100, CLOSURE)
        .start(21, 5, 8, 50)
        .end(21, 6, 50);
    bench.end(20, 7, 50).end(20, 8, 100);
    bench
        .start_of_type(22, 9, 11, 100, CLOSURE)
        .unpark(22, 10, 1)
        .park(22, 11, 2);
    bench.expect(&[
        "2 unpark w0 cpu 5 tid 20",
        "3 sighted #7 app::a",
        "3 start w0 #7 app::a",
        "5 sighted #8 app::a",
        "5 start w1 #8 app::a",
        "6 end w1",
        "7 end w0",
        "11 park w0 cpu 2 tid 22",
    ]);
    assert_eq!(bench.interpreter.workers().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(bench.stats().dropped_unpaired, 1);
}

#[test]
fn a_wake_names_the_waking_task_and_worker() {
    let mut bench = Bench::new();
    bench
        .start(10, 1, 7, 100)
        .wake(10, 2, 7)
        .start_of_type(10, 3, 9, 50, CLOSURE)
        .wake(10, 4, 7);
    bench
        .end(10, 5, 50)
        .end(10, 6, 100)
        .wake(10, 7, 7)
        .wake(99, 8, 7);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 wake #7 by #7 w0",
        "4 wake #7 by #7 w0",
        "5 blocked 2 #9 app::closure tid 10",
        "6 end w0",
        "7 wake #7 by #0 w0",
        "8 wake #7 by #0 w255",
    ]);
}

#[test]
fn a_task_first_woken_is_announced_with_its_type_and_first_time() {
    let mut bench = Bench::new();
    bench.wake(99, 1, 7).wake(99, 2, 7).start(10, 3, 7, 100);
    bench.expect(&[
        "1 wake #7 by #0 w255",
        "2 wake #7 by #0 w255",
        "1 sighted #7 app::a",
        "3 start w0 #7 app::a",
    ]);
}

#[test]
fn a_segment_announces_what_was_only_woken() {
    let mut bench = Bench::new();
    bench.wake(99, 1, 7).rotate();
    bench.expect(&["1 wake #7 by #0 w255", "1 sighted #7 task:not-polled"]);
    bench.start(10, 2, 7, 100);
    bench.expect(&["2 sighted #7 app::a", "2 start w0 #7 app::a"]);
}

#[test]
fn each_segment_announces_a_task_with_its_own_spawn_time() {
    let mut bench = Bench::new();
    bench
        .park(10, 1, 5)
        .spawn(10, 2, 7, 0x10_1000)
        .start(10, 3, 7, 100)
        .end(10, 4, 100);
    bench.expect(&[
        "1 park w0 cpu 5 tid 10",
        "2 spawned #7 app::a by w0",
        "3 start w0 #7 app::a",
        "4 end w0",
    ]);
    bench
        .rotate()
        .wake(99, 5, 7)
        .wake(99, 6, 7)
        .rotate()
        .start(10, 7, 7, 100);
    bench.expect(&[
        "2 spawned #7 app::a",
        "5 wake #7 by #0 w255",
        "6 wake #7 by #0 w255",
        "2 spawned #7 app::a",
        "7 start w0 #7 app::a",
    ]);
}

#[test]
fn a_spawn_of_an_unknown_type_is_named_by_its_offset() {
    let mut bench = Bench::new();
    bench
        .spawn(99, 1, 7, 0x10_9000)
        .spawn(99, 2, 8, 0x10_2000)
        .spawn(99, 3, 7, 0x10_9000);
    bench.expect(&["1 spawned #7 task@0x9000"]);
    assert_eq!(
        (bench.stats().blocking_spawns, bench.stats().repeated_spawns),
        (1, 1)
    );
}

#[test]
fn an_ended_task_is_not_a_first_sighting_again() {
    let mut bench = Bench::new();
    bench
        .start(10, 1, 7, 100)
        .terminate(10, 2, 7)
        .end(10, 3, 100)
        .wake(10, 4, 7);
    bench.terminate(99, 5, 8).wake(99, 6, 8);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 over #7",
        "3 end w0",
        "4 wake #7 by #0 w0",
        "5 sighted #8 task:not-polled",
        "5 over #8",
        "6 wake #8 by #0 w255",
    ]);
}

#[test]
fn a_gap_closes_polls_at_the_first_lost_hit() {
    let mut bench = Bench::new();
    bench
        .start(10, 1, 7, 100)
        .start(10, 2, 8, 50)
        .gap(10, 5, 3)
        .end(10, 20, 100);
    bench.start(10, 21, 7, 100).end(10, 22, 100).end(10, 23, 90);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 sighted #8 app::a",
        "2 start w1 #8 app::a",
        "5 end w1",
        "5 end w0",
        "20 gap 15 tid 10 lost 3",
        "21 start w0 #7 app::a",
        "22 end w0",
    ]);
    let stats = bench.stats();
    assert_eq!(
        (
            stats.polls_cut_by_gap,
            stats.ends_after_gap,
            stats.stray_ends
        ),
        (2, 1, 1)
    );
}

#[test]
fn a_gap_for_all_closes_every_thread_and_counts_once() {
    let mut bench = Bench::new();
    bench.start(10, 1, 7, 100).start(11, 4, 8, 100);
    let header = RecordHeader {
        flags: FLAG_GAP_ALL_THREADS,
        ..header(RecordKind::GAP, 10, 2)
    };
    bench
        .feed(Record::Gap(Gap { header, lost: 3 }))
        .wake(10, 9, 7)
        .wake(11, 9, 7);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "4 sighted #8 app::a",
        "4 start w1 #8 app::a",
        "2 end w0",
        "4 end w1",
        "9 gap 7 tid 10 lost 3",
        "9 wake #7 by #0 w0",
        "9 gap 5 tid 11 lost 0",
        "9 wake #7 by #0 w1",
    ]);
}

#[test]
fn parks_alternate_and_cpu_time_never_falls() {
    let mut bench = Bench::new();
    bench
        .unpark(10, 1, 50)
        .park(10, 2, 40)
        .gap(10, 3, 1)
        .park(10, 4, 60)
        .unpark(10, 5, 55);
    bench.expect(&[
        "1 unpark w0 cpu 50 tid 10",
        "2 park w0 cpu 50 tid 10",
        "4 gap 1 tid 10 lost 1",
        "5 unpark w0 cpu 60 tid 10",
    ]);
    assert_eq!(bench.stats().dropped_unpaired, 1);
}

#[test]
fn a_late_record_does_not_break_its_lane() {
    let mut bench = Bench::new();
    bench
        .start(10, 5, 7, 100)
        .start(10, 3, 8, 100)
        .wake(10, 2, 7)
        .end(10, 6, 100);
    bench.expect(&[
        "5 sighted #7 app::a",
        "5 start w0 #7 app::a",
        "2 wake #7 by #0 w255",
        "6 end w0",
    ]);
    assert_eq!(bench.stats().out_of_order, 1);
}

#[test]
fn the_end_closes_what_the_kernel_still_had_lost() {
    let mut bench = Bench::new();
    bench.start(10, 1, 7, 100).start(11, 2, 8, 100);
    bench.lines.clear();
    let mut events = Vec::new();
    let gaps = [OpenGap {
        tid: Some(10),
        since_ns: 5,
        lost: 2,
    }];
    bench
        .interpreter
        .finish(9, &gaps, &mut |event, _| events.push(*event));
    bench
        .note(&events)
        .expect(&["5 end w0", "9 gap 4 tid 10 lost 2"]);
}

#[test]
fn task_zero_is_no_task() {
    let mut bench = Bench::new();
    bench
        .start(10, 1, 0, 100)
        .wake(10, 2, 0)
        .spawn(10, 3, 0, 0)
        .terminate(10, 4, 0);
    bench.expect(&[]);
    assert_eq!(bench.stats().zero_tasks, 4);
}

/// What one thread does; the times are given by the interleaving.
#[derive(Clone, Debug)]
enum Step {
    Enter { task_id: u64 },
    Leave,
    Wake { task_id: u64 },
    Terminate { task_id: u64 },
    Park,
    Unpark,
}

fn steps() -> impl Strategy<Value = Vec<(u32, bool, Step)>> {
    let step = prop_oneof![
        4 => (1..9_u64).prop_map(|task_id| Step::Enter { task_id }),
        4 => Just(Step::Leave),
        1 => (1..12_u64).prop_map(|task_id| Step::Wake { task_id }),
        1 => (1..12_u64).prop_map(|task_id| Step::Terminate { task_id }),
        1 => Just(Step::Park),
        1 => Just(Step::Unpark),
    ];
    proptest::collection::vec((0..3_u32, proptest::bool::weighted(0.15), step), 0..200)
}

/// Runs the threads, losing what is marked the way the kernel would report it.
fn run(steps: Vec<(u32, bool, Step)>) -> (Vec<Event>, Stats) {
    let mut bench = Bench::new();
    let mut events = Vec::new();
    let mut depth = [0_u64; 3];
    let mut lost: [Option<(u64, u64)>; 3] = [None; 3];
    for (ts, (tid, is_lost, step)) in (1..).zip(steps) {
        let at = tid as usize;
        let task = |kind, task_id| TaskRecord {
            header: header(kind, tid, ts),
            task_id,
        };
        let record = match step {
            Step::Enter { task_id } => {
                depth[at] += 1;
                start(tid, ts, task_id, 1000 - depth[at] * 10, task_id % 3)
            }
            Step::Leave if depth[at] == 0 => end(tid, ts, 1000),
            Step::Leave => {
                depth[at] -= 1;
                end(tid, ts, 990 - depth[at] * 10)
            }
            Step::Wake { task_id } => Record::Wake(task(RecordKind::WAKE, task_id)),
            Step::Terminate { task_id } => Record::Terminate(task(RecordKind::TERMINATE, task_id)),
            Step::Park => park(tid, ts, ts * 3 % 50),
            Step::Unpark => unpark(tid, ts, ts * 7 % 50),
        };
        if is_lost {
            let (since, hits) = lost[at].unwrap_or((ts, 0));
            lost[at] = Some((since, hits + 1));
            continue;
        }
        let mut out = |event: &Event, _: &Locations| events.push(*event);
        if let Some((since, hits)) = lost[at].take() {
            bench.interpreter.record(&gap(tid, since, hits), &mut out);
        }
        bench.interpreter.record(&record, &mut out);
    }
    let gaps: Vec<OpenGap> = (0..)
        .zip(lost)
        .filter_map(|(tid, lost)| {
            lost.map(|(since_ns, lost)| OpenGap {
                tid: Some(tid),
                since_ns,
                lost,
            })
        })
        .collect();
    bench
        .interpreter
        .finish(1000, &gaps, &mut |event, _| events.push(*event));
    (events, *bench.stats())
}

/// What the readers demand of one worker's lane.
#[derive(Default)]
struct Lane {
    last_ns: u64,
    is_polling: bool,
    side: Option<bool>,
}

fn check_lanes(events: &[Event]) {
    let mut lanes = std::collections::HashMap::<u32, Lane>::new();
    let mut cpu = std::collections::HashMap::<u32, u64>::new();
    for event in events {
        let (worker, ts_ns) = match *event {
            Event::PollStart { worker, ts_ns, .. } | Event::PollEnd { worker, ts_ns } => {
                (worker, ts_ns)
            }
            Event::Park(park) | Event::Unpark(park) => {
                let cpu = cpu.entry(park.tid).or_default();
                assert!(*cpu <= park.cpu_ns);
                *cpu = park.cpu_ns;
                (park.worker, park.ts_ns)
            }
            _ => continue,
        };
        let lane = lanes.entry(worker).or_default();
        assert!(
            lane.last_ns <= ts_ns,
            "time of worker {worker} goes back at {ts_ns}"
        );
        lane.last_ns = ts_ns;
        match event {
            Event::PollStart { .. } => assert!(!std::mem::replace(&mut lane.is_polling, true)),
            Event::PollEnd { .. } => assert!(std::mem::replace(&mut lane.is_polling, false)),
            Event::Park(_) => assert_ne!(lane.side.replace(true), Some(true)),
            _ => assert_ne!(lane.side.replace(false), Some(false)),
        }
    }
}

fn check_tasks(events: &[Event]) {
    let mut announced = std::collections::HashSet::new();
    for event in events {
        if let Event::Spawn { task_id, .. } = event {
            assert!(announced.insert(*task_id), "task {task_id} announced twice");
        }
    }
    for event in events {
        if let Event::PollStart { task_id, .. }
        | Event::Terminate { task_id, .. }
        | Event::Wake { woken: task_id, .. } = event
        {
            assert!(
                announced.contains(task_id),
                "task {task_id} is not announced"
            );
        }
    }
}

proptest! {
    #[test]
    fn any_interleaving_with_losses_gives_lanes_that_readers_take(steps in steps()) {
        let losses = steps.iter().filter(|(_, is_lost, _)| *is_lost).count() as u64;
        let (events, stats) = run(steps);
        check_lanes(&events);
        check_tasks(&events);
        let reported: u64 = events
            .iter()
            .map(|event| if let Event::Gap { lost, .. } = event { *lost } else { 0 })
            .sum();
        prop_assert_eq!(reported, losses);
        prop_assert_eq!(stats.events.total(), events.len() as u64);
        prop_assert_eq!(stats.out_of_order, 0);
        if losses == 0 {
            prop_assert_eq!(stats.unended_polls, 0);
        }
    }
}

fn any_record() -> impl Strategy<Value = Record> {
    let header = (0..4_u32, 0..200_u64, 0..8_u16);
    (header, 1..9_u16, 0..12_u64, 0..8_u64).prop_map(|((tid, ts_ns, flags), kind, a, b)| {
        let header = RecordHeader {
            kind: RecordKind(kind),
            flags,
            tid,
            ts_ns,
        };
        match RecordKind(kind) {
            RecordKind::POLL_START => {
                let vtable = if flags & FLAG_VTABLE_ADDRESS == 0 {
                    a % 4
                } else {
                    0x10_0000 + a
                };
                Record::PollStart(PollStart {
                    header,
                    task_id: a,
                    sp: b,
                    vtable,
                })
            }
            RecordKind::POLL_END => Record::PollEnd(PollEnd { header, sp: b }),
            RecordKind::WAKE => Record::Wake(TaskRecord { header, task_id: a }),
            RecordKind::SPAWN => Record::Spawn(Spawn {
                header,
                task_id: a,
                vtable: b,
            }),
            RecordKind::TERMINATE => Record::Terminate(TaskRecord { header, task_id: a }),
            RecordKind::PARK => Record::Park(Park { header, cpu_ns: b }),
            RecordKind::UNPARK => Record::Unpark(Park { header, cpu_ns: b }),
            _ => Record::Gap(Gap {
                header,
                lost: u64::MAX - a,
            }),
        }
    })
}

proptest! {
    #[test]
    fn any_records_in_any_order_give_lanes_that_readers_take(
        records in proptest::collection::vec(any_record(), 0..200)
    ) {
        let mut bench = Bench::new();
        let mut events = Vec::new();
        for record in &records {
            bench.interpreter.record(record, &mut |event, _| events.push(*event));
        }
        let gaps = [OpenGap { tid: None, since_ns: 100, lost: 1 }];
        bench.interpreter.finish(50, &gaps, &mut |event, _| events.push(*event));
        check_lanes(&events);
        check_tasks(&events);
    }
}
