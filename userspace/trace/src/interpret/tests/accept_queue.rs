//! Accept queues: which of many records become events.

use dial9_bpf_abi::record::{self, FLAG_ARRIVAL, FLAG_CLOSED, FLAG_UNRESOLVED};

use super::*;
use crate::event::AcceptQueue;

const MS: u64 = 1_000_000;
const READING: u16 = 0;

pub(super) fn queue_line(queue: &AcceptQueue) -> String {
    let AcceptQueue {
        ts_ns,
        address,
        port,
        pending,
        limit,
        drops,
        arrivals,
        why,
        ..
    } = queue;
    format!(
        "{} {address} {port}: {pending}/{limit} of {arrivals}, {drops} dropped, {why:?}",
        ts_ns / MS
    )
}

impl Bench {
    fn queue(&mut self, ms: u64, flags: u16, depth: u32, arrivals: u64) -> &mut Self {
        self.queue_at(ms, flags, depth, arrivals, 2)
    }

    fn queue_at(
        &mut self,
        ms: u64,
        flags: u16,
        depth: u32,
        arrivals: u64,
        family: u16,
    ) -> &mut Self {
        let mut header = header(RecordKind::ACCEPT_QUEUE, 0, ms * MS);
        header.flags = flags;
        self.feed(Record::AcceptQueue(record::AcceptQueue {
            header,
            cookie: family.into(),
            inode: 4,
            address: [0x0100_007f, 0],
            arrivals,
            depth,
            limit: 16,
            drops: 5,
            port: 80,
            family,
        }))
    }

    fn end_segment(&mut self) -> &mut Self {
        let mut events = Vec::new();
        self.interpreter.rotate(&mut |event, _| events.push(*event));
        self.note(&events)
    }
}

#[test]
fn first_fullest_and_last_of_an_interval() {
    Bench::new()
        .queue(1000, FLAG_ARRIVAL, 1, 1)
        .queue(1001, FLAG_ARRIVAL, 2, 2)
        .queue(1002, FLAG_ARRIVAL, 3, 3)
        .queue(1003, FLAG_ARRIVAL, 3, 4)
        .queue(1009, FLAG_ARRIVAL, 2, 5)
        .queue(1010, READING, 0, 5)
        .queue(1012, FLAG_ARRIVAL, 1, 6)
        .queue(1013, FLAG_ARRIVAL, 1, 7)
        .queue(1030, READING, 0, 7)
        .expect(&[
            "1000 127.0.0.1 80: 1/16 of 1, 5 dropped, Arrival",
            "1002 127.0.0.1 80: 3/16 of 3, 5 dropped, Arrival",
            "1009 127.0.0.1 80: 2/16 of 5, 5 dropped, Arrival",
            "1010 127.0.0.1 80: 0/16 of 5, 5 dropped, Reading",
            "1013 127.0.0.1 80: 1/16 of 7, 5 dropped, Arrival",
            "1030 127.0.0.1 80: 0/16 of 7, 5 dropped, Reading",
        ]);
}

#[test]
fn a_reading_without_a_change_is_told_once_a_second_and_in_each_segment() {
    Bench::new()
        .queue(1000, READING, 0, 0)
        .queue(1100, READING, 0, 0)
        .queue(1200, READING, 0, 0)
        .queue(2000, READING, 0, 0)
        .queue(2100, READING, 0, 0)
        .end_segment()
        .queue(2200, READING, 0, 0)
        .queue_at(2300, READING, 0, 0, 10)
        .expect(&[
            "1000 127.0.0.1 80: 0/16 of 0, 5 dropped, Reading",
            "2000 127.0.0.1 80: 0/16 of 0, 5 dropped, Reading",
            "2200 127.0.0.1 80: 0/16 of 0, 5 dropped, Reading",
            "2300 7f00:1:: 80: 0/16 of 0, 5 dropped, Reading",
        ]);
}

#[test]
fn nothing_is_held_beyond_an_interval_a_segment_or_a_close() {
    let mut bench = Bench::new();
    bench
        .queue(1000, FLAG_ARRIVAL, 1, 1)
        .queue(1001, FLAG_ARRIVAL, 2, 3)
        // Of the other CPU, whose count was before: nothing new.
        .queue(1002, FLAG_UNRESOLVED, 2, 2)
        .queue(1100, READING, 2, 3)
        .queue(1200, FLAG_ARRIVAL, 3, 4)
        .queue(1201, FLAG_ARRIVAL, 4, 5)
        .end_segment()
        .queue(1300, FLAG_ARRIVAL, 5, 6)
        .queue(1301, FLAG_ARRIVAL, 6, 7)
        .queue(1302, FLAG_CLOSED, 6, 7)
        .expect(&[
            "1000 127.0.0.1 80: 1/16 of 1, 5 dropped, Arrival",
            "1001 127.0.0.1 80: 2/16 of 3, 5 dropped, Arrival",
            "1200 127.0.0.1 80: 3/16 of 4, 5 dropped, Arrival",
            "1201 127.0.0.1 80: 4/16 of 5, 5 dropped, Arrival",
            "1300 127.0.0.1 80: 5/16 of 6, 5 dropped, Arrival",
            "1301 127.0.0.1 80: 6/16 of 7, 5 dropped, Arrival",
            "1302 127.0.0.1 80: 6/16 of 7, 5 dropped, Closed",
        ]);
    assert_eq!(bench.interpreter.stats().unresolved_arrivals, 1);
}
