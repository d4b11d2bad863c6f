use super::*;

const NUMBER: u64 = 3;
/// Where the number is, bytes.
const AT: usize = 1024;
/// The same, from the number to the begin.
const BEGIN: i32 = -1024;
const ADDRESS: u64 = 0x7f00_1234_5600;

/// A scheduler with this layout among other words: 2 workers, 5 tasks alive, 4 in the
/// global queue.
fn scheduler(layout: &Layout) -> Vec<u8> {
    let mut bytes = vec![0x13; 2048];
    put(&mut bytes, layout.closed, 0);
    put(&mut bytes, layout.queue.is_closed, 0);
    put(&mut bytes, BEGIN, 1);
    put(&mut bytes, BEGIN + 8, 1);
    put(&mut bytes, 0, NUMBER);
    put(&mut bytes, layout.count, 5);
    match layout.tasks {
        Tasks::List { head, tail } => {
            put(&mut bytes, head, ADDRESS);
            put(&mut bytes, tail, ADDRESS + 128);
        }
        Tasks::Sharded { lists, mask } => {
            put(&mut bytes, lists - 8, ADDRESS);
            put(&mut bytes, lists, 8);
            put(&mut bytes, mask, 7);
        }
    }
    if let Some(workers) = layout.workers {
        put(&mut bytes, workers[0] - 8, ADDRESS);
        for at in workers {
            put(&mut bytes, at, 2);
        }
    }
    put(&mut bytes, layout.queue.len, 4);
    put(&mut bytes, layout.queue.head, ADDRESS);
    put(&mut bytes, layout.queue.tail, ADDRESS + 128);
    bytes
}

fn put(bytes: &mut [u8], offset: i32, word: u64) {
    let at = AT.checked_add_signed(offset as isize).expect("in it");
    bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
}

#[test]
fn each_is_found_and_tells_its_counters() {
    for layout in &LAYOUTS {
        let bytes = scheduler(layout);
        let minor = layout.minors.end();
        let known = of_version(Some(&format!("1.{minor}.0"))).expect("in the table");
        let (at, found) = find(&bytes, NUMBER, &known).unwrap_or_else(|| panic!("{layout:?}"));
        assert_eq!(at, AT);
        assert!(std::ptr::eq(found, layout), "{layout:?} {found:?}");
        let words = Words::new(&bytes, AT);
        assert_eq!(found.counters(words), Some((4, 5)));
        assert!(!found.is_closed(words));
        let window = found.window();
        assert!(window.len() <= WINDOW_BYTES, "{window:?}");
        let from = AT.checked_add_signed(window.start as isize).expect("in it");
        let part = &bytes[from..from + window.len()];
        let words = Words::new(part, AT - from);
        assert_eq!(found.counters(words), Some((4, 5)));
        assert!(found.constants(words).is_some());
    }
}

#[test]
fn a_word_that_cannot_be_there_is_refused() {
    for layout in &LAYOUTS {
        let known = [layout];
        for offset in layout.offsets().filter(|&offset| offset != layout.count) {
            for wrong in [NUMBER << 40 | 0x13, u64::MAX] {
                let mut bytes = scheduler(layout);
                put(&mut bytes, offset, wrong);
                let found = find(&bytes, NUMBER, &known);
                assert!(
                    found.is_none() || offset == 0,
                    "{layout:?} with {wrong:#x} at {offset}"
                );
            }
        }
        assert!(find(&scheduler(layout), NUMBER + 1, &known).is_none());
        let mut freed = scheduler(layout);
        put(&mut freed, BEGIN, 0);
        assert!(find(&freed, NUMBER, &known).is_none());
        assert!(find(&scheduler(layout)[..AT + 8], NUMBER, &known).is_none());
    }
}

#[test]
fn an_empty_queue_has_no_first_task() {
    for layout in &LAYOUTS {
        let mut bytes = scheduler(layout);
        put(&mut bytes, layout.queue.len, 0);
        assert_eq!(layout.counters(Words::new(&bytes, AT)), None);
        put(&mut bytes, layout.queue.head, 0);
        put(&mut bytes, layout.queue.tail, 0);
        assert_eq!(layout.counters(Words::new(&bytes, AT)), Some((0, 5)));
    }
}

#[test]
fn a_version_outside_the_table_has_no_layout() {
    for version in [
        None,
        Some("1.29.1"),
        Some("1.55.0"),
        Some("2.30.0"),
        Some("x"),
    ] {
        assert!(of_version(version).is_err(), "{version:?}");
    }
    for minor in 30..=54 {
        let known = of_version(Some(&format!("1.{minor}.9"))).expect("in the table");
        let of_workers = known.iter().any(|layout| layout.workers.is_some());
        let of_one_thread = known.iter().any(|layout| layout.workers.is_none());
        assert_eq!(
            (of_workers, of_one_thread),
            (true, minor >= 35),
            "1.{minor}"
        );
    }
}
