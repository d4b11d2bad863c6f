//! Two objects, each with a Tokio that counts from 1.

use dial9_bpf_abi::record::OBJECT_SHIFT;

use super::*;
use crate::location::ObjectTypes;

/// A record about a task, as of the second object.
fn of_plugin(mut record: Record) -> Record {
    match &mut record {
        Record::PollStart(PollStart { header, .. })
        | Record::Wake(TaskRecord { header, .. })
        | Record::Terminate(Terminate { header, .. })
        | Record::Spawn(Spawn { header, .. }) => header.flags |= 1 << OBJECT_SHIFT,
        _ => {}
    }
    record
}

fn terminate(tid: u32, ts: u64, task_id: u64, owner: u64) -> Record {
    Record::Terminate(Terminate {
        header: header(RecordKind::TERMINATE, tid, ts),
        task_id,
        owner,
        scheduler: 0,
    })
}

fn with_plugin() -> Bench {
    let mut bench = Bench::new();
    bench.interpreter.add_object(ObjectTypes {
        file: Some("plugin.so".into()),
        load_bias: 0x70_0000,
        types: vec![TaskType {
            name: Some("plugin::task".into()),
            address: 0x1000,
            blocking: false,
        }],
    });
    bench
}

#[test]
fn each_copy_of_tokio_counts_its_tasks_from_1() {
    let mut bench = with_plugin();
    let unique = unique(1, 1);
    bench.spawn(20, 1, 1, 0x10_1000);
    let spawn = Record::Spawn(Spawn {
        header: RecordHeader {
            flags: FLAG_VTABLE_ADDRESS,
            ..header(RecordKind::SPAWN, 30, 2)
        },
        task_id: 1,
        vtable: 0x70_1000,
    });
    bench.feed(of_plugin(spawn));
    bench
        .start(20, 3, 1, 50)
        .feed(of_plugin(start(30, 4, 1, 50, 0)));
    let wake = TaskRecord {
        header: header(RecordKind::WAKE, 30, 5),
        task_id: 1,
    };
    bench.feed(of_plugin(Record::Wake(wake)));
    bench.feed(of_plugin(terminate(30, 6, 1, 1)));
    bench.feed(terminate(20, 7, 1, 1));
    bench.expect(&[
        "1 spawned #1 app::a",
        &format!("2 spawned #{unique} plugin::task"),
        "3 start w0 #1 app::a",
        &format!("4 start w1 #{unique} plugin::task"),
        &format!("5 wake #{unique} by #{unique} w1"),
        &format!("6 over #{unique}"),
        "7 over #1",
    ]);
}

#[test]
fn workers_of_two_objects_are_in_no_runtime_together() {
    let mut bench = with_plugin();
    bench.start(20, 1, 1, 50).feed(terminate(20, 2, 1, 1));
    bench.feed(of_plugin(start(30, 1, 1, 50, 0)));
    let runtimes = |bench: &Bench| {
        let runtimes = bench.interpreter.runtimes();
        let of = |runtime: Runtime| (runtime.number, runtime.workers);
        runtimes.into_iter().map(of).collect::<Vec<_>>()
    };
    // Of the second it is known that it is not of the first's.
    assert_eq!(runtimes(&bench), [(None, vec![1]), (Some(1), vec![0])]);
    bench.feed(of_plugin(terminate(30, 3, 1, 1)));
    // One more of the plugin, of which no task has ended.
    bench.feed(of_plugin(start(31, 4, 2, 50, 0)));
    let of_plugin = unique(1, 1);
    let found = [(Some(1), vec![0]), (Some(of_plugin), vec![1, 2])];
    assert_eq!(runtimes(&bench), found);
}
