//! Calls of `block_on` are pairs, and nothing else.

use dial9_bpf_abi::record::BlockOn;

use super::*;

impl Bench {
    fn block(&mut self, tid: u32, ts: u64, sp: u64) -> &mut Self {
        let header = header(RecordKind::BLOCK_ON, tid, ts);
        self.feed(Record::BlockOn(BlockOn { header, sp }))
    }

    fn unblock(&mut self, tid: u32, ts: u64, sp: u64) -> &mut Self {
        let header = header(RecordKind::BLOCK_ON_END, tid, ts);
        self.feed(Record::BlockOnEnd(BlockOn { header, sp }))
    }
}

#[test]
fn a_call_is_told_at_its_end_and_its_thread_forgotten() {
    let mut bench = Bench::new();
    bench.block(10, 1, 100).unblock(10, 4, 100);
    bench.expect(&["4 blocked on a future 3 tid 10"]);
    assert!(bench.interpreter.threads.get(10).is_none());
}

/// In a poll that blocks in place, and inlined where the poll's call is.
#[test]
fn calls_nest_and_may_share_a_polls_stack_pointer() {
    let mut bench = Bench::new();
    bench
        .block(10, 1, 200)
        .start(10, 2, 7, 200)
        .block(10, 3, 100)
        .unblock(10, 4, 100)
        .end(10, 5, 200)
        .unblock(10, 6, 200);
    bench.expect(&[
        "2 sighted #7 app::a",
        "2 start w0 #7 app::a",
        "4 blocked on a future 1 tid 10",
        "5 end w0",
        "6 blocked on a future 5 tid 10",
    ]);
    assert_eq!(bench.stats().unpaired_block_ons, 0);
}

#[test]
fn a_side_without_the_other_is_no_event() {
    let mut bench = Bench::new();
    // It began before the attach; it never ended; another thread's.
    bench.unblock(10, 1, 100);
    bench
        .block(10, 2, 100)
        .block(10, 3, 100)
        .unblock(10, 4, 100);
    bench.block(11, 5, 100).unblock(12, 6, 100);
    bench.expect(&["4 blocked on a future 1 tid 10"]);
    assert_eq!(bench.stats().unpaired_block_ons, 3);
}

#[test]
fn a_gap_hides_it() {
    let mut bench = Bench::new();
    bench.block(10, 1, 100);
    bench.feed(gap(10, 2, 1));
    bench.unblock(10, 4, 100);
    bench.expect(&["4 gap 2 tid 10 lost 1"]);
    let stats = bench.stats();
    assert_eq!((stats.block_ons_cut, stats.unpaired_block_ons), (1, 1));
}
