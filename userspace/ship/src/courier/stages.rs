//! What is done to one segment.
//!
//! In: the spool. Out: the spool with one segment a stage further, or as it was
//! and why. Never: a retry; a segment out of the spool before it is where it
//! should be; the spool locked while a file is read, compressed or put.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dial9_bpf_trace::segment::{CompressedSegment, SealedSegment, SegmentError};
use dial9_bpf_trace::spool::Segment;
use tokio::time::Instant;

use super::shelf::Shelf;
use super::{Compression, Parcel, Spool};
use crate::convert::{Encoding, replace};
use crate::identity::Identity;
use crate::key::{Ordinal, header_value, object_key};
use crate::rate::Rate;
use crate::retry::Verdict;
use crate::sink::{Object, PutError, Sink};

/// Why a segment did not get further.
#[derive(Debug)]
pub(super) enum Stuck {
    /// Of the disk.
    Local(String),
    /// Of the destination.
    Put(PutError),
}

impl From<io::Error> for Stuck {
    fn from(error: io::Error) -> Self {
        Self::Local(error.to_string())
    }
}

impl From<SegmentError> for Stuck {
    fn from(error: SegmentError) -> Self {
        Self::Local(error.in_full())
    }
}

/// The second stage and the third, for the oldest segment that waits for it. `None` when none
/// does.
pub(super) async fn compress<P: Spool>(
    shelf: Shelf<P>,
    compression: Compression,
) -> Option<Result<(), Stuck>> {
    let work = move |shelf: &Shelf<P>| {
        let wanted = |segment: &Segment| matches!(segment, Segment::Sealed(_));
        let Parcel { segment, .. } = shelf.lock().claim(&wanted)?;
        let Segment::Sealed(segment) = segment else {
            // Against the contract of the claim; nothing is to be done to it.
            return Some(shelf.lock().put_back(segment).map_err(Stuck::from));
        };
        let names = shelf.lock().names();
        let tail = names.map_or_else(Vec::new, |names| names.tail(&segment));
        let compressed = match compression {
            Compression::Gzip => segment
                .compress(&tail)
                .map_err(|error| (error.segment, error.source)),
            Compression::Zstd => archive(segment, &tail),
        };
        let mut spool = shelf.lock();
        Some(match compressed {
            Ok(segment) => spool.compressed(segment).map_err(Stuck::from),
            Err((segment, error)) => {
                let put_back = spool.put_back(Segment::Sealed(segment));
                Err(put_back.map_or_else(Stuck::from, |()| Stuck::from(error)))
            }
        })
    };
    shelf.work(work).await
}

/// Replaces `trace.N.bin` by `trace.N.bin.zst`.
fn archive(
    segment: SealedSegment,
    tail: &[u8],
) -> Result<CompressedSegment, (SealedSegment, io::Error)> {
    let mut name = segment.path.clone().into_os_string();
    name.push(Encoding::Zstd.suffix());
    let path = PathBuf::from(name);
    match replace(&segment.path, &path, Encoding::Zstd, tail) {
        Ok(converted) => Ok(CompressedSegment {
            path,
            index: segment.index,
            bytes: converted.bytes,
            raw_bytes: converted.raw_bytes,
            started_unix_ns: segment.started.unix_ns,
        }),
        Err(error) => Err((segment, error.source)),
    }
}

/// How segments are put.
pub(super) struct Route<S> {
    pub(super) sink: S,
    pub(super) prefix: String,
    pub(super) rate: Option<Mutex<Rate>>,
}

/// A put that ended.
pub(super) struct Shipped {
    pub(super) index: u64,
    /// The size, bytes.
    pub(super) result: Result<u64, Stuck>,
}

/// The fourth stage and the fifth, for the oldest segment that waits for them,
/// preferably another one than `avoided`. `None` when none does.
pub(super) async fn put<P: Spool>(
    shelf: Shelf<P>,
    route: Arc<Route<impl Sink>>,
    avoided: Option<u64>,
) -> Option<Shipped> {
    let claim = move |shelf: &Shelf<P>| {
        let mut spool = shelf.lock();
        let is_packed = |segment: &Segment| matches!(segment, Segment::Compressed(_));
        let preferred = |segment: &Segment| is_packed(segment) && Some(segment.index()) != avoided;
        let found = spool.claim(&preferred);
        found.or_else(|| spool.claim(&is_packed))
    };
    let Parcel { segment, identity } = shelf.work(claim).await?;
    let index = segment.index();
    let Segment::Compressed(segment) = segment else {
        return None;
    };
    let wait = route.rate.as_ref().map_or(Duration::ZERO, |rate| {
        let mut rate = rate.lock().unwrap_or_else(PoisonError::into_inner);
        rate.reserve(segment.bytes, Instant::now())
    });
    tokio::time::sleep(wait).await;
    let path = segment.path.clone();
    let read = move |shelf: &Shelf<P>| -> Result<Bytes, Stuck> {
        let content = std::fs::read(&path)?;
        shelf.lock().begin_put(index)?;
        Ok(Bytes::from(content))
    };
    let result = match shelf.work(read).await {
        Ok(bytes) => {
            let size = bytes.len() as u64;
            let put = route
                .sink
                .put(object(&route.prefix, &segment, &identity, bytes));
            put.await.map(|()| size).map_err(Stuck::Put)
        }
        Err(stuck) => Err(stuck),
    };
    let settle = move |shelf: &Shelf<P>| {
        let segment = Segment::Compressed(segment);
        let mut spool = shelf.lock();
        let settled = match &result {
            Ok(_) => spool.deliver(segment),
            Err(Stuck::Put(error)) if error.verdict() == Verdict::Rejected => spool.refuse(segment),
            Err(_) => spool.put_back(segment),
        };
        result.and_then(|size| settled.map(|()| size).map_err(Stuck::from))
    };
    let result = shelf.work(settle).await;
    Some(Shipped { index, result })
}

fn object(prefix: &str, segment: &CompressedSegment, identity: &Identity, bytes: Bytes) -> Object {
    let encoding = Encoding::of_name(&segment.path).unwrap_or(Encoding::Raw);
    let ordinal = Ordinal {
        started_unix_ns: segment.started_unix_ns,
        index: segment.index,
    };
    Object {
        key: object_key(prefix, identity, ordinal, encoding),
        content_type: encoding.content_type(),
        metadata: vec![
            ("service", header_value(&identity.service)),
            ("boot-id", header_value(&identity.boot_id)),
            ("segment-index", ordinal.index.to_string()),
            ("start-time", ordinal.epoch_secs().to_string()),
            // What dial9 says here, too.
            ("host", header_value(&identity.instance)),
        ],
        bytes,
    }
}
