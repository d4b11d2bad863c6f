//! Whatever comes, readers get lanes that they take.

use proptest::prelude::*;

use super::*;

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
            Step::Terminate { task_id } => Record::Terminate(Terminate {
                header: task(RecordKind::TERMINATE, task_id).header,
                task_id,
                owner: 0,
                scheduler: 0,
            }),
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

const fn parked(header: RecordHeader, cpu_ns: u64) -> Park {
    Park {
        header,
        cpu_ns,
        core: 0,
        queue: 0,
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
            RecordKind::TERMINATE => Record::Terminate(Terminate {
                header,
                task_id: a,
                owner: b,
                scheduler: 0,
            }),
            RecordKind::PARK => Record::Park(parked(header, b)),
            RecordKind::UNPARK => Record::Unpark(parked(header, b)),
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
