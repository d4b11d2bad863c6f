//! The two clocks.
//!
//! In: nothing. Out: one instant on both clocks. Never: wall-clock time
//! anywhere else; everything in a trace is `CLOCK_MONOTONIC`.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// One instant on the monotonic clock and on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// `CLOCK_MONOTONIC`, ns.
    pub mono_ns: u64,
    /// `CLOCK_REALTIME`, ns since 1970.
    pub unix_ns: u64,
}

/// Attempts at reading both clocks without an interruption between.
const ATTEMPTS: usize = 5;

impl Anchor {
    /// Reads both clocks: the wall clock between two readings of the monotonic
    /// one, the closest of a few attempts.
    pub fn read() -> Self {
        let attempt = |_| {
            let before_ns = monotonic_ns();
            let unix_ns = to_ns(clock_gettime(ClockId::Realtime));
            let width_ns = monotonic_ns() - before_ns;
            (
                width_ns,
                Self {
                    mono_ns: before_ns + width_ns / 2,
                    unix_ns,
                },
            )
        };
        let first = attempt(0);
        let best =
            (1..ATTEMPTS).map(attempt).fold(
                first,
                |best, next| {
                    if next.0 < best.0 { next } else { best }
                },
            );
        best.1
    }
}

impl Anchor {
    /// The instant `mono_ns`, as far from this one on the wall clock as on the
    /// monotonic one.
    #[must_use]
    pub fn at(self, mono_ns: u64) -> Self {
        let unix_ns = if mono_ns >= self.mono_ns {
            self.unix_ns.saturating_add(mono_ns - self.mono_ns)
        } else {
            self.unix_ns.saturating_sub(self.mono_ns - mono_ns)
        };
        Self { mono_ns, unix_ns }
    }
}

/// `CLOCK_MONOTONIC`, ns: the clock of the records.
pub fn monotonic_ns() -> u64 {
    to_ns(clock_gettime(ClockId::Monotonic))
}

fn to_ns(time: Timespec) -> u64 {
    // Neither clock is negative on a machine that boots after 1970.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_agree_on_the_offset() {
        let (a, b) = (Anchor::read(), Anchor::read());
        assert!(b.mono_ns >= a.mono_ns);
        let drift = (b.unix_ns - b.mono_ns).abs_diff(a.unix_ns - a.mono_ns);
        assert!(drift < 50_000_000, "{drift} ns apart");
    }
}
