//! Speed of the line from ring bytes to batches, on one core.
//!
//! `cargo bench -p dial9-bpf-trace --bench pipeline [-- --dump FILE]`: FILE is
//! a [record dump](dial9_bpf_trace::dump); without one the records are
//! synthetic. Prints what an event costs in time, bytes and allocations.
#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a bench"
)]

#[path = "../tests/counting/mod.rs"]
mod counting;
#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use std::hint::black_box;
use std::io::Write as _;

use dial9_bpf_trace::decode::Record;
use dial9_bpf_trace::dump;
use dial9_bpf_trace::encode::Encoder;
use dial9_bpf_trace::event::Event;
use dial9_bpf_trace::interpret::Interpreter;
use dial9_bpf_trace::location::{Locations, TaskType};
use dial9_bpf_trace::sort::Sorter;
use flate2::Compression;
use flate2::write::GzEncoder;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Synthetic records.
const RECORDS: usize = 10_000_000;
/// Records of one drain of the rings: 5 ms at 2 million records a second.
const ROUND: usize = 10_000;
/// Batches that are compressed, bytes.
const SAMPLE_BYTES: usize = 32 << 20;
/// Rounds before allocations count.
const WARM_UP: usize = 50;

/// One drain: the records of each CPU in turn, as bytes.
#[derive(Default)]
struct Round {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    newest_ns: u64,
}

impl Round {
    fn fill(&mut self, records: &mut impl Iterator<Item = (u32, Record)>) -> bool {
        let mut records: Vec<_> = records.take(ROUND).collect();
        records.sort_by_key(|&(cpu, _)| cpu);
        self.bytes.clear();
        self.ends.clear();
        for (_, record) in &records {
            record.encode(&mut self.bytes);
            self.ends.push(self.bytes.len());
            self.newest_ns = self.newest_ns.max(record.header().ts_ns);
        }
        !records.is_empty()
    }

    fn entries(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |&end| &self.bytes[std::mem::replace(&mut start, end)..end])
    }
}

#[derive(Default)]
struct Cost {
    records: u64,
    events: u64,
    batches: u64,
    raw_bytes: u64,
    line_ns: u64,
    stages: [u64; 3],
    gzip_ratio: f64,
    steady_allocations: u64,
    steady_batches: u64,
}

/// The stages in one pass, as the recorder runs them.
struct Line {
    sorter: Sorter,
    interpreter: Interpreter,
    encoder: Encoder,
    watermark_ns: u64,
}

impl Line {
    fn new(locations: Locations) -> Self {
        Self {
            sorter: Sorter::new(),
            interpreter: Interpreter::new(locations),
            encoder: Encoder::new(),
            watermark_ns: 0,
        }
    }

    fn run(&mut self, round: &Round, mut batch: impl FnMut(&[u8])) {
        let Self {
            sorter,
            interpreter,
            encoder,
            watermark_ns,
        } = self;
        for entry in round.entries() {
            sorter.push(Record::decode(entry).unwrap());
        }
        sorter.release(*watermark_ns, |record| {
            interpreter.record(record, &mut |event, locations| {
                if encoder.is_full() {
                    batch(encoder.cut());
                }
                encoder.event(event, locations);
            });
        });
        *watermark_ns = round.newest_ns;
    }

    /// The same, stage by stage.
    fn run_apart(&mut self, round: &Round, between: &mut Between, stages: &mut [u64; 3]) {
        let Between {
            records,
            events,
            sample,
        } = between;
        records.clear();
        events.clear();
        let begin = cpu_time();
        for entry in round.entries() {
            self.sorter.push(Record::decode(entry).unwrap());
        }
        self.sorter
            .release(self.watermark_ns, |record| records.push(*record));
        self.watermark_ns = round.newest_ns;
        let sorted = cpu_time();
        for record in &*records {
            self.interpreter
                .record(record, &mut |event, _| events.push(*event));
        }
        let interpreted = cpu_time();
        for event in &*events {
            if self.encoder.is_full() {
                let batch = self.encoder.cut();
                if sample.len() < SAMPLE_BYTES {
                    sample.extend_from_slice(batch);
                }
            }
            self.encoder.event(event, self.interpreter.locations());
        }
        stages[0] += sorted - begin;
        stages[1] += interpreted - sorted;
        stages[2] += cpu_time() - interpreted;
    }
}

