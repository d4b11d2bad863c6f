//! The spool as the courier sees it.
//!
//! In: closed segments, and what became of each. Out: the oldest that waits, with
//! whose it is; notices for the thread that records. Never: a wait of that
//! thread.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::Sender,
    },
};

use dial9_bpf_ship::{
    convert::head_of_archive,
    courier::{Left, Names, Parcel, Spool as CourierSpool},
    identity::Identity,
};
use dial9_bpf_trace::{
    recover,
    segment::{ClosedSegment, CommitError, CompressedSegment, Evicted, SegmentError},
    spool::{Segment, Spool},
};

/// What has happened to a segment of this recording, or to a predecessor's that
/// the next segment has to tell.
#[derive(Debug)]
pub(crate) enum Notice {
    /// It is sealed.
    Sealed { index: u64, path: PathBuf },
    /// It is compressed.
    Compressed {
        index: u64,
        path: PathBuf,
        bytes: u64,
    },
    /// The store has it.
    Delivered { index: u64, bytes: u64 },
    /// It had to go.
    Evicted(Evicted),
    /// It is whole, but not yet sealed; it is to be offered again.
    Uncommitted {
        segment: Box<ClosedSegment>,
        reason: String,
    },
    /// It is gone.
    Lost {
        segment: Box<ClosedSegment>,
        reason: String,
    },
}

/// A spool, and who is told of it.
#[derive(Debug)]
pub(crate) struct Outbox {
    spool: Spool,
    identity: Arc<Identity>,
    /// Size of the segment that is being written, bytes.
    active_bytes: Arc<AtomicU64>,
    notices: Sender<Notice>,
    names: Option<Arc<dyn Names>>,
    /// Index of the first segment of this recording.
    own_from: Option<u64>,
}

impl Outbox {
    /// An outbox of segments that belong to `identity` unless they say otherwise.
    pub(crate) fn new(
        spool: Spool,
        identity: Arc<Identity>,
        active_bytes: Arc<AtomicU64>,
        notices: Sender<Notice>,
    ) -> Self {
        Self {
            spool,
            identity,
            active_bytes,
            notices,
            names: None,
            own_from: None,
        }
    }

    /// Asks for names before segments are compressed.
    pub(crate) fn ask(&mut self, names: Arc<dyn Names>) {
        self.names = Some(names);
    }

    fn is_own(&self, index: u64) -> bool {
        self.own_from.is_some_and(|first| index >= first)
    }

    fn tell(&self, notice: Notice) {
        // Nobody listens when the recording is over.
        let _ = self.notices.send(notice);
    }

    fn commit(&mut self, closed: ClosedSegment) -> Result<(), SegmentError> {
        let index = closed.sealed().index;
        let CommitError {
            segment,
            action,
            source,
        } = match closed.commit() {
            Ok(sealed) => {
                self.own_from = self
                    .own_from
                    .map_or(Some(index), |first| Some(first.min(index)));
                let path = sealed.path.clone();
                self.tell(Notice::Sealed { index, path });
                return self.spool.admit(sealed);
            }
            Err(error) => error,
        };
        let path = segment.path();
        let error = SegmentError {
            action,
            path,
            source,
        };
        let reason = error.in_full();
        self.tell(if error.source.kind() == std::io::ErrorKind::NotFound {
            Notice::Lost { segment, reason }
        } else {
            Notice::Uncommitted { segment, reason }
        });
        Err(error)
    }

    fn enforce(&mut self) -> Result<(), SegmentError> {
        let mut evicted = Vec::new();
        let active_bytes = self.active_bytes.load(Ordering::Relaxed);
        let enforced = self.spool.enforce(active_bytes, &mut evicted);
        for gone in evicted {
            self.tell(Notice::Evicted(gone));
        }
        enforced
    }

    /// Whose a segment is: a predecessor's says it itself.
    fn identity_of(&self, segment: &Segment) -> Arc<Identity> {
        if self.is_own(segment.index()) {
            return Arc::clone(&self.identity);
        }
        recover::head(segment.path(), head_of_archive).map_or_else(
            |_| Arc::clone(&self.identity),
            |head| Arc::new(Identity::of_segment(&head.metadata, &self.identity)),
        )
    }
}

impl CourierSpool for Outbox {
    type Offer = ClosedSegment;

    fn admit(&mut self, offer: ClosedSegment) -> Result<(), SegmentError> {
        let done = self.commit(offer);
        done.and(self.enforce())
    }

    fn claim(&mut self, is_wanted: &dyn Fn(&Segment) -> bool) -> Option<Parcel> {
        let segment = self.spool.claim(is_wanted)?;
        let identity = self.identity_of(&segment);
        Some(Parcel { segment, identity })
    }

    fn names(&self) -> Option<Arc<dyn Names>> {
        self.names.clone()
    }

