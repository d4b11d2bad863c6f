//! Waiting for a condition, not for a time.
//!
//! In: a condition. Out: its value. Never: an endless wait.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Long enough for anything here on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(1);

/// Asks until `condition` has a value.
///
/// # Panics
///
/// After [`LIMIT`], with `what` was awaited.
pub fn until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    try_until(LIMIT, condition).unwrap_or_else(|| panic!("{what}: not within {LIMIT:?}"))
}

/// Asks until `condition` has a value, for as long as `limit`.
pub fn try_until<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let value = condition();
        if value.is_some() || begin.elapsed() > limit {
            return value;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
