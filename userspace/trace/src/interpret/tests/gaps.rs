//! What is closed where hits were lost, and parks around it.

use super::*;

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
