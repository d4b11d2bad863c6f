//! A limit on bytes a second.
//!
//! In: sizes and the time. Out: how long to wait. Never: a clock, a sleep.
//!
//! An object is sent as a whole, at the speed of the line; the limit holds for
//! the mean: each object is due when those before it have had their time.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

const NS_PER_S: u128 = 1_000_000_000;

/// Keeps a mean.
#[derive(Debug)]
pub struct Rate {
    bytes_per_s: NonZeroU64,
    /// When what was sent so far has had its time.
    free_at: Option<Instant>,
}

impl Rate {
    /// At most so many bytes a second in the mean.
    pub fn new(bytes_per_s: NonZeroU64) -> Self {
        Self {
            bytes_per_s,
            free_at: None,
        }
    }

    /// Takes the time that so many bytes need; returns how long to wait before
    /// they may be sent. Time that nothing used is not saved up.
    pub fn reserve(&mut self, bytes: u64, now: Instant) -> Duration {
        let starts_at = self.free_at.map_or(now, |free_at| free_at.max(now));
        let needed_ns = u128::from(bytes) * NS_PER_S / u128::from(self.bytes_per_s.get());
        let needed = Duration::from_nanos(u64::try_from(needed_ns).unwrap_or(u64::MAX));
        self.free_at = starts_at.checked_add(needed).or(Some(starts_at));
        starts_at - now
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(bytes_per_s: u64) -> Rate {
        Rate::new(NonZeroU64::new(bytes_per_s).unwrap())
    }

    #[test]
    fn the_next_waits_for_those_before() {
        let now = Instant::now();
        let mut rate = rate(1000);
        assert_eq!(rate.reserve(5000, now), Duration::ZERO);
        assert_eq!(rate.reserve(1, now), Duration::from_secs(5));
        let later = now + Duration::from_secs(4);
        assert_eq!(rate.reserve(1, later), Duration::from_millis(1001));
    }

    #[test]
    fn idle_time_is_not_saved() {
        let now = Instant::now();
        let mut rate = rate(1000);
        rate.reserve(1000, now);
        let later = now + Duration::from_secs(100);
        assert_eq!(rate.reserve(2000, later), Duration::ZERO);
        assert_eq!(rate.reserve(1, later), Duration::from_secs(2));
    }

    #[test]
    fn a_size_without_bound_is_no_panic() {
        let now = Instant::now();
        let mut rate = rate(1);
        rate.reserve(u64::MAX, now);
        rate.reserve(u64::MAX, now);
    }

    proptest! {
        #[test]
        fn the_mean_holds(
            bytes_per_s in 1u64..1_000_000,
            steps in prop::collection::vec((0u64..1_000_000, 0u64..2000), 1..40),
        ) {
            let start = Instant::now();
            let (mut now, mut sent) = (start, 0_u64);
            let mut rate = rate(bytes_per_s);
            for (bytes, idle_ms) in steps {
                now += Duration::from_millis(idle_ms);
                now += rate.reserve(bytes, now);
                // What was sent before this one.
                let due_us = u128::from(sent * 1_000_000 / bytes_per_s);
                prop_assert!((now - start).as_micros() + 1 >= due_us);
                sent += bytes;
            }
        }
    }
}
