//! When a segment ends.
//!
//! In: an epoch's length, and both clocks at a segment's start. Out: the next
//! boundary on the monotonic clock. Never: a look at a clock.
//!
//! - Boundaries are multiples of the epoch on the wall clock (UTC), mapped to
//!   the monotonic one by the anchor at the segment's start.
//! - A segment starts at the boundary where the one before ended, so that on
//!   the monotonic axis there is neither a gap nor an overlap.
//! - A wall clock that is stepped does not move the boundary of the segment
//!   that it finds; the next segment's is on the new grid. Its start has the
//!   wall-clock time that an anchor read at the rotation gives to the boundary.
//! - Two anchors differ by what the clock was slewed between them: a start less
//!   than a thousandth of an epoch before the grid is taken for the grid, not
//!   for an epoch of a few microseconds. (Clocks are slewed by half of that at
//!   most.)

use std::time::Duration;

use crate::clock::Anchor;

const SECOND_NS: u64 = 1_000_000_000;
/// Part of an epoch by which a start may miss the grid.
const SLACK: u64 = 1000;

/// When segments end: with their epoch, or early when they are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    epoch_ns: u64,
    max_bytes: u64,
}

/// A length that is not an epoch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an epoch is whole seconds, not {epoch:?}")]
pub struct PolicyError {
    /// What was asked for.
    pub epoch: Duration,
}

impl Policy {
    /// Epochs of whole seconds, at least one; a segment is sealed early once it
    /// has `max_bytes`.
    ///
    /// # Errors
    ///
    /// [`PolicyError`] for any other epoch.
    pub fn new(epoch: Duration, max_bytes: u64) -> Result<Self, PolicyError> {
        let error = PolicyError { epoch };
        if epoch.as_secs() == 0 || epoch.subsec_nanos() != 0 {
            return Err(error);
        }
        let epoch_ns = epoch.as_secs().checked_mul(SECOND_NS).ok_or(error)?;
        Ok(Self {
            epoch_ns,
            max_bytes,
        })
    }

    /// One segment, unless it has `max_bytes`: its epoch is longer than any recording, 200
    /// years.
    pub fn without_epochs(max_bytes: u64) -> Self {
        const YEAR_S: u64 = 365 * 24 * 3600;
        Self {
            epoch_ns: 200 * YEAR_S * SECOND_NS,
            max_bytes,
        }
    }

    /// The end of the epoch in which a segment starts, `CLOCK_MONOTONIC` ns.
    pub fn boundary_ns(self, started: Anchor) -> u64 {
        let epoch_ns = self.epoch_ns;
        let mut rest_ns = epoch_ns - started.unix_ns % epoch_ns;
        if rest_ns <= epoch_ns / SLACK {
            rest_ns += epoch_ns;
        }
        started.mono_ns.saturating_add(rest_ns)
    }

    /// Whether a segment of this size is to be sealed early.
    pub fn is_large(self, bytes: u64) -> bool {
        bytes >= self.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy(seconds: u64) -> Policy {
        Policy::new(Duration::from_secs(seconds), 1 << 20).unwrap()
    }

    #[test]
    fn an_epoch_is_whole_seconds() {
        for wrong in [0, 999, 1001, 1500] {
            let error = Policy::new(Duration::from_millis(wrong), 0).unwrap_err();
            assert!(error.to_string().contains("whole seconds"), "{error}");
        }
        assert!(Policy::new(Duration::MAX, 0).is_err());
        assert!(policy(1).is_large(1 << 20));
        assert!(!policy(1).is_large((1 << 20) - 1));
    }

    #[test]
    fn the_first_segment_ends_at_the_next_full_minute() {
        let started = Anchor {
            mono_ns: 77,
            unix_ns: 1_800_000_000 * SECOND_NS + 59 * SECOND_NS,
        };
        assert_eq!(policy(60).boundary_ns(started), 77 + SECOND_NS);
        // A slew of 3 µs since the anchor before does not make an epoch of 3 µs.
        let early = Anchor {
            mono_ns: 77,
            unix_ns: 1_800_000_000 * SECOND_NS - 3000,
        };
        assert_eq!(policy(60).boundary_ns(early), 77 + 60 * SECOND_NS + 3000);
    }

    proptest! {
        /// Any steps and slews of the wall clock: segments follow each other, are
        /// at most an epoch and a thousandth long, and each ends on the grid that
        /// was in force at its start.
        #[test]
        fn segments_follow_each_other_on_the_grid(
            seconds in 1..4000_u64,
            start in 0..u64::from(u32::MAX),
            unix in (u64::from(u32::MAX) * 1000)..(1 << 61),
            steps in proptest::collection::vec(-(1_i64 << 46)..(1 << 46), 1..50),
        ) {
            let policy = policy(seconds);
            let epoch_ns = seconds * SECOND_NS;
            let mut started = Anchor { mono_ns: start, unix_ns: unix };
            for step in steps {
                let boundary_ns = policy.boundary_ns(started);
                let length_ns = boundary_ns - started.mono_ns;
                prop_assert!(length_ns > epoch_ns / SLACK);
                prop_assert!(length_ns <= epoch_ns + epoch_ns / SLACK);
                prop_assert_eq!(started.at(boundary_ns).unix_ns % epoch_ns, 0);
                let now = started.at(boundary_ns + 5_000_000);
                let stepped = Anchor {
                    unix_ns: now.unix_ns.saturating_add_signed(step),
                    ..now
                };
                started = stepped.at(boundary_ns);
            }
        }
    }
}
