//! What is said of panics and of the target's end.

use dial9_bpf_abi::record::{Exit, Panic, Signal, Text};
use dial9_bpf_abi::text::{End, MAX_PIECES, PIECE_BYTES, Piece};

use super::*;
use crate::event::{PanicPlace, Panicked, TargetEnd};
use crate::texts::TextId;

const FILE: bool = false;
const MESSAGE: bool = true;

/// What is absent is left out.
pub(super) fn panic_line(panicked: &Panicked, locations: &Locations) -> String {
    let Panicked {
        ts_ns,
        tid,
        task_id,
        worker,
        at,
        message,
        is_message_cut,
    } = *panicked;
    let worker = worker.map_or(String::new(), |worker| format!(" w{worker}"));
    let cut = if is_message_cut { "…" } else { "" };
    let said = said(at, message, locations);
    format!("{ts_ns} panic tid {tid} #{task_id}{worker}{said}{cut}")
}

pub(super) fn end_line(end: &TargetEnd, locations: &Locations) -> String {
    let address = end
        .fault_address
        .map_or(String::new(), |at| format!(" at {at:#x}"));
    let said = end
        .panic
        .map_or(String::new(), |(at, message)| said(at, message, locations));
    format!("{} ended: {end}{address}{said}", end.ts_ns)
}

fn said(at: PanicPlace, message: Option<TextId>, locations: &Locations) -> String {
    let file = at.file.map(|file| format!(" {}", locations.text(file)));
    let place = (at.line > 0).then(|| format!(" {}:{}", at.line, at.column));
    let message = message.map(|message| format!(" {:?}", locations.text(message)));
    [file, place, message].into_iter().flatten().collect()
}

impl Bench {
    fn panic(&mut self, tid: u32, ts: u64, file: &str) -> &mut Self {
        self.feed(Record::Panic(Panic {
            header: header(RecordKind::PANIC, tid, ts),
            line: 7,
            column: 9,
        }));
        self.text(tid, ts, FILE, file.as_bytes())
    }

    fn message(&mut self, tid: u32, ts: u64, message: &str) -> &mut Self {
        self.text(tid, ts, MESSAGE, message.as_bytes())
    }

    /// The pieces, as the kernel's program makes them.
    fn text(&mut self, tid: u32, ts: u64, is_message: bool, text: &[u8]) -> &mut Self {
        for record in pieces(tid, ts, is_message, text) {
            self.feed(record);
        }
        self
    }

    fn signal(&mut self, tid: u32, ts: u64, number: u32, code: i32) -> &mut Self {
        self.feed(Record::Signal(Signal {
            header: header(RecordKind::SIGNAL, tid, ts),
            number,
            code,
            address: 0x1234,
        }))
    }

    fn exit(&mut self, tid: u32, ts: u64, status: u64) -> &mut Self {
        let header = header(RecordKind::EXIT, tid, ts);
        self.feed(Record::Exit(Exit { header, status }))
    }
}

fn pieces(tid: u32, ts: u64, is_message: bool, text: &[u8]) -> Vec<Record> {
    let count = text.len().div_ceil(PIECE_BYTES).max(1);
    (0..count.min(MAX_PIECES))
        .map(|index| {
            let here = &text[index * PIECE_BYTES..];
            let here = &here[..here.len().min(PIECE_BYTES)];
            let end = match (index + 1 == count, index + 1 == MAX_PIECES) {
                (true, _) => End::Whole,
                (false, true) => End::Cut,
                (false, false) => End::Open,
            };
            piece(tid, ts, is_message, end, index, here)
        })
        .collect()
}

fn piece(tid: u32, ts: u64, is_message: bool, end: End, index: usize, here: &[u8]) -> Record {
    let flags = Piece {
        bytes: u8::try_from(here.len()).unwrap(),
        is_message,
        end,
        index: u8::try_from(index).unwrap(),
    };
    let mut bytes = [0; PIECE_BYTES];
    bytes[..here.len()].copy_from_slice(here);
    Record::Text(Text {
        header: RecordHeader {
            flags: flags.pack(),
            ..header(RecordKind::TEXT, tid, ts)
        },
        bytes,
    })
}

