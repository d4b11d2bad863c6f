//! The thread that ships.
//!
//! In: closed segments, offered by the recording thread, and what was in the
//! spool before. Out: objects, and a spool without the segments that became
//! objects. Never: a wait in [`Courier::offer`]; an unlink before the put has
//! succeeded; more segments in memory than are being put.
//!
//! Stages, in order, each of which takes a segment and gives it on:
//!
//! 1. seal: the commit, [`Spool::admit`];
//! 2. symbolize: [`Names`] for the addresses in the segment, which go behind it;
//! 3. compress: both to `trace.N.bin.gz`, one at a time;
//! 4. put: a few at once, within the rate;
//! 5. unlink, [`Spool::deliver`].
//!
//! - Between the stages segments are in the [`Spool`], which gives out the oldest
//!   first. One that a stage failed on is back there.
//! - Key and bytes are functions of the segment: what is put twice overwrites
//!   itself.
//! - The spool waits for the disk, so that it is worked on beside the loop.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

use dial9_bpf_trace::segment::{CompressedSegment, SealedSegment, SegmentError};
use dial9_bpf_trace::spool::Segment;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::identity::Identity;
use crate::rate::Rate;
use crate::retry::RetryPolicy;
use crate::sink::Sink;
use line::Line;

mod line;
mod outlet;
mod shelf;
mod stages;
mod status;

pub use status::{Failures, Snapshot, Status};

/// Time that a stopped courier may need beyond its deadline, to let a
/// compression end.
const GRACE: Duration = Duration::from_secs(1);

/// Time between two looks at whether a stop is cut short.
const LOOK: Duration = Duration::from_millis(5);

/// A segment, and whose it is.
#[derive(Debug)]
pub struct Parcel {
    /// The segment.
    pub segment: Segment,
    /// What its key is made from.
    pub identity: Arc<Identity>,
}

/// What knows names for the addresses in segments.
pub trait Names: fmt::Debug + Send + Sync {
    /// Whole batches to go behind a segment; nothing where there are no names to be had,
    /// for whatever reason. Waits for the disk and for other processes.
    fn tail(&self, segment: &SealedSegment) -> Vec<u8>;

    /// What there is to say of all segments so far.
    fn said(&self) -> Option<String>;
}

/// Where segments wait between the stages. Its methods may wait for the disk.
///
/// An error is of a name or a mark on the disk; the segment is in the state that
/// was asked for all the same.
pub trait Spool: Send + 'static {
    /// What the recording thread hands over.
    type Offer: Send + 'static;

    /// Commits a closed segment: it waits.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when it is not committed. What becomes of it is the
    /// spool's to decide.
    fn admit(&mut self, offer: Self::Offer) -> Result<(), SegmentError>;

    /// Gives out the oldest segment that waits and that is wanted. Until it is
    /// given back, nobody else gets it and it is not evicted.
    fn claim(&mut self, is_wanted: &dyn Fn(&Segment) -> bool) -> Option<Parcel>;

    /// Who is asked for names before a segment is compressed.
    fn names(&self) -> Option<Arc<dyn Names>> {
        None
    }

    /// Takes a claimed segment back, which is compressed now: it waits.
    ///
    /// # Errors
    ///
    /// See [`Spool`].
    fn compressed(&mut self, segment: CompressedSegment) -> Result<(), SegmentError>;

    /// Notes that the bytes of a claimed segment go out, so that the store has
    /// it perhaps until one of the next three is called, also after a crash.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] when it cannot be noted: it is not put then.
    fn begin_put(&mut self, index: u64) -> Result<(), SegmentError>;

    /// Removes a claimed segment, which the store has.
    ///
    /// # Errors
    ///
    /// See [`Spool`].
    fn deliver(&mut self, segment: Segment) -> Result<(), SegmentError>;

    /// Takes a claimed segment back as it was: it waits.
    ///
    /// # Errors
    ///
    /// See [`Spool`].
    fn put_back(&mut self, segment: Segment) -> Result<(), SegmentError>;

    /// Takes a claimed segment back that the store does not take: it stays, and
    /// does not wait.
    ///
    /// # Errors
    ///
    /// See [`Spool`].
    fn refuse(&mut self, segment: Segment) -> Result<(), SegmentError>;

    /// What was refused waits again.
    fn release_refused(&mut self);

    /// What is in it.
    fn left(&self) -> Left;
}

/// What compressed segments are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// What dial9 reads.
    #[default]
    Gzip,
    /// For archives.
    Zstd,
}

