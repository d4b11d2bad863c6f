//! Block I/O: which poll it belongs to, and what ends without a begin.

use dial9_bpf_abi::record::{FLAG_DATA_ONLY, IoBegin, IoEnd, Sync};

use super::*;
use crate::event::{BlockIo, Synced};

pub(super) fn io_line(io: &BlockIo) -> String {
    let name = io.operation.name(io.bytes);
    format!(
        "{} {name} {} of {} at {} took {} waited {:?} tid {} w{:?} #{} failed {:?}",
        io.ts_ns,
        io.bytes,
        io.device,
        io.sector,
        io.duration_ns,
        io.queue_ns,
        io.tid,
        io.worker,
        io.task_id,
        io.failure
    )
}

pub(super) fn sync_line(sync: &Synced) -> String {
    format!(
        "{} synced {} of {} data only {} took {} tid {} w{:?} #{} failed {:?}",
        sync.ts_ns,
        sync.inode,
        sync.device,
        sync.is_data_only,
        sync.duration_ns,
        sync.tid,
        sync.worker,
        sync.task_id,
        sync.failure
    )
}

impl Bench {
    fn submit(&mut self, tid: u32, ts: u64, bio: u64) -> &mut Self {
        let header = header(RecordKind::IO_BEGIN, tid, ts);
        self.feed(Record::IoBegin(IoBegin { header, bio }))
    }

    fn done(&mut self, [begin, issue, end]: [u64; 3], bio: u64, status: u32) -> &mut Self {
        self.feed(Record::IoEnd(IoEnd {
            header: header(RecordKind::IO_END, 0, end),
            bio,
            begin_ns: begin,
            issue_ns: issue,
            sector: 8,
            bytes: 4096,
            operation: 1,
            major: 254,
            minor: 16,
            submitter: 7,
            status,
        }))
    }
}

/// Another task is polled by the time it is done.
#[test]
fn an_io_is_of_the_poll_that_submits_it() {
    Bench::new()
        .start(7, 100, 1, 500)
        .submit(7, 110, 0xb10)
        .end(7, 120, 500)
        .start(7, 130, 2, 500)
        .done([110, 115, 140], 0xb10, 0)
        .expect(&[
            "100 sighted #1 app::a",
            "100 start w0 #1 app::a",
            "120 end w0",
            "130 sighted #2 app::a",
            "130 start w0 #2 app::a",
            "140 I/O: write 4096 of 254:16 at 8 took 30 waited Some(5) tid 7 wSome(0) #1 failed None",
        ]);
}

/// Until a worker's loop is known as one by the tasks in it, it is a closure, too.
#[test]
fn an_io_in_a_closure_is_of_its_blocking_task() {
    let mut bench = Bench::new();
    bench
        .start_of_type(7, 100, 9, 500, CLOSURE)
        .submit(7, 110, 0xb10)
        .start(7, 120, 1, 400)
        .end(7, 125, 400)
        .submit(7, 130, 0xb20)
        .done([110, 115, 140], 0xb10, 0)
        .done([130, 0, 150], 0xb20, 0);
    let lines = &bench.lines;
    let ios: Vec<&String> = lines.iter().filter(|line| line.contains("I/O")).collect();
    assert!(ios[0].contains("tid 7 wNone #9"), "{ios:?}");
    assert!(ios[1].contains("#0"), "{ios:?}");
}

/// A begin that was lost, or is another one's at the same address, tells no poll.
#[test]
fn an_io_whose_begin_is_not_its_own_has_no_poll() {
    let mut bench = Bench::new();
    bench
        .start(7, 100, 1, 500)
        .submit(7, 110, 0xb10)
        .done([150, 0, 190], 0xb10, 10)
        .submit(7, 195, 0xb20)
        .expect(&[
            "100 sighted #1 app::a",
            "100 start w0 #1 app::a",
            "190 I/O: write 4096 of 254:16 at 8 took 40 waited None tid 7 wNone #0 failed Some(10)",
        ]);
    bench.interpreter.finish(300, &[], &mut |_, _| ());
    assert_eq!(bench.interpreter.stats().unfinished_io, 1);
}

#[test]
fn a_sync_is_of_the_poll_that_waits_for_it() {
    let mut bench = Bench::new();
    bench.start(7, 100, 1, 500);
    let mut header = header(RecordKind::SYNC, 7, 150);
    header.flags = FLAG_DATA_ONLY;
    bench
        .feed(Record::Sync(Sync {
            header,
            begin_ns: 110,
            inode: 12,
            device: 254 << 20,
            error: -5,
        }))
        .expect(&[
            "100 sighted #1 app::a",
            "100 start w0 #1 app::a",
            "150 synced 12 of 254:0 data only true took 40 tid 7 wSome(0) #1 failed Some(5)",
        ]);
}
