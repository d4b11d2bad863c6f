//! Waiting until the program is at rest.
//!
//! In: `/proc/self/task`. Out: the knowledge that no other thread runs. Never:
//! a guess from the clock.
//!
//! `matrix/counted.rs` includes this file and `script.rs`, and is compiled by Rust 1.63.

use std::{fs, io, process, thread, time::Duration};

const SAMPLES: u32 = 12;
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// Returns when every other thread of this process has been asleep in several
/// samples running: then no task is being polled, and all that were polled are
/// idle again, as the worker goes to sleep only after that. The caller sees to
/// it that no timer is about to expire.
///
/// # Panics
///
/// When a minute was not enough.
pub fn wait_until_idle() {
    let mut asleep = 0;
    for _ in 0..LIMIT.as_millis() / PAUSE.as_millis() {
        asleep = if others_sleep().unwrap_or(false) {
            asleep + 1
        } else {
            0
        };
        if asleep == SAMPLES {
            return;
        }
        thread::sleep(PAUSE);
    }
    panic!("the program did not come to rest");
}

fn others_sleep() -> io::Result<bool> {
    let main = process::id().to_string();
    for thread in fs::read_dir("/proc/self/task")? {
        let thread = thread?;
        if thread.file_name().to_str() == Some(&main) {
            continue;
        }
        let stat = fs::read_to_string(thread.path().join("stat"))?;
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        if state != Some('S') {
            return Ok(false);
        }
    }
    Ok(true)
}
