//! The line does not allocate once it is warm. A file of its own: the counting
//! allocator sees every thread of the process.

mod counting;
mod synthetic;

use counting::{Counting, allocations};
use dial9_bpf_trace::decode::Record;
use dial9_bpf_trace::encode::Encoder;
use dial9_bpf_trace::interpret::Interpreter;
use dial9_bpf_trace::sort::Sorter;
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
    let mut sorter = Sorter::new();
    let mut interpreter = Interpreter::new(synthetic::locations());
    let mut encoder = Encoder::new();
    let mut bytes = Vec::new();
    let (mut in_batches, mut batches, mut elsewhere) = (0, 0, 0);
    // The first rounds are warm-up; ended tasks stay remembered for a while,
    // so that the table of tasks grows until then.
    for round in 0..250 {
        let records: Vec<_> = stream.by_ref().take(ROUND).collect();
        let newest_ns = records.last().unwrap().1.header().ts_ns;
        let before = allocations();
        let mut cuts = 0;
        for (_, record) in &records {
            bytes.clear();
            record.encode(&mut bytes);
            sorter.push(Record::decode(&bytes).unwrap());
        }
        sorter.release(newest_ns, |record| {
            interpreter.record(record, &mut |event, locations| {
                if encoder.is_full() {
                    encoder.cut();
                    cuts += 1;
                }
                encoder.event(event, locations);
            });
        });
        if round < 150 {
            continue;
        }
        let made = allocations() - before;
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
