//! Whose poll it is, and when it is over.

use super::*;
use crate::metadata::Runtime;

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
    assert_eq!(bench.interpreter.runtimes(), []);
}

#[test]
fn the_end_of_a_blocking_task_that_began_before_is_no_tasks_end() {
    let mut bench = Bench::new();
    bench.terminate_blocking(20, 4, 9).end(20, 5, 100).rotate();
    bench.expect(&[]);
    assert_eq!(bench.stats().blocking_terminates, 1);
    assert_eq!(bench.stats().stray_ends, 1);
}

#[test]
fn a_workers_own_loop_is_told_with_its_worker() {
    let mut bench = Bench::new();
    bench
        .start_of_type(20, 1, 9, 100, CLOSURE)
        .start(20, 2, 7, 50)
        .end(20, 3, 50);
    bench.end(20, 4, 100);
    bench.expect(&[
        "2 sighted #7 app::a",
        "2 start w0 #7 app::a",
        "3 end w0",
        "4 blocked 3 #9 app::closure tid 20 as w0",
    ]);
    bench
        .start_of_type(21, 5, 10, 100, CLOSURE)
        .park(21, 6, 1)
        .end(21, 7, 100);
    bench.expect(&[
        "6 park w0 cpu 1 tid 21",
        "7 blocked 2 #10 app::closure tid 21 as w0",
    ]);
}

/// Its loop began before the attach, and the thread went back to the pool.
#[test]
fn a_thread_that_was_a_worker_is_none_in_a_closure() {
    let mut bench = Bench::new();
    bench.start(20, 1, 7, 50).end(20, 2, 50).end(20, 3, 100);
    bench
        .start_of_type(20, 4, 9, 100, CLOSURE)
        .wake(20, 5, 7)
        .end(20, 6, 100);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 end w0",
        "5 wake #7 by #0 w255",
        "6 blocked 2 #9 app::closure tid 20",
    ]);
    assert_eq!(bench.interpreter.worker_threads(), []);
}

/// A task blocks in place on a runtime of one thread.
#[test]
fn parks_within_a_poll_are_another_workers() {
    let mut bench = Bench::new();
    bench
        .park(20, 1, 1)
        .unpark(20, 2, 2)
        .start(20, 3, 7, 100)
        .start(20, 4, 8, 50)
        .end(20, 5, 50)
        .park(20, 6, 3)
        .unpark(20, 7, 4)
        .end(20, 8, 100)
        .park(20, 9, 5);
    bench.expect(&[
        "1 park w0 cpu 1 tid 20",
        "2 unpark w0 cpu 2 tid 20",
        "3 sighted #7 app::a",
        "3 start w0 #7 app::a",
        "4 sighted #8 app::a",
        "4 start w1 #8 app::a",
        "5 end w1",
        "6 park w1 cpu 3 tid 20",
        "7 unpark w1 cpu 4 tid 20",
        "8 end w0",
        "9 park w0 cpu 5 tid 20",
    ]);
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
        "8 blocked 7 #9 app::closure tid 20 as w0",
        "11 park w0 cpu 2 tid 22",
    ]);
    assert_eq!(bench.interpreter.runtimes()[0].workers, [0, 1]);
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
fn workers_are_of_the_runtime_whose_tasks_end_on_them() {
    let mut bench = Bench::new();
    let runtimes = |bench: &Bench| {
        let runtimes = bench.interpreter.runtimes();
        let of = |runtime: Runtime| (runtime.number, runtime.workers);
        runtimes.into_iter().map(of).collect::<Vec<_>>()
    };
    for (tid, task_id) in [(20, 1), (21, 2), (22, 3)] {
        bench.start(tid, 10, task_id, 50);
    }
    assert_eq!(runtimes(&bench), [(None, vec![0, 1, 2])]);
    bench.terminate_in(20, 11, 1, 7);
    // The others may be of the same one.
    assert_eq!(runtimes(&bench), [(None, vec![0, 1, 2])]);
    bench.terminate_in(21, 12, 2, 9);
    // Ended by a thread that does not poll it.
    bench.terminate_in(22, 13, 4, 9);
    // A `LocalSet` in the same thread.
    bench
        .end(20, 14, 50)
        .start(20, 15, 5, 50)
        .terminate_in(20, 16, 5, 8);
    let found = [(None, vec![2]), (Some(7), vec![0]), (Some(9), vec![1])];
    assert_eq!(runtimes(&bench), found);
}

/// The instruction after a park may be reached without one.
#[test]
fn a_worker_that_polls_has_not_been_parked() {
    let mut bench = Bench::new();
    bench.start(20, 1, 7, 50).end(20, 2, 50).unpark(20, 3, 1);
    bench.park(20, 4, 2).unpark(20, 5, 3).unpark(20, 6, 4);
    bench.expect(&[
        "1 sighted #7 app::a",
        "1 start w0 #7 app::a",
        "2 end w0",
        "4 park w0 cpu 2 tid 20",
        "5 unpark w0 cpu 3 tid 20",
    ]);
    assert_eq!(bench.stats().dropped_unpaired, 2);
}
