//! What becomes of closed segments, off the thread that records.
//!
//! In: closed segments. Out: the spool, compressed and, where asked for, put into
//! a store; what that came to. Never: a wait before the recording is over.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use dial9_bpf_ship::{
    courier::{Compression, Courier, Left, Names, Settings, Upload},
    identity::Identity,
    sink::StoreSink,
};
use dial9_bpf_trace::{line::Line, segment::ClosedSegment, spool::Spool};

use crate::outbox::{Notice, Outbox};

/// How long the end may take with an upload.
const DRAIN: Duration = Duration::from_secs(20);
/// How long the last compressions may take without one, and how long the disk is
/// left alone after a failure then: one that fails at the end is the last.
const COMPRESSIONS: Duration = Duration::from_mins(5);
/// Time between two attempts to hand over what is left at the end.
const RETRY: Duration = Duration::from_millis(10);
/// Closed segments that wait for a place; more stay behind for a recovery.
const HELD: usize = 64;

/// Where segments go.
#[derive(Debug)]
pub(crate) struct Shipping {
    /// Whose they are.
    pub(crate) identity: Identity,
    /// What compressed segments are.
    pub(crate) compression: Compression,
    /// A store, and its name.
    pub(crate) upload: Option<(Upload<StoreSink>, String)>,
    /// What knows names for the addresses in segments.
    pub(crate) names: Option<Arc<dyn Names>>,
}

/// A running courier, and what it has told.
#[derive(Debug)]
pub(crate) struct Dispatch {
    dir: PathBuf,
    courier: Courier<ClosedSegment>,
    notices: Receiver<Notice>,
    active_bytes: Arc<AtomicU64>,
    /// What waits for a place, or for the disk, by index.
    held: BTreeMap<u64, ClosedSegment>,
    upload: Option<String>,
    names: Option<Arc<dyn Names>>,
    is_degraded: bool,
    tally: Tally,
}

/// What became of the segments so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Segments of this recording that were closed.
    pub(crate) closed: u64,
    /// Their size, bytes.
    pub(crate) raw_bytes: u64,
    /// Size of those that were compressed, bytes.
    pub(crate) compressed_bytes: u64,
    /// The last file.
    pub(crate) last: Option<PathBuf>,
    /// Segments that the store has, also those of a predecessor.
    pub(crate) delivered: u64,
    /// Their size, bytes.
    pub(crate) delivered_bytes: u64,
    /// Segments that had to go, also those of a predecessor.
    pub(crate) evicted: u64,
    /// Their size, bytes.
    pub(crate) evicted_bytes: u64,
    /// Segments that are gone.
    pub(crate) lost: u64,
    /// Whether some went before they were compressed.
    is_partial: bool,
    uncompressed: BTreeSet<u64>,
    uncommitted: BTreeMap<u64, String>,
    /// Why the first of those was lost.
    reason: Option<String>,
}

/// What it came to in the end.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The spool's directory.
    pub(crate) dir: PathBuf,
    /// What became of the segments.
    pub(crate) tally: Tally,
    /// What is in the spool; `None` when nobody knows.
    pub(crate) left: Option<Left>,
    /// The store's name.
    pub(crate) upload: Option<String>,
    /// How many addresses have names, where there are addresses.
    pub(crate) names: Option<String>,
    /// What went wrong here.
    pub(crate) failure: Option<String>,
    /// What the store said last, when there is something it does not have.
    pub(crate) refusal: Option<String>,
}

