//! Block I/O of a Tokio program: of which thread and which task.
//!
//! In: blocking tasks that count their own writes and time their syncs. Out: the same, task
//! by task. Never: a task's I/O in another one.

use std::fs;

use dial9_bpf_integration::{
    Attach, Build, Facts, Outcome, TestProgram,
    block_io::{DiskFile, IoFacts, not_done},
    output_dir, require_root,
};

/// Room for what the program writes.
const FILE_BYTES: u64 = 4 << 20;

/// A blocking task by its own account.
#[derive(Debug)]
struct Known {
    tid: u64,
    task: u64,
    writes: u64,
    bytes: u64,
    /// When it waited for `fsync` and for `fdatasync`, ns.
    syncs: [[u64; 2]; 2],
}

impl Known {
    fn of(line: &str) -> Self {
        let numbers: Vec<u64> = line
            .split('\t')
            .map(|field| field.parse().expect("a number"))
            .collect();
        let [tid, task, writes, bytes, begin, end, data_begin, data_end] = numbers[..] else {
            panic!("{line:?}")
        };
        Self {
            tid,
            task,
            writes,
            bytes,
            syncs: [[begin, end], [data_begin, data_end]],
        }
    }
}

fn recorded() -> (Vec<Known>, DiskFile, Facts, Outcome) {
    require_root();
    let output = output_dir();
    let file = DiskFile::new(output.path().join("data"), FILE_BYTES);
    let account = output.path().join("account.tsv");
    let traces = output.path().join("traces");
    let mut program = TestProgram::start_with("disk", Build::Plain, |command| {
        command.arg(&file.path).arg(&account);
    });
    let tracer = Attach::to(program.pid(), &traces)
        .arg("--signals")
        .arg("tokio,io")
        .attached();
    program.ask("go", "done");
    program.say("exit");
    assert!(program.wait().success());
    let outcome = tracer.outcome();
    assert!(matches!(outcome.code, Some(0 | 7)), "{outcome:#?}");
    let account = fs::read_to_string(account).expect("it is written");
    let known: Vec<Known> = account.lines().map(Known::of).collect();
    (known, file, Facts::of_dir(&traces), outcome)
}

#[test]
fn io_is_of_the_blocking_task_that_waits_for_it() {
    let (known, file, facts, outcome) = recorded();
    assert_eq!(known.len(), 12);
    let ios = file.ios(&facts);
    let made: u64 = known.iter().map(|task| task.writes).sum();
    let mut missing = 0;
    for task in &known {
        let of_task: Vec<&&IoFacts> = ios.iter().filter(|io| io.task == Some(task.task)).collect();
        let seen = of_task.len() as u64;
        assert!(seen <= task.writes, "{task:?}: {seen}");
        missing += task.writes - seen;
        let each = task.bytes / task.writes;
        for io in of_task {
            assert_eq!(
                (io.tid, io.bytes, io.worker, io.name.as_str()),
                (task.tid, each, None, "I/O: write"),
                "{io:?}"
            );
        }
        expect_syncs(task, &facts);
        assert_eq!(facts.tasks[&task.task].blocking_runs, 1, "{task:?}");
    }
    assert_eq!(ios.len() as u64 + missing, made, "of no other task");
    let accounted = facts.lost_of("io-end") + not_done(&outcome);
    assert!(missing <= accounted, "{missing}, not {accounted}");
    assert!(missing * 10 <= made, "{missing} of {made}");
}

/// A sync is in its call, and the call is little else.
fn expect_syncs(task: &Known, facts: &Facts) {
    let of_task = facts
        .syncs
        .iter()
        .filter(|sync| sync.task == Some(task.task));
    let syncs: Vec<_> = of_task.collect();
    let names: Vec<&str> = syncs.iter().map(|sync| sync.name.as_str()).collect();
    assert_eq!(names, ["fsync", "fdatasync"], "{task:?}");
    for (sync, [begin, end]) in syncs.iter().zip(task.syncs) {
        assert_eq!(sync.tid, task.tid, "{task:?}");
        let [began, ended] = sync.times;
        assert!(begin <= began && ended <= end, "{task:?}: {sync:?}");
    }
}