    fn compressed(&mut self, segment: CompressedSegment) -> Result<(), SegmentError> {
        let (index, bytes) = (segment.index, segment.bytes);
        if self.is_own(index) {
            let path = segment.path.clone();
            self.tell(Notice::Compressed { index, path, bytes });
        }
        self.spool.compressed(segment);
        self.enforce()
    }

    fn begin_put(&mut self, index: u64) -> Result<(), SegmentError> {
        self.spool.begin_put(index)
    }

    fn deliver(&mut self, segment: Segment) -> Result<(), SegmentError> {
        let (index, bytes) = (segment.index(), segment.bytes());
        self.tell(Notice::Delivered { index, bytes });
        self.spool.deliver(&segment)
    }

    fn put_back(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.spool.put_back(segment)
    }

    fn refuse(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.spool.refuse(segment)
    }

    fn release_refused(&mut self) {
        self.spool.release_refused();
    }

    fn left(&self) -> Left {
        Left {
            segments: self.spool.len() as u64,
            bytes: self.spool.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::Path,
        sync::mpsc::{self, Receiver},
        time::Duration,
    };

    use dial9_bpf_trace::{
        clock::Anchor,
        line::{Config, Line},
        location::Locations,
        metadata::Metadata,
        rotate::Policy,
        segment::Owner,
    };
    use tempfile::TempDir;

    use super::*;

    fn identity(service: &str) -> Identity {
        Identity {
            service: service.to_owned(),
            instance: "blue".to_owned(),
            boot_id: "abcd-7".to_owned(),
        }
    }

    fn outbox(dir: &Path, budget_bytes: u64) -> (Outbox, Receiver<Notice>) {
        let opened = Spool::open(dir, Owner::default(), budget_bytes, head_of_archive);
        let (spool, _) = opened.expect("it can be listed");
        let (sender, notices) = mpsc::channel();
        let own = Arc::new(identity("own"));
        (Outbox::new(spool, own, Arc::default(), sender), notices)
    }

    fn scratch() -> TempDir {
        tempfile::tempdir().expect("there is room")
    }

    fn closed(dir: &Path, service: &str) -> ClosedSegment {
        let config = Config {
            place: dir.into(),
            owner: Owner::default(),
            policy: Policy::new(Duration::from_mins(1), u64::MAX).expect("a minute"),
            metadata: Metadata {
                service: Some(service.to_owned()),
                ..Metadata::default()
            },
        };
        let line = Line::begin(config, Locations::new(&[], 0), Anchor::read());
        let mut closed = None;
        line.expect("there is room")
            .finish(Anchor::read(), &[], &mut |segment| closed = Some(segment));
        closed.expect("it is closed")
    }

    #[test]
    fn a_commit_that_fails_gives_the_segment_back() {
        let dir = scratch();
        let (mut outbox, notices) = outbox(dir.path(), u64::MAX);
        let in_the_way = dir.path().join("trace.0.bin");
        let first = closed(dir.path(), "own");
        fs::create_dir(&in_the_way).expect("there is room");
        outbox.admit(first).expect_err("its name is taken");
        let Ok(Notice::Uncommitted { segment, .. }) = notices.try_recv() else {
            panic!("it is given back")
        };
        fs::remove_dir(&in_the_way).expect("it is empty");
        outbox.admit(*segment).expect("its name is free");
        let told: Vec<Notice> = notices.try_iter().collect();
        let [Notice::Sealed { index: 0, .. }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(outbox.left().segments, 1);
    }

    #[test]
    fn what_somebody_removed_is_lost() {
        let dir = scratch();
        let (mut outbox, notices) = outbox(dir.path(), u64::MAX);
        let segment = closed(dir.path(), "own");
        fs::remove_file(segment.path()).expect("it is there");
        outbox.admit(segment).expect_err("it is gone");
        assert!(matches!(notices.try_recv(), Ok(Notice::Lost { .. })));
        assert_eq!(outbox.left().segments, 0);
    }

    #[test]
    fn what_the_budget_has_no_room_for_is_told() {
        let dir = scratch();
        let (mut outbox, notices) = outbox(dir.path(), 1);
        outbox
            .admit(closed(dir.path(), "own"))
            .expect("it is whole");
        let told: Vec<Notice> = notices.try_iter().collect();
        let [Notice::Sealed { .. }, Notice::Evicted(gone)] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(gone.index, 0);
    }

    #[test]
    fn a_predecessors_segment_keeps_its_identity() {
        let dir = scratch();
        let before = closed(dir.path(), "before");
        before.commit().expect("there is room");
        let (mut outbox, _notices) = outbox(dir.path(), u64::MAX);
        outbox
            .admit(closed(dir.path(), "own"))
            .expect("it is whole");
        let mut service = || {
            let parcel = outbox.claim(&|_| true).expect("it waits");
            parcel.identity.service.clone()
        };
        assert_eq!([service(), service()], ["before", "own"]);
    }
}
