//! Raw records of the demo server under load, for the userspace bench.
//!
//! `cargo bench -p dial9-bpf-integration --bench demo_dump -- FILE [RECORDS]`,
//! as root: `cargo xtask bench` runs it and gives FILE to the pipeline bench.
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::{fs::File, io::BufWriter, thread, time::Duration};

use dial9_bpf_integration::{
    demo::Demo,
    driven::{loaded, scanned},
    require_root,
};
use dial9_bpf_trace::dump::RecordDump;

/// Records when no number is given.
const RECORDS: u64 = 10_000_000;
/// Room for what comes while the disk is slow, bytes.
const RING_BYTES: u64 = 64 << 20;

fn main() {
    let mut words = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"));
    let Some(path) = words.next() else {
        println!("demo_dump: no FILE, nothing to do");
        return;
    };
    let records = words
        .next()
        .map_or(RECORDS, |word| word.parse().expect("a number"));
    require_root();
    let demo = Demo::under_load();
    let (target, objects) = scanned(demo.pid());
    let mut tracer = loaded(&target, RING_BYTES);
    tracer.attach(&target, &objects).expect("it still runs");

    let mut dump = RecordDump::new(BufWriter::new(File::create(&path).expect("a file")));
    let mut written = 0;
    while written < records {
        tracer.rings().drain(usize::MAX, |cpu, record| {
            dump.entry(cpu, record).expect("room on the disk");
            written += 1;
        });
        thread::sleep(Duration::from_millis(5));
    }
    tracer.detach();
    dump.finish().expect("room on the disk");
    assert_eq!(tracer.losses().expect("root"), []);
    println!("{written} records of the demo server in {path}");
}