#[derive(Default)]
struct Between {
    records: Vec<Record>,
    events: Vec<Event>,
    /// Batches to compress.
    sample: Vec<u8>,
}

/// CPU time of this thread, ns: other load on the machine does not count.
fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
}

fn measure(mut records: impl Iterator<Item = (u32, Record)>, types: fn() -> Locations) -> Cost {
    let mut cost = Cost::default();
    let (mut line, mut apart) = (Line::new(types()), Line::new(types()));
    let mut between = Between::default();
    let mut round = Round::default();
    let mut rounds = 0;
    while round.fill(&mut records) {
        rounds += 1;
        let allocated = counting::allocations();
        let mut batches = 0;
        let begin = cpu_time();
        line.run(&round, |batch| {
            batches += 1;
            cost.raw_bytes += black_box(batch).len() as u64;
        });
        cost.line_ns += cpu_time() - begin;
        if rounds > WARM_UP {
            cost.steady_allocations += counting::allocations() - allocated;
            cost.steady_batches += batches;
        }
        cost.batches += batches;
        apart.run_apart(&round, &mut between, &mut cost.stages);
    }
    cost.raw_bytes += line.encoder.cut().len() as u64;
    cost.batches += 1;
    between.sample.extend_from_slice(apart.encoder.cut());
    let mut gzip = GzEncoder::new(Vec::new(), Compression::new(3));
    gzip.write_all(&between.sample).unwrap();
    cost.gzip_ratio = gzip.finish().unwrap().len() as f64 / between.sample.len() as f64;
    let stats = line.interpreter.stats();
    cost.records = stats.records.hits() + stats.records.gap;
    cost.events = stats.events.total();
    cost
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let file = arguments.iter().position(|argument| argument == "--dump");
    let file = file.and_then(|at| arguments.get(at + 1));
    let cost = if let Some(file) = file {
        let bytes = std::fs::read(file).unwrap();
        let entries = dump::entries(&bytes);
        measure(
            entries.filter_map(|(cpu, bytes)| Some((cpu, Record::decode(bytes).ok()?))),
            || {
                let unnamed = |i: u64| TaskType {
                    name: None,
                    address: i * 64,
                    blocking: false,
                };
                Locations::new(&(0..8192).map(unnamed).collect::<Vec<_>>(), 0)
            },
        )
    } else {
        measure(
            synthetic::Stream::new(2, 64, 50).take(RECORDS),
            synthetic::locations,
        )
    };
    print(&cost);
}

fn print(cost: &Cost) {
    let Cost {
        records,
        events,
        batches,
        raw_bytes,
        line_ns,
        stages,
        ..
    } = cost;
    let each = |ns: &u64| *ns as f64 / *events as f64;
    let raw = *raw_bytes as f64 / *events as f64;
    println!("records              {records:>12}");
    println!("events               {events:>12}");
    println!(
        "events a second      {:>12.1} million",
        *events as f64 * 1e3 / *line_ns as f64
    );
    println!("ns an event          {:>12.1}", each(line_ns));
    for (name, time) in ["decode and sort", "interpret", "encode"]
        .iter()
        .zip(stages)
    {
        println!("  {name:<18} {:>12.1}", each(time));
    }
    println!("bytes an event       {raw:>12.2}");
    println!("  gzip, level 3      {:>12.2}", raw * cost.gzip_ratio);
    println!("batches              {batches:>12}");
    println!(
        "allocations          {:>12} in {} batches after warm-up",
        cost.steady_allocations, cost.steady_batches
    );
}