impl Dispatch {
    /// Starts with what is in a directory's spool. From now on segments may leave it,
    /// so the line's first has its index by then: one that left would give its own
    /// away again.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn start(dir: &Path, spool: Spool, shipping: Shipping) -> anyhow::Result<Self> {
        let Shipping {
            identity,
            compression,
            upload,
            names,
        } = shipping;
        let (sender, notices) = mpsc::channel();
        let active_bytes = Arc::new(AtomicU64::new(0));
        let mut outbox = Outbox::new(spool, Arc::new(identity), Arc::clone(&active_bytes), sender);
        if let Some(names) = &names {
            outbox.ask(Arc::clone(names));
        }
        let (upload, name) = upload.unzip();
        let settings = Settings {
            compression,
            ..Settings::default()
        };
        let courier = Courier::start(settings, outbox, upload)?;
        Ok(Self {
            dir: dir.to_owned(),
            courier,
            notices,
            active_bytes,
            held: BTreeMap::new(),
            upload: name,
            names,
            is_degraded: false,
            tally: Tally::default(),
        })
    }

    /// What became of the segments so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Takes a closed segment. Never waits: what finds no place is handed over
    /// later, or found by the next recovery.
    pub(crate) fn hand_over(&mut self, closed: ClosedSegment) {
        self.tally.closed += 1;
        self.tally.raw_bytes += closed.sealed().bytes;
        self.tally.last = Some(closed.path());
        let index = closed.sealed().index;
        self.tally.uncompressed.insert(index);
        if self.held.len() < HELD {
            self.held.insert(index, closed);
        }
        self.offer_held();
    }

    /// Tells a line what has happened. Returns what the store says when it begins
    /// to refuse.
    pub(crate) fn tell(&mut self, line: &mut Line) -> Option<String> {
        self.active_bytes
            .store(line.file_bytes(), Ordering::Relaxed);
        for notice in self.notices.try_iter() {
            match &notice {
                Notice::Evicted(gone) => line.evicted(*gone),
                Notice::Lost { segment, .. } => line.lose(segment),
                _ => {}
            }
            let again = self.tally.take(notice);
            self.held
                .extend(again.map(|segment| (segment.sealed().index, segment)));
        }
        self.offer_held();
        let degraded = self.courier.status().snapshot().degraded;
        let was_degraded = std::mem::replace(&mut self.is_degraded, degraded.is_some());
        degraded.filter(|_| !was_degraded)
    }

    /// Waits until everything is where it should be, as far as the time lasts, or
    /// until somebody stops it once more.
    pub(crate) fn finish(mut self, stop: &AtomicBool) -> Delivery {
        stop.store(false, Ordering::Relaxed);
        let is_cut = || stop.load(Ordering::Relaxed);
        let within = if self.upload.is_some() {
            DRAIN
        } else {
            COMPRESSIONS
        };
        let deadline = Instant::now() + within;
        while !self.offer_held() && Instant::now() < deadline && !is_cut() {
            thread::sleep(RETRY);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let report = self.courier.stop_unless(left, is_cut);
        let mut tally = self.tally;
        // What still hangs in the disk keeps its end of the channel.
        self.notices
            .try_iter()
            .for_each(|notice| drop(tally.take(notice)));
        let last_error = report.status.last_error;
        let is_left = report.left.is_none_or(|left| left.segments > 0);
        let failure = tally.failure(last_error.as_deref());
        Delivery {
            dir: self.dir,
            tally,
            left: report.left,
            refusal: last_error.filter(|_| self.upload.is_some() && is_left),
            upload: self.upload,
            names: self.names.and_then(|names| names.said()),
            failure,
        }
    }

    /// True when nothing is held any more.
    fn offer_held(&mut self) -> bool {
        while let Some((index, closed)) = self.held.pop_first() {
            if let Err(closed) = self.courier.offer(closed) {
                self.held.insert(index, closed);
                return false;
            }
        }
        true
    }
}

impl Delivery {
    /// Size of the segments compressed, bytes; `None` when some are not.
    pub(crate) fn compressed_bytes(&self) -> Option<u64> {
        let tally = &self.tally;
        let is_all = tally.closed > 0 && !tally.is_partial && tally.uncompressed.is_empty();
        is_all.then_some(tally.compressed_bytes)
    }
}

impl Tally {
    /// Whether a segment that was handed over is compressed, or gone.
    pub(crate) fn is_settled(&self, index: u64) -> bool {
        !self.uncompressed.contains(&index)
    }

    /// Why a segment that was handed over is not yet sealed, where that has failed.
    pub(crate) fn failure_of(&self, index: u64) -> Option<&str> {
        self.uncommitted.get(&index).map(String::as_str)
    }

    /// Gives back what is to be offered again.
    #[must_use]
    fn take(&mut self, notice: Notice) -> Option<ClosedSegment> {
        match notice {
            Notice::Sealed { index, path } => {
                self.uncommitted.remove(&index);
                self.last = Some(path);
            }
            Notice::Compressed { index, path, bytes } => {
                self.uncompressed.remove(&index);
                self.compressed_bytes += bytes;
                self.last = Some(path);
            }
            Notice::Delivered { index, bytes } => {
                self.uncompressed.remove(&index);
                self.delivered += 1;
                self.delivered_bytes += bytes;
            }
            Notice::Evicted(gone) => {
                self.is_partial |= self.uncompressed.remove(&gone.index);
                self.evicted += 1;
                self.evicted_bytes += gone.bytes;
            }
            Notice::Uncommitted { segment, reason } => {
                self.uncommitted.insert(segment.sealed().index, reason);
                return Some(*segment);
            }
            Notice::Lost { segment, reason } => {
                let index = segment.sealed().index;
                self.is_partial |= self.uncompressed.remove(&index);
                self.uncommitted.remove(&index);
                self.lost += 1;
                self.reason.get_or_insert(reason);
            }
        }
        None
    }

    /// Why a segment is not what it should be.
    fn failure(&self, last_error: Option<&str>) -> Option<String> {
        let uncommitted = self.uncommitted.values().next();
        let reason = self.reason.as_ref().or(uncommitted).cloned();
        reason.or_else(|| {
            let error = last_error.unwrap_or("the time was over");
            let count = self.uncompressed.len();
            (count > 0).then(|| format!("{count} segments are not compressed: {error}"))
        })
    }
}
