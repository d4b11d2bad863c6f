//! Records of several rings into one order of time.
//!
//! In: records, ring by ring, each ring in its own order. Out: the records
//! below a watermark, by time; equal times in the order in which they came.
//! Never: an allocation once the buffers have grown, a record kept back for
//! being late.

use dial9_bpf_abi::record::RecordKind;

use crate::decode::Record;

/// Buffers records until the watermark passes them.
///
/// Rings are in order by themselves but for rare exceptions, so that what is
/// buffered is a few ascending runs, which are merged.
#[derive(Debug, Default)]
pub struct Sorter {
    records: Vec<Record>,
    keys: Vec<Key>,
    /// Where in `keys` the ascending runs end.
    runs: Vec<usize>,
    merged: Vec<Key>,
    kept: Vec<Record>,
    released_ns: u64,
    late: u64,
}

/// Time, and position in the records.
type Key = (u64, u32);

impl Sorter {
    /// An empty sorter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record. Records of one ring come in the ring's order.
    ///
    /// # Panics
    ///
    /// With 2^32 records buffered, which no ring budget reaches.
    #[inline]
    pub fn push(&mut self, record: Record) {
        let header = record.header();
        // A gap carries the time of its first lost hit, which may be long ago.
        if header.ts_ns < self.released_ns && header.kind != RecordKind::GAP {
            self.late += 1;
        }
        self.key(header.ts_ns);
        self.records.push(record);
    }

    /// Hands over every record older than `watermark_ns`, oldest first, and
    /// keeps the rest.
    pub fn release(&mut self, watermark_ns: u64, mut each: impl FnMut(&Record)) {
        self.merge();
        let split = self
            .keys
            .partition_point(|&(ts_ns, _)| ts_ns < watermark_ns);
        for &(_, position) in &self.keys[..split] {
            each(&self.records[position as usize]);
        }
        self.kept.clear();
        self.kept.extend(
            self.keys[split..]
                .iter()
                .map(|&(_, at)| self.records[at as usize]),
        );
        self.keys.clear();
        self.runs.clear();
        self.records.clear();
        for at in 0..self.kept.len() {
            self.key(self.kept[at].header().ts_ns);
            self.records.push(self.kept[at]);
        }
        self.released_ns = self.released_ns.max(watermark_ns);
    }

    /// Hands over everything, oldest first.
    pub fn release_all(&mut self, each: impl FnMut(&Record)) {
        let released_ns = self.released_ns;
        self.release(u64::MAX, each);
        self.released_ns = released_ns;
    }

    /// Adds the key of the record that comes next.
    #[inline]
    fn key(&mut self, ts_ns: u64) {
        let position = u32::try_from(self.records.len()).expect("a ring budget is below 2^32");
        match (self.keys.last(), self.runs.last_mut()) {
            (Some(&(last_ns, _)), Some(end)) if last_ns <= ts_ns => *end += 1,
            _ => self.runs.push(self.keys.len() + 1),
        }
        self.keys.push((ts_ns, position));
    }

    /// Merges neighbouring runs until one is left.
    fn merge(&mut self) {
        let Self {
            keys, runs, merged, ..
        } = self;
        while runs.len() > 1 {
            merged.clear();
            let (mut start, mut kept) = (0, 0);
            for pair in 0..runs.len().div_ceil(2) {
                let middle = runs[2 * pair];
                let end = runs.get(2 * pair + 1).copied().unwrap_or(middle);
                merge_into(merged, &keys[start..middle], &keys[middle..end]);
                runs[kept] = end;
                (start, kept) = (end, kept + 1);
            }
            runs.truncate(kept);
            std::mem::swap(keys, merged);
        }
    }

    /// Records that came after the watermark had passed them. They were handed
    /// over all the same, with the next release.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Records waiting for the watermark.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Appends two ascending runs as one; of equal times the left one's first.
fn merge_into(out: &mut Vec<Key>, mut left: &[Key], mut right: &[Key]) {
    while let (Some(&l), Some(&r)) = (left.first(), right.first()) {
        let is_right = r.0 < l.0;
        out.push(if is_right { r } else { l });
        left = &left[usize::from(!is_right)..];
        right = &right[usize::from(is_right)..];
    }
    out.extend_from_slice(left);
    out.extend_from_slice(right);
}

#[cfg(test)]
mod tests {
    use super::*;
    use dial9_bpf_abi::record::{Gap, RecordHeader, TaskRecord};

    fn wake(ts_ns: u64, task_id: u64) -> Record {
        let header = RecordHeader {
            kind: RecordKind::WAKE,
            flags: 0,
            tid: 1,
            ts_ns,
        };
        Record::Wake(TaskRecord { header, task_id })
    }

    fn released(sorter: &mut Sorter, watermark_ns: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        sorter.release(watermark_ns, |record| match record {
            Record::Wake(wake) => ids.push(wake.task_id),
            other => panic!("{other:?}"),
        });
        ids
    }

    #[test]
    fn releases_by_time_and_keeps_the_rest() {
        let mut sorter = Sorter::new();
        for (ts, id) in [(10, 1), (30, 2), (5, 3), (10, 4), (20, 5)] {
            sorter.push(wake(ts, id));
        }
        assert_eq!(released(&mut sorter, 20), [3, 1, 4]);
        assert_eq!(sorter.len(), 2);
        sorter.push(wake(25, 6));
        assert_eq!(released(&mut sorter, 31), [5, 6, 2]);
        assert!(sorter.is_empty());
        assert_eq!(sorter.late(), 0);
    }

    proptest::proptest! {
        #[test]
        fn sorts_like_a_stable_sort(
            times in proptest::collection::vec(0..50_u64, 0..100), watermark_ns in 0..60_u64
        ) {
            let mut sorter = Sorter::new();
            for (id, ts_ns) in (0..).zip(&times) {
                sorter.push(wake(*ts_ns, id));
            }
            let mut expected: Vec<(u64, u64)> = times.iter().copied().zip(0..).collect();
            expected.sort_unstable();
            let mut ids = released(&mut sorter, watermark_ns);
            proptest::prop_assert_eq!(
                ids.len(), times.iter().filter(|&&ts_ns| ts_ns < watermark_ns).count()
            );
            ids.extend(released(&mut sorter, u64::MAX));
            proptest::prop_assert_eq!(ids, expected.iter().map(|&(_, id)| id).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_late_record_is_delivered_and_counted() {
        let mut sorter = Sorter::new();
        sorter.push(wake(10, 1));
        assert_eq!(released(&mut sorter, 100), [1]);
        sorter.push(wake(50, 2));
        sorter.push(wake(100, 3));
        assert_eq!(released(&mut sorter, 101), [2, 3]);
        assert_eq!(sorter.late(), 1);
    }

    #[test]
    fn a_gap_is_never_late() {
        let mut sorter = Sorter::new();
        assert!(released(&mut sorter, 100).is_empty());
        let header = RecordHeader {
            kind: RecordKind::GAP,
            flags: 0,
            tid: 1,
            ts_ns: 7,
        };
        sorter.push(Record::Gap(Gap { header, lost: 1 }));
        assert_eq!(sorter.late(), 0);
    }
}
