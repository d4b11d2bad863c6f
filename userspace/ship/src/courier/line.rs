//! The loop of the courier.
//!
//! In: offers, ends of stages, the time. Out: the next stages to run. Never: a
//! segment in memory before its put; a stage on the loop's own time.

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use dial9_bpf_trace::segment::SegmentError;

use super::outlet::Outlet;
use super::shelf::Shelf;
use super::stages::{self, Shipped, Stuck};
use super::{Left, Settings, Snapshot, Spool, Upload};
use crate::retry::Verdict;
use crate::sink::Sink;

/// How others reach the loop.
pub(super) struct Inlets<O> {
    pub(super) offers: mpsc::Receiver<O>,
    /// Until when to go on, once it is to end; may be cut short.
    pub(super) stopped: watch::Receiver<Option<Instant>>,
}

/// A stage that ended.
pub(super) enum Done {
    Admitted(Result<(), SegmentError>),
    /// `None` when there was nothing to compress.
    Compressed(Option<Result<(), Stuck>>),
    Put {
        /// Segments that had come when it began.
        arrivals: u64,
        /// `None` when there was nothing to put.
        shipped: Option<Shipped>,
    },
    /// What the destination did not take waits again.
    Released,
    Asked(Option<u64>),
}

/// Stages of which there is one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Busy {
    admitting: bool,
    compressing: bool,
    releasing: bool,
}

/// The state of the loop.
pub(super) struct Line<S, P: Spool> {
    settings: Settings,
    shelf: Shelf<P>,
    inlets: Inlets<P::Offer>,
    has_offers: bool,
    status: watch::Sender<Snapshot>,
    tasks: JoinSet<Done>,
    busy: Busy,
    /// Whether a sealed segment may be waiting.
    may_have_sealed: bool,
    /// After a failure of the disk: until when it is left alone.
    paused_until: Option<Instant>,
    outlet: Option<Outlet<S>>,
    /// Set once it is to end.
    deadline: Option<Instant>,
}

impl<S: Sink, P: Spool> Line<S, P> {
    pub(super) fn new(
        settings: Settings,
        spool: P,
        upload: Option<Upload<S>>,
        status: watch::Sender<Snapshot>,
        inlets: Inlets<P::Offer>,
    ) -> Self {
        Self {
            settings,
            shelf: Shelf::new(spool),
            inlets,
            has_offers: true,
            status,
            tasks: JoinSet::new(),
            busy: Busy::default(),
            // What the predecessor left.
            may_have_sealed: true,
            paused_until: None,
            outlet: upload.map(Outlet::new),
            deadline: None,
        }
    }

    /// Goes on until it is stopped; returns what is in the spool then.
    pub(super) async fn run(mut self) -> Left {
        loop {
            self.start_stages();
            if self.has_ended() {
                break;
            }
            let wake_at = self.wake_at();
            let may_take = self.has_offers && !self.busy.admitting;
            tokio::select! {
                biased;
                () = until(self.deadline) => break,
                changed = self.inlets.stopped.changed() => {
                    let deadline = *self.inlets.stopped.borrow_and_update();
                    // Nobody waits for the end when the other side is gone.
                    let deadline = deadline.filter(|_| changed.is_ok());
                    self.begin_end(deadline.unwrap_or_else(Instant::now));
                }
                Some(done) = self.tasks.join_next() => match done {
                    Ok(done) => self.settle(done),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                offer = self.inlets.offers.recv(), if may_take => match offer {
                    Some(offer) => self.admit(offer),
                    None => self.has_offers = false,
                },
                () = until(wake_at) => {}
            }
            self.show();
        }
        self.tasks.shutdown().await;
        self.shelf.lock().left()
    }

    fn start_stages(&mut self) {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| until > now) {
            return;
        }
        self.paused_until = None;
        if self.may_have_sealed && !self.busy.compressing {
            // An admission from here on sets it again.
            self.may_have_sealed = false;
            self.busy.compressing = true;
            let compress = stages::compress(self.shelf.clone(), self.settings.compression);
            self.tasks
                .spawn(async move { Done::Compressed(compress.await) });
        }
        let Some(outlet) = &mut self.outlet else {
            return;
        };
        outlet.start_puts(&self.shelf, &mut self.tasks, now);
        outlet.start_asking(&mut self.tasks, now);
        if outlet.release_at.is_some_and(|at| at <= now) && !self.busy.releasing {
            outlet.release_at = None;
            self.busy.releasing = true;
            let shelf = self.shelf.clone();
            self.tasks.spawn(async move {
                shelf.work(|shelf| shelf.lock().release_refused()).await;
                Done::Released
            });
        }
    }

