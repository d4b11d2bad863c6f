//! What is said of a task: its announcement, its wakes, its end.

use super::*;

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
