//! When to try again.
//!
//! In: the outcome of each put and the time. Out: how many puts may run, and
//! when the next one may. Never: a clock, a sleep, a random number of its own.
//!
//! What fails is nearly always the destination, so that the state is one for
//! all segments:
//!
//! - open: up to the limit at once;
//! - closed after a passing failure: nothing until the backoff is over, then one
//!   at a time until one succeeds;
//! - degraded after a refusal: nothing for long, or until the credentials are
//!   others, then one at a time.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

/// Bounds of the waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first delay, before jitter.
    pub first: Duration,
    /// The longest delay, jitter included.
    pub longest: Duration,
    /// Delay after a refusal.
    pub refused: Duration,
    /// Where the jitter comes from.
    pub seed: u64,
}

impl RetryPolicy {
    /// One second, doubling, up to five minutes; five minutes after a refusal.
    pub fn seeded(seed: u64) -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_mins(5),
            refused: Duration::from_mins(5),
            seed,
        }
    }

    /// The delays of one outage: each of `[d, 2d)`, `d` doubling.
    pub fn delays(self) -> ExponentialBackoff {
        ExponentialBuilder::new()
            .with_min_delay(self.first.min(self.longest / 2))
            .with_max_delay(self.longest / 2)
            .without_max_times()
            .with_jitter()
            .with_jitter_seed(self.seed)
            .build()
    }
}

/// How a put ended, as far as the next ones are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It succeeded.
    Done,
    /// It may succeed later as it is.
    Passing,
    /// The destination refuses whatever is put.
    Refused,
    /// The destination refuses this one object.
    Rejected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Closed { until: Instant },
    Degraded { until: Instant },
}

/// Whether puts may run.
#[derive(Debug)]
pub struct Gate {
    policy: RetryPolicy,
    delays: ExponentialBackoff,
    state: State,
}

impl Gate {
    /// An open one.
    pub fn new(policy: RetryPolicy) -> Self {
        Self {
            policy,
            delays: policy.delays(),
            state: State::Open,
        }
    }

    /// How many puts may run now, of at most `limit`.
    pub fn width(&self, limit: usize, now: Instant) -> usize {
        match self.state {
            State::Open => limit,
            State::Closed { until } | State::Degraded { until } => usize::from(until <= now),
        }
    }

    /// When [`width`](Self::width) may change by time alone.
    pub fn opens_at(&self) -> Option<Instant> {
        match self.state {
            State::Open => None,
            State::Closed { until } | State::Degraded { until } => Some(until),
        }
    }

    /// Whether the destination refused the last put that told.
    pub fn is_degraded(&self) -> bool {
        matches!(self.state, State::Degraded { .. })
    }

    /// Takes the outcome of a put.
    pub fn settle(&mut self, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Done => {
                self.delays = self.policy.delays();
                self.state = State::Open;
            }
            // The destination works.
            Verdict::Rejected => self.state = State::Open,
            // Of a put that ran beside the one that closed it.
            Verdict::Passing if self.opens_at().is_some_and(|at| at > now) => {}
            Verdict::Passing => {
                let delay = self.delays.next().unwrap_or(self.policy.longest);
                let until = now + delay.min(self.policy.longest);
                self.state = match self.state {
                    // A refusal that cannot even be repeated is still one.
                    State::Degraded { .. } => State::Degraded { until },
                    State::Open | State::Closed { .. } => State::Closed { until },
                };
            }
            Verdict::Refused => {
                let until = now + self.policy.refused;
                self.state = State::Degraded { until };
            }
        }
    }

    /// Lets the next put run now: the reason for waiting is gone, or there will
    /// be no later.
    pub fn try_now(&mut self, now: Instant) {
        match &mut self.state {
            State::Open => {}
            State::Closed { until } | State::Degraded { until } => *until = now.min(*until),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(seed: u64) -> RetryPolicy {
        RetryPolicy {
            first: Duration::from_secs(1),
            longest: Duration::from_mins(1),
            refused: Duration::from_mins(5),
            seed,
        }
    }

    proptest! {
        #[test]
        fn delays_double_within_their_jitter_and_stay_capped(seed in any::<u64>()) {
            let mut base_s = 1.0;
            for delay in policy(seed).delays().take(40) {
                let delay_s = delay.as_secs_f64();
                prop_assert!(delay_s >= base_s - 1e-3, "{delay_s} < {base_s}");
                prop_assert!(delay_s <= 2.0 * base_s + 1e-3, "{delay_s} > 2 * {base_s}");
                base_s = f64::min(2.0 * base_s, 30.0);
            }
        }
    }

    #[test]
    fn seeds_tell_the_jitter() {
        let delays = |seed| policy(seed).delays().take(5).collect::<Vec<_>>();
        assert_eq!(delays(1), delays(1));
        assert_ne!(delays(1), delays(2));
    }

    #[test]
    fn a_passing_failure_lets_one_through_after_its_delay() {
        let now = Instant::now();
        let mut gate = Gate::new(policy(0));
        assert_eq!((gate.width(4, now), gate.opens_at()), (4, None));
        gate.settle(Verdict::Passing, now);
        assert_eq!(gate.width(4, now), 0);
        let opens_at = gate.opens_at().unwrap();
        gate.settle(Verdict::Passing, now);
        assert_eq!(gate.opens_at(), Some(opens_at), "one outage, one delay");
        assert_eq!(gate.width(4, opens_at), 1);
        gate.settle(Verdict::Passing, opens_at);
        let waited = gate.opens_at().unwrap() - opens_at;
        assert!(waited >= Duration::from_secs(2), "{waited:?}");
        gate.settle(Verdict::Done, opens_at);
        assert_eq!(gate.width(4, opens_at), 4);
        gate.settle(Verdict::Passing, opens_at);
        let waited = gate.opens_at().unwrap() - opens_at;
        assert!(waited < Duration::from_secs(2), "{waited:?}");
    }

    #[test]
    fn a_refusal_lasts_until_it_is_time_or_something_changed() {
        let now = Instant::now();
        let mut gate = Gate::new(policy(0));
        gate.settle(Verdict::Refused, now);
        assert!(gate.is_degraded());
        let almost = now + Duration::from_secs(299);
        assert_eq!(gate.width(4, almost), 0);
        assert_eq!(gate.width(4, now + Duration::from_mins(5)), 1);
        gate.settle(Verdict::Passing, almost);
        gate.try_now(almost);
        assert_eq!(gate.width(4, almost), 1);
        gate.settle(Verdict::Passing, almost);
        assert!(gate.is_degraded());
        gate.settle(Verdict::Done, almost);
        assert!(!gate.is_degraded());
    }

    #[test]
    fn one_bad_object_closes_nothing() {
        let now = Instant::now();
        let mut gate = Gate::new(policy(0));
        gate.settle(Verdict::Rejected, now);
        assert_eq!(gate.width(4, now), 4);
    }
}