    fn admit(&mut self, offer: P::Offer) {
        self.busy.admitting = true;
        let shelf = self.shelf.clone();
        self.tasks.spawn(async move {
            let admitted = shelf.work(move |shelf| shelf.lock().admit(offer)).await;
            Done::Admitted(admitted)
        });
    }

    fn settle(&mut self, done: Done) {
        match done {
            Done::Admitted(admitted) => {
                self.busy.admitting = false;
                self.may_have_sealed = true;
                if let Err(error) = admitted {
                    self.stick(&Stuck::from(error));
                }
            }
            Done::Compressed(compressed) => {
                self.busy.compressing = false;
                if compressed.is_some() {
                    self.may_have_sealed = true;
                    self.may_put();
                }
                match compressed {
                    Some(Ok(())) => self.status.send_modify(|status| status.compressed += 1),
                    Some(Err(stuck)) => self.stick(&stuck),
                    None => {}
                }
            }
            Done::Put { arrivals, shipped } => self.settle_put(arrivals, shipped),
            Done::Released => {
                self.busy.releasing = false;
                self.status.send_modify(|status| status.rejected = 0);
                self.may_put();
            }
            Done::Asked(credentials) => {
                if let Some(outlet) = &mut self.outlet {
                    outlet.heard(credentials, Instant::now());
                }
            }
        }
    }

    fn settle_put(&mut self, arrivals: u64, shipped: Option<Shipped>) {
        let now = Instant::now();
        let Some(outlet) = &mut self.outlet else {
            return;
        };
        outlet.running -= 1;
        let Some(Shipped { index, result }) = shipped else {
            outlet.found_none(arrivals);
            return;
        };
        // This one again, or those behind it.
        outlet.arrived();
        match result {
            Ok(bytes) => {
                outlet.gate.settle(Verdict::Done, now);
                self.status.send_modify(|status| {
                    status.uploaded += 1;
                    status.uploaded_bytes += bytes;
                });
            }
            Err(Stuck::Put(error)) => {
                let verdict = error.verdict();
                outlet.gate.settle(verdict, now);
                outlet.avoided = Some(index);
                if verdict == Verdict::Rejected {
                    outlet.rejected(now);
                }
                if verdict == Verdict::Refused {
                    outlet.ask_at.get_or_insert(now);
                }
                self.status.send_modify(|status| {
                    status.count(error.class(), &error.chain());
                    match verdict {
                        Verdict::Rejected => status.rejected += 1,
                        Verdict::Refused => status.degraded = Some(error.to_string()),
                        Verdict::Passing | Verdict::Done => {}
                    }
                });
            }
            Err(stuck) => {
                outlet.avoided = Some(index);
                self.stick(&stuck);
            }
        }
    }

    fn may_put(&mut self) {
        if let Some(outlet) = &mut self.outlet {
            outlet.arrived();
        }
    }

    /// A failure of the disk: what it was about stays in the spool.
    fn stick(&mut self, stuck: &Stuck) {
        if let Stuck::Local(text) = stuck {
            self.status.send_modify(|status| status.count_local(text));
            // Where only compressions are waited for, there is no later.
            let end = self.deadline.filter(|_| self.outlet.is_none());
            self.paused_until = Some(end.unwrap_or_else(Instant::now) + self.settings.pause);
        }
    }

    /// Puts what there is while the time lasts.
    fn begin_end(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
        // There is no later.
        self.paused_until = None;
        if let Some(outlet) = &mut self.outlet {
            outlet.gate.try_now(Instant::now());
        }
    }

    /// Whether nothing is left that the time would be enough for.
    fn has_ended(&self) -> bool {
        let Some(deadline) = self.deadline else {
            return false;
        };
        let is_idle = !self.has_offers
            && self.busy == Busy::default()
            && self
                .outlet
                .as_ref()
                .is_none_or(|outlet| outlet.running == 0);
        let is_paused = self.paused_until.is_some_and(|until| until > deadline);
        let has_no_more = !self.may_have_sealed
            && self
                .outlet
                .as_ref()
                .is_none_or(|outlet| outlet.has_ended(deadline));
        is_idle && (is_paused || has_no_more)
    }

    /// When time alone makes something due.
    fn wake_at(&self) -> Option<Instant> {
        self.paused_until
            .or_else(|| self.outlet.as_ref().and_then(Outlet::wake_at))
    }

    fn show(&self) {
        let outlet = self.outlet.as_ref();
        let is_degraded = outlet.is_some_and(|outlet| outlet.gate.is_degraded());
        self.status.send_if_modified(|status| {
            let is_over = !is_degraded && status.degraded.is_some();
            if is_over {
                status.degraded = None;
            }
            is_over
        });
    }
}

impl<S, P: Spool> Drop for Line<S, P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = "the courier has died";
            self.status
                .send_modify(|status| status.degraded = Some(text.to_owned()));
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
