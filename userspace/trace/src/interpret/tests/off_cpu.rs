//! Intervals off the CPU: reason, waker, wait, and the waits of parks.

use dial9_bpf_abi::record::{FLAG_UNTOLD, FLAG_WAKER, FLAG_WOKEN_BY_INTERRUPT, OffCpu};

use super::*;

const BLOCKED: u32 = 1;
const FREEZABLE: u32 = 0x2000;

impl Bench {
    fn off(&mut self, tid: u32, [off, wake, on]: [u64; 3], state: u32, flags: u16) -> &mut Self {
        let mut header = header(RecordKind::OFF_CPU, tid, on);
        header.flags = flags;
        self.feed(Record::OffCpu(OffCpu {
            header,
            off_ns: off,
            wake_ns: wake,
            state,
            waker: 9,
        }))
    }
}

#[test]
fn an_interval_tells_why_and_what_it_interrupts() {
    Bench::new()
        .off(7, [100, 150, 160], BLOCKED | FREEZABLE, FLAG_WAKER)
        .start(7, 200, 1, 500)
        .off(7, [210, 0, 230], 0, 0)
        .off(7, [240, 250, 260], 2, FLAG_WOKEN_BY_INTERRUPT)
        .off(7, [270, 0, 280], 0x104, 0)
        .end(7, 300, 500)
        .off(7, [310, 305, 320], BLOCKED, 0)
        .expect(&[
            "160 off 60 tid 7 #0 Blocked wait Some(10) by Some(Thread(9))",
            "200 sighted #1 app::a",
            "200 start w0 #1 app::a",
            "230 off 20 tid 7 w0 #1 Preempted wait Some(20) by None",
            "260 off 20 tid 7 w0 #1 Uninterruptible wait Some(10) by Some(Interrupt)",
            "280 off 10 tid 7 w0 #1 Stopped wait None by None",
            "300 end w0",
            "320 off 10 tid 7 w0 #0 Blocked wait Some(10) by None",
        ]);
}

#[test]
fn an_unpark_has_the_waits_since_the_park() {
    let mut bench = Bench::new();
    bench.interpreter.tell_waits(true);
    bench
        .park(7, 100, 1)
        .off(7, [110, 150, 160], BLOCKED, FLAG_WAKER)
        .off(7, [170, 0, 175], 0, 0)
        .unpark(7, 180, 2)
        .park(7, 190, 3)
        .unpark(7, 200, 4)
        .park(7, 210, 5)
        .off(7, [220, 0, 230], BLOCKED, 0)
        .unpark(7, 240, 6)
        .park(7, 250, 7)
        .gap(7, 260, 1)
        .unpark(7, 270, 8);
    let waits: Vec<&str> = bench
        .lines
        .iter()
        .filter(|line| line.contains("unpark"))
        .map(|line| line.split("tid 7").nth(1).unwrap())
        .collect();
    assert_eq!(waits, [" waited 15", " waited 0", "", ""]);
}

#[test]
fn no_wait_is_told_where_wakes_are_not_seen() {
    Bench::new()
        .park(7, 100, 1)
        .unpark(7, 200, 2)
        .expect(&["100 park w0 cpu 1 tid 7", "200 unpark w0 cpu 2 tid 7"]);
}

#[test]
fn an_interval_that_was_not_told_whole_is_counted_and_no_event() {
    let mut bench = Bench::new();
    bench.interpreter.tell_waits(true);
    bench
        .park(7, 100, 1)
        .off(7, [110, 150, 160], BLOCKED, FLAG_WAKER)
        .off(7, [0, 0, 170], 0, FLAG_UNTOLD)
        .unpark(7, 180, 2)
        .expect(&[
            "100 park w0 cpu 1 tid 7",
            "160 off 50 tid 7 w0 #0 Blocked wait Some(10) by Some(Thread(9))",
            "180 unpark w0 cpu 2 tid 7",
        ]);
    assert_eq!(bench.interpreter.stats().untold_absences, 1);
}
