//! The end of the loop that faces the destination.
//!
//! In: ends of puts, the credentials in use, the time. Out: the next puts to
//! run. Never: a put that the gate does not let through.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::line::Done;
use super::shelf::Shelf;
use super::stages::{self, Route};
use super::{Spool, Upload};
use crate::retry::Gate;
use crate::sink::Sink;

/// The part of the loop that is there with an upload only.
pub(super) struct Outlet<S> {
    route: Arc<Route<S>>,
    concurrency: usize,
    pub(super) gate: Gate,
    pub(super) running: usize,
    /// Whether a compressed segment may be waiting.
    may_have: bool,
    /// How often one has come to wait, as far as is known.
    arrivals: u64,
    /// The segment whose put failed last: others are tried before.
    pub(super) avoided: Option<u64>,
    /// When what the destination does not take is tried again.
    pub(super) release_at: Option<Instant>,
    release_after: Duration,
    credentials_every: Duration,
    /// When to look at the credentials.
    pub(super) ask_at: Option<Instant>,
    seen: Seen,
}

/// The credentials since the destination refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Not looked at yet.
    Nothing,
    /// What the sink said.
    Credentials(Option<u64>),
}

impl<S: Sink> Outlet<S> {
    pub(super) fn new(upload: Upload<S>) -> Self {
        let Upload {
            sink,
            prefix,
            concurrency,
            rate,
            retry,
            credentials_every,
        } = upload;
        Self {
            route: Arc::new(Route {
                sink,
                prefix,
                rate: rate.map(Mutex::new),
            }),
            concurrency: concurrency.max(1),
            gate: Gate::new(retry),
            running: 0,
            may_have: true,
            arrivals: 0,
            avoided: None,
            release_at: None,
            release_after: retry.refused,
            credentials_every,
            ask_at: None,
            seen: Seen::Nothing,
        }
    }

    /// A segment waits.
    pub(super) fn arrived(&mut self) {
        self.may_have = true;
        self.arrivals += 1;
    }

    /// A put that began after so many arrivals has found no segment.
    pub(super) fn found_none(&mut self, arrivals: u64) {
        if self.arrivals == arrivals {
            self.may_have = false;
        }
    }

    /// Each put looks for a segment itself; the first one that finds none ends
    /// the search.
    pub(super) fn start_puts<P: Spool>(
        &mut self,
        shelf: &Shelf<P>,
        tasks: &mut JoinSet<Done>,
        now: Instant,
    ) {
        while self.may_have && self.running < self.gate.width(self.concurrency, now) {
            self.running += 1;
            let put = stages::put(shelf.clone(), Arc::clone(&self.route), self.avoided);
            let arrivals = self.arrivals;
            tasks.spawn(async move {
                let shipped = put.await;
                Done::Put { arrivals, shipped }
            });
        }
    }

    pub(super) fn start_asking(&mut self, tasks: &mut JoinSet<Done>, now: Instant) {
        if self.ask_at.is_none_or(|at| at > now) {
            return;
        }
        self.ask_at = None;
        if !self.gate.is_degraded() {
            self.seen = Seen::Nothing;
            return;
        }
        let route = Arc::clone(&self.route);
        tasks.spawn(async move { Done::Asked(route.sink.credentials().await) });
    }

    /// Takes the credentials in use. Others than when the destination began to
    /// refuse are a reason to try now.
    pub(super) fn heard(&mut self, credentials: Option<u64>, now: Instant) {
        self.ask_at = now.checked_add(self.credentials_every);
        let heard = Seen::Credentials(credentials);
        let before = std::mem::replace(&mut self.seen, heard);
        if before != Seen::Nothing && before != heard {
            self.gate.try_now(now);
            self.release_at = self.release_at.map(|_| now);
        }
    }

    pub(super) fn rejected(&mut self, now: Instant) {
        self.release_at.get_or_insert(now + self.release_after);
    }

    pub(super) fn wake_at(&self) -> Option<Instant> {
        // With a put running its end opens the gate.
        let gate = self.gate.opens_at();
        let gate = gate.filter(|_| self.running == 0 && self.may_have);
        [gate, self.ask_at, self.release_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether nothing is to be put until then.
    pub(super) fn has_ended(&self, deadline: Instant) -> bool {
        let is_late = self.gate.opens_at().is_some_and(|at| at > deadline);
        self.running == 0 && (!self.may_have || is_late)
    }
}
