//! A spool in memory.

use std::collections::BTreeSet;

use super::*;

#[derive(Debug)]
enum State {
    Waiting(Segment),
    Claimed,
    Refused(Segment),
}

/// A spool in memory, of files in a directory.
pub(super) struct Shelved {
    entries: BTreeMap<u64, State>,
    in_doubt: BTreeSet<u64>,
    /// Calls that fail from now on.
    pub(super) is_broken: Arc<AtomicBool>,
}

impl Shelved {
    fn fail(&self) -> Result<(), SegmentError> {
        if !self.is_broken.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(SegmentError {
            action: "mark",
            path: "somewhere".into(),
            source: io::ErrorKind::StorageFull.into(),
        })
    }

    fn settle(&mut self, segment: Segment, state: fn(Segment) -> State) {
        let index = segment.index();
        let before = self.entries.insert(index, state(segment));
        assert!(matches!(before, Some(State::Claimed)), "{before:?}");
        self.in_doubt.remove(&index);
    }
}

impl Spool for Shelved {
    type Offer = SealedSegment;

    fn admit(&mut self, offer: SealedSegment) -> Result<(), SegmentError> {
        self.fail()?;
        let index = offer.index;
        let segment = State::Waiting(Segment::Sealed(offer));
        assert!(self.entries.insert(index, segment).is_none());
        Ok(())
    }

    fn claim(&mut self, is_wanted: &dyn Fn(&Segment) -> bool) -> Option<Parcel> {
        let is_next =
            |state: &&mut State| matches!(state, State::Waiting(segment) if is_wanted(segment));
        let state = self.entries.values_mut().find(is_next)?;
        match std::mem::replace(state, State::Claimed) {
            State::Waiting(segment) => Some(Parcel {
                segment,
                identity: identity(),
            }),
            State::Claimed | State::Refused(_) => None,
        }
    }

    fn compressed(&mut self, segment: CompressedSegment) -> Result<(), SegmentError> {
        self.settle(Segment::Compressed(segment), State::Waiting);
        Ok(())
    }

    fn begin_put(&mut self, index: u64) -> Result<(), SegmentError> {
        self.fail()?;
        assert!(self.in_doubt.insert(index));
        Ok(())
    }

    fn deliver(&mut self, segment: Segment) -> Result<(), SegmentError> {
        assert!(self.in_doubt.remove(&segment.index()));
        self.entries.remove(&segment.index());
        std::fs::remove_file(segment.path()).unwrap();
        Ok(())
    }

    fn put_back(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.settle(segment, State::Waiting);
        Ok(())
    }

    fn refuse(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.settle(segment, State::Refused);
        Ok(())
    }

    fn release_refused(&mut self) {
        for state in self.entries.values_mut() {
            *state = match std::mem::replace(state, State::Claimed) {
                State::Refused(segment) => State::Waiting(segment),
                other => other,
            };
        }
    }

    fn left(&self) -> Left {
        Left {
            segments: self.entries.len() as u64,
            bytes: 0,
        }
    }
}

/// What is in the directory before there is a courier.
pub(super) fn shelved(dir: &TempDir) -> Shelved {
    let mut entries = BTreeMap::new();
    for index in 0.. {
        let path = file(dir, index);
        let Ok(metadata) = path.metadata() else {
            break;
        };
        let segment = CompressedSegment {
            index: index as u64,
            path,
            bytes: metadata.len(),
            raw_bytes: 0,
            started_unix_ns: 0,
        };
        let state = State::Waiting(Segment::Compressed(segment));
        entries.insert(index as u64, state);
    }
    Shelved {
        entries,
        in_doubt: BTreeSet::new(),
        is_broken: Arc::default(),
    }
}
