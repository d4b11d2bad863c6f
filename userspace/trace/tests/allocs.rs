//! The line does not allocate once it is warm. A file of its own: the counting
//! allocator sees every thread of the process.

mod counting;
mod synthetic;

use std::time::Duration;

use counting::{Counting, allocations};
use dial9_bpf_trace::clock::Anchor;
use dial9_bpf_trace::line::{Config, Line};
use dial9_bpf_trace::metadata::Metadata;
use dial9_bpf_trace::rotate::Policy;
use dial9_bpf_trace::segment::Owner;
use synthetic::Stream;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUND: usize = 10_000;

/// What the schemas and names of one batch may allocate. Schemas are re-declared
/// in each batch by dial9's encoder; there are fewer than 12, and 64 names.
const BATCH_ALLOCATIONS: u64 = 700;

#[test]
fn a_warm_line_allocates_for_batches_only() {
    let mut stream = Stream::new(2, 64, 3);
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        place: dir.path().into(),
        owner: Owner::default(),
        policy: Policy::new(Duration::from_hours(1), u64::MAX).unwrap(),
        metadata: Metadata::default(),
    };
    let at = |mono_ns| Anchor {
        mono_ns,
        unix_ns: 1_800_000_000_000_000_000 + mono_ns,
    };
    let started = at(1_000_000_000_000);
    let mut line = Line::begin(config, synthetic::locations(), started).unwrap();
    let path = line.path().unwrap();
    let mut bytes = Vec::new();
    let (mut in_batches, mut batches, mut elsewhere) = (0, 0, 0);
    // The first rounds are warm-up; ended tasks stay remembered for a while,
    // so that the table of tasks grows until then.
    for round in 0..250 {
        let records: Vec<_> = stream.by_ref().take(ROUND).collect();
        let newest_ns = records.last().unwrap().1.header().ts_ns;
        let length = path.metadata().unwrap().len();
        let before = allocations();
        line.begin_pass();
        for (cpu, record) in &records {
            bytes.clear();
            record.encode(&mut bytes);
            line.push(*cpu, &bytes);
        }
        line.advance(newest_ns, at(newest_ns), &mut |_| panic!("no boundary"));
        let made = allocations() - before;
        let cuts = u64::from(path.metadata().unwrap().len() > length);
        if round < 150 {
            continue;
        }
        if cuts == 0 && made == 0 {
            continue;
        }
        batches += cuts;
        *(if cuts > 0 {
            &mut in_batches
        } else {
            &mut elsewhere
        }) += made;
    }
    assert!(batches > 5);
    // A batch that was cut in one round is still meeting new names in the next.
    let made = in_batches + elsewhere;
    assert!(
        made <= batches * BATCH_ALLOCATIONS,
        "{made} allocations in {batches} batches"
    );
    assert!(
        elsewhere <= batches * 16,
        "{elsewhere} allocations without a new batch"
    );
}
