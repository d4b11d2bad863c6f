//! The steps that change a spool's directory. Each is atomic, so that a crash
//! is between two of them.

use super::{
    Entry, Evicted, OpenOptions, Path, Segment, SegmentError, Spool, Stage, State, io, name,
};

impl Spool {
    pub(super) fn insert(&mut self, segment: Segment, state: impl FnOnce(Segment) -> State) {
        let entry = Entry {
            bytes: segment.bytes(),
            is_in_doubt: false,
            state: State::Claimed,
        };
        let entry = self.entries.entry(segment.index()).or_insert(entry);
        entry.bytes = segment.bytes();
        entry.state = state(segment);
    }

    /// Gives a claimed segment a state; its put is over.
    pub(super) fn settle(
        &mut self,
        segment: Segment,
        state: impl FnOnce(Segment) -> State,
    ) -> Result<(), SegmentError> {
        let index = segment.index();
        self.insert(segment, state);
        // How this put ended says nothing of the one before the crash.
        if self
            .entries
            .get(&index)
            .is_some_and(|entry| entry.is_in_doubt)
        {
            return Ok(());
        }
        self.remove(index, Stage::Put)
    }

    pub(super) fn oldest_evictable(&self) -> Option<u64> {
        let is_evictable =
            |entry: &Entry| !entry.is_in_doubt && !matches!(entry.state, State::Claimed);
        self.entries
            .iter()
            .find(|(_, entry)| is_evictable(entry))
            .map(|(index, _)| *index)
    }

    /// Turns a segment into the mark of its eviction, which is the commit.
    /// `None` when somebody else has removed the file.
    pub(super) fn bury(&mut self, index: u64) -> Result<Option<Evicted>, SegmentError> {
        let Some(segment) = self.entries.get(&index).and_then(|e| e.state.segment()) else {
            return Ok(None);
        };
        let (from, bytes) = (segment.path(), segment.bytes());
        let mark = name::path(&self.dir, index, Stage::Evicted { bytes });
        match std::fs::rename(from, &mark) {
            Ok(()) => {
                self.totals.evicted += 1;
                self.totals.evicted_bytes += bytes;
                self.untold.insert(index, bytes);
                self.entries.remove(&index);
                Ok(Some(Evicted { index, bytes }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.totals.missing += 1;
                self.entries.remove(&index);
                Ok(None)
            }
            Err(source) => Err(SegmentError {
                action: "evict",
                path: from.to_owned(),
                source,
            }),
        }
    }

    /// Gives the disk back what an evicted segment has.
    pub(super) fn empty(&self, gone: Evicted) -> Result<(), SegmentError> {
        let Evicted { index, bytes } = gone;
        let path = name::path(&self.dir, index, Stage::Evicted { bytes });
        let opened = OpenOptions::new().write(true).truncate(true).open(&path);
        opened.map(drop).map_err(|source| SegmentError {
            action: "empty",
            path,
            source,
        })
    }

    /// Removes a delivered segment, but not its mark.
    pub(super) fn remove_segment(&mut self, segment: &Segment) -> Result<(), SegmentError> {
        self.entries.remove(&segment.index());
        remove_file(segment.path())
    }

    /// Removes the file of a stage, which may be gone already.
    pub(super) fn remove(&self, index: u64, stage: Stage) -> Result<(), SegmentError> {
        remove_file(&name::path(&self.dir, index, stage))
    }
}

fn remove_file(path: &Path) -> Result<(), SegmentError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(SegmentError {
            action: "remove",
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}