#[test]
fn a_panic_in_a_task_is_one_event() {
    let file = "/home/user/a long way down/src/main.rs";
    let message = "index out of bounds: the len is 3 but the index is 99";
    Bench::new()
        .start(1, 10, 5, 100)
        .panic(1, 20, file)
        .expect(&["10 sighted #5 app::a", "10 start w0 #5 app::a"])
        .message(1, 30, message)
        .expect(&[&format!("20 panic tid 1 #5 w0 {file} 7:9 {message:?}")])
        .terminate(1, 40, 5)
        .end(1, 50, 100)
        .expect(&["40 over #5", "50 end w0"]);
}

#[test]
fn a_closure_of_the_blocking_pool_panics_without_a_worker() {
    Bench::new()
        .start_of_type(1, 10, 5, 100, CLOSURE)
        .panic(1, 20, "a.rs")
        .message(1, 20, "")
        .expect(&["20 panic tid 1 #5 a.rs 7:9 \"\""]);
}

#[test]
fn texts_of_several_threads_do_not_mix() {
    let mut bench = Bench::new();
    let one = pieces(1, 10, MESSAGE, &[b'a'; 60]);
    let other = pieces(2, 10, MESSAGE, &[b'b'; 60]);
    for record in one.into_iter().zip(other).flat_map(|(a, b)| [a, b]) {
        bench.feed(record);
    }
    let [a, b] = ["a", "b"].map(|letter| letter.repeat(60));
    bench.expect(&[
        &format!("10 panic tid 1 #0 {a:?}"),
        &format!("10 panic tid 2 #0 {b:?}"),
    ]);
}

#[test]
fn a_resumed_panic_has_no_place() {
    Bench::new()
        .panic(1, 10, "a.rs")
        .message(1, 11, "first")
        .message(1, 12, "first")
        .expect(&[
            "10 panic tid 1 #0 a.rs 7:9 \"first\"",
            "12 panic tid 1 #0 \"first\"",
        ]);
}

#[test]
fn a_payload_that_is_no_text_is_absent() {
    let mut bench = Bench::new();
    bench.panic(1, 10, "a.rs");
    bench.feed(piece(1, 11, MESSAGE, End::NoText, 0, b""));
    bench.expect(&["10 panic tid 1 #0 a.rs 7:9"]);
    assert_eq!(bench.stats().unreadable_texts, 0);
}

#[test]
fn a_panic_without_a_message_waits_no_longer_than_its_poll() {
    Bench::new()
        .start(1, 1, 5, 100)
        .start(2, 1, 6, 100)
        .panic(1, 10, "a.rs")
        .panic(2, 10, "b.rs")
        .panic(3, 10, "c.rs")
        .expect(&[
            "1 sighted #5 app::a",
            "1 start w0 #5 app::a",
            "1 sighted #6 app::a",
            "1 start w1 #6 app::a",
        ])
        .end(1, 20, 100)
        .expect(&["10 panic tid 1 #5 w0 a.rs 7:9", "20 end w0"])
        .gap(2, 30, 3)
        .expect(&["10 panic tid 2 #6 w1 b.rs 7:9", "30 end w1"])
        .panic(3, 40, "d.rs")
        .expect(&["10 panic tid 3 #0 c.rs 7:9"])
        .exit(3, 50, 101 << 8)
        .expect(&["40 panic tid 3 #0 d.rs 7:9", "50 ended: exit code 101"]);
}

#[test]
fn what_waits_is_said_at_the_end_of_the_recording() {
    let mut bench = Bench::new();
    bench.panic(2, 10, "a.rs").panic(1, 10, "b.rs");
    let mut events = Vec::new();
    let Bench { interpreter, .. } = &mut bench;
    interpreter.finish(99, &[], &mut |event, _| events.push(*event));
    bench
        .note(&events)
        .expect(&["10 panic tid 1 #0 b.rs 7:9", "10 panic tid 2 #0 a.rs 7:9"]);
}

#[test]
fn a_missing_piece_takes_the_text_with_it() {
    let mut bench = Bench::new();
    for at in 0..3 {
        let mut records = pieces(1, at, MESSAGE, &[b'a'; 60]);
        records.remove(usize::try_from(at).unwrap());
        for record in records {
            bench.feed(record);
        }
    }
    bench.exit(1, 9, 0).expect(&[
        "1 panic tid 1 #0",
        "2 panic tid 1 #0",
        "9 ended: exit code 0",
    ]);
    assert_eq!(bench.stats().stray_pieces, 3);
}

