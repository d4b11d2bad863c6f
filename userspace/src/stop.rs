//! The signals that end a recording.
//!
//! In: SIGINT, SIGTERM, SIGQUIT and SIGHUP. Out: a flag. Never: an end without a
//! sealed segment; an end by a closed terminal where nohup asked for none.

use std::{
    fs, io,
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ},
    flag,
};

/// Set by each of the signals.
///
/// # Errors
/// The system's.
pub(crate) fn flag() -> io::Result<Arc<AtomicBool>> {
    let stop = set_by(&[SIGINT, SIGTERM, SIGQUIT])?;
    if !is_ignored(&fs::read_to_string("/proc/self/status")?, SIGHUP) {
        flag::register(SIGHUP, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Set by those that the keyboard sends to all processes in the foreground.
///
/// # Errors
/// The system's.
pub(crate) fn keyboard() -> io::Result<Arc<AtomicBool>> {
    set_by(&[SIGINT, SIGQUIT])
}

/// A file that reaches its size limit is an error of its write, not a signal that ends
/// us.
fn set_by(signals: &[i32]) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    flag::register(SIGXFSZ, Arc::default())?;
    for signal in signals {
        flag::register(*signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Whether whoever started us had the signal ignored, by a /proc/PID/status.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_seen() {
        let status = "SigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP));
        assert!(!is_ignored(status, SIGINT));
        assert!(!is_ignored("SigIgn:\t0000000000001002\n", SIGHUP));
        assert!(!is_ignored("", SIGHUP));
    }
}