/// How a courier works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What compressed segments are.
    pub compression: Compression,
    /// Offers that may wait.
    pub queue: usize,
    /// Time after a failure of the disk during which it is left alone.
    pub pause: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compression: Compression::Gzip,
            queue: 16,
            pause: Duration::from_secs(10),
        }
    }
}

/// Where segments are put, and how.
#[derive(Debug)]
pub struct Upload<S> {
    /// What takes them.
    pub sink: S,
    /// What their keys begin with.
    pub prefix: String,
    /// How many are put at once, each of them whole in memory.
    pub concurrency: usize,
    /// The limit on bytes a second.
    pub rate: Option<Rate>,
    /// When to try again.
    pub retry: RetryPolicy,
    /// Time between two looks at the credentials while the destination refuses.
    pub credentials_every: Duration,
}

impl<S: Sink> Upload<S> {
    /// Two at once, no limit on the rate, dial9's delays.
    pub fn to(sink: S, prefix: impl Into<String>, seed: u64) -> Self {
        Self {
            sink,
            prefix: prefix.into(),
            concurrency: 2,
            rate: None,
            retry: RetryPolicy::seeded(seed),
            credentials_every: Duration::from_secs(30),
        }
    }
}

/// How a courier ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its last status.
    pub status: Snapshot,
    /// What is in the spool; `None` when the courier failed by a fault of its
    /// own.
    pub left: Option<Left>,
}

/// Segments that stay in the spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// How many.
    pub segments: u64,
    /// Their size, bytes.
    pub bytes: u64,
}

/// A running courier, which takes offers of `O`. Dropped, it ends at once, and
/// what there is stays in the spool.
#[derive(Debug)]
pub struct Courier<O> {
    offers: mpsc::Sender<O>,
    stop: watch::Sender<Option<Instant>>,
    status: Status,
    thread: JoinHandle<Left>,
}

impl<O: Send + 'static> Courier<O> {
    /// Starts the thread. Without an upload it compresses only. It begins with
    /// what is in the spool.
    ///
    /// # Errors
    ///
    /// When there is no thread or no runtime to be had.
    pub fn start<S: Sink>(
        settings: Settings,
        spool: impl Spool<Offer = O>,
        upload: Option<Upload<S>>,
    ) -> io::Result<Self> {
        // One for each put, one for the compression, and for names of hosts.
        let concurrency = upload.as_ref().map_or(0, |upload| upload.concurrency);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(concurrency + 3)
            .thread_name("dial9-ship")
            .build()?;
        let (offers, incoming) = mpsc::channel(settings.queue.max(1));
        let (stop, stopped) = watch::channel(None);
        let (writer, status) = status::channel();
        let inlets = line::Inlets {
            offers: incoming,
            stopped,
        };
        let line = Line::new(settings, spool, upload, writer, inlets);
        let thread = std::thread::Builder::new()
            .name("dial9-courier".to_owned())
            .spawn(move || {
                let left = runtime.block_on(line.run());
                runtime.shutdown_timeout(GRACE);
                left
            })?;
        Ok(Self {
            offers,
            stop,
            status,
            thread,
        })
    }

    /// Hands over a closed segment. Never waits.
    ///
    /// # Errors
    ///
    /// Gives it back when there is no place for it, or no courier any more.
    pub fn offer(&self, offer: O) -> Result<(), O> {
        self.offers.try_send(offer).map_err(|error| match error {
            TrySendError::Full(offer) | TrySendError::Closed(offer) => offer,
        })
    }

    /// How it is doing.
    pub fn status(&self) -> Status {
        self.status.clone()
    }

    /// Ends it: what was offered and what is in the spool is put while the time
    /// lasts, and the rest stays.
    pub fn stop(self, within: Duration) -> Report {
        self.stop_unless(within, || false)
    }

    /// As [`Courier::stop`]; the time is over when somebody cuts it short, too.
    pub fn stop_unless(self, within: Duration, is_cut: impl Fn() -> bool) -> Report {
        let Self {
            offers,
            stop,
            status,
            thread,
        } = self;
        stop.send_replace(Some(Instant::now() + within));
        drop(offers);
        while !thread.is_finished() {
            if is_cut() {
                stop.send_replace(Some(Instant::now()));
                break;
            }
            std::thread::sleep(LOOK);
        }
        let left = thread.join().ok();
        Report {
            status: status.snapshot(),
            left,
        }
    }
}

#[cfg(test)]
mod tests;