#[test]
fn bytes_that_are_no_utf8_are_absent_but_a_cut_letter_is_cut() {
    let long = "é".repeat(300);
    let cut = "é".repeat(252);
    let odd = format!("a{long}");
    let odd_cut = format!("a{}", "é".repeat(251));
    let mut bench = Bench::new();
    bench
        .text(1, 10, MESSAGE, b"\xff\xfe")
        .text(1, 11, MESSAGE, b"caf\xc3")
        .text(1, 12, MESSAGE, b"a\0b\x1b[2J")
        .message(1, 13, &long)
        .message(1, 14, &odd)
        .expect(&[
            "10 panic tid 1 #0",
            "11 panic tid 1 #0",
            "12 panic tid 1 #0 \"a\\0b\\u{1b}[2J\"",
            &format!("13 panic tid 1 #0 {cut:?}…"),
            &format!("14 panic tid 1 #0 {odd_cut:?}…"),
        ]);
    assert_eq!(bench.stats().unreadable_texts, 2);
    bench
        .panic(1, 20, &long)
        .message(1, 21, "m")
        .expect(&["20 panic tid 1 #0 7:9 \"m\""]);
}

#[test]
fn a_fault_ends_the_target() {
    Bench::new()
        .signal(3, 10, 11, 1)
        .signal(4, 11, 11, 1)
        .exit(1, 20, 0x8b)
        .exit(2, 20, 0x8b)
        .expect(&["20 ended: signal 11 (SIGSEGV), thread 3 at 0x1234"]);
}

#[test]
fn only_a_fault_has_an_address() {
    // A general protection, a kill, an abort.
    for (number, code) in [(11, 0x80), (11, 0), (6, -6), (6, 1)] {
        Bench::new()
            .signal(3, 10, number, code)
            .exit(3, 20, number.into())
            .expect(&[&format!(
                "20 ended: signal {number} ({}), thread 3",
                if number == 6 { "SIGABRT" } else { "SIGSEGV" }
            )]);
    }
}

#[test]
fn the_thread_is_that_of_the_signal_that_ended_it() {
    Bench::new()
        .signal(3, 10, 11, 1)
        .exit(1, 20, 15)
        .expect(&["20 ended: signal 15 (SIGTERM)"]);
    Bench::new()
        .signal(3, 10, 34, 0)
        .signal(4, 10, 300, 0)
        .exit(1, 20, 34)
        .expect(&["20 ended: signal 34, thread 3"]);
}

#[test]
fn an_abort_names_the_panic_that_it_came_from() {
    Bench::new()
        .panic(3, 10, "a.rs")
        .signal(3, 20, 6, -6)
        .expect(&["10 panic tid 3 #0 a.rs 7:9"])
        .exit(1, 30, 6)
        .expect(&["30 ended: signal 6 (SIGABRT), thread 3 a.rs 7:9"]);
}

#[test]
fn a_panic_that_was_got_over_did_not_end_the_target() {
    Bench::new()
        .start(3, 1, 5, 100)
        .panic(3, 10, "a.rs")
        .message(3, 11, "m")
        .end(3, 12, 100)
        .signal(3, 20, 6, -6)
        .exit(1, 30, 6)
        .expect(&[
            "1 sighted #5 app::a",
            "1 start w0 #5 app::a",
            "10 panic tid 3 #5 w0 a.rs 7:9 \"m\"",
            "12 end w0",
            "30 ended: signal 6 (SIGABRT), thread 3",
        ]);
}

#[test]
fn panicking_threads_are_bounded() {
    let mut bench = Bench::new();
    for tid in 0..3000 {
        bench.panic(tid, 10, "a.rs");
    }
    assert_eq!(bench.lines.len(), 2048);
    bench.lines.clear();
    bench.exit(1, 20, 0);
    assert_eq!(bench.lines.len(), 3000 - 2048 + 1);
}

proptest::proptest! {
    #[test]
    fn any_flags_and_bytes_are_taken(
        records in proptest::collection::vec((0..3u32, 0..3u64, 0..0x400u16, 0..5u8), 0..100)
    ) {
        let mut bench = Bench::new();
        for (tid, ts_ns, flags, byte) in records {
            let header = RecordHeader { flags, ..header(RecordKind::TEXT, tid, ts_ns) };
            let bytes = [byte.wrapping_mul(60); PIECE_BYTES];
            bench.feed(Record::Text(Text { header, bytes }));
        }
    }
}
