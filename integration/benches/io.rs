//! What a block I/O pays for the programs at its tracepoints, and a sync for its own.
//!
//! `cargo xtask bench --only io` runs it, as root. A thread of this process reads 4 KiB at
//! random, past the page cache, and writes 4 KiB each followed by `fdatasync`. In every
//! round every variant is attached once, in turns: nothing, empty programs at the
//! tracepoints, ours for another process, ours for this one. Of a run it takes the median
//! time of an I/O, since a disk's mean is that of its worst, and the thread's CPU time, in
//! which interrupts are unless the kernel counts them apart. Figures are medians over the
//! rounds of what a variant added to the bare one of the same round.
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    process,
    time::{Duration, Instant},
};

use dial9_bpf_attach::{Abilities, Options, Target, Tracer, baseline::TracepointBaseline};
use dial9_bpf_integration::{
    Build, TestProgram, block_io::DiskFile, output_dir, require_root, rounds,
};
use rustix::{
    fs::OFlags,
    time::{ClockId, clock_gettime},
};

/// Rounds when none are asked for.
const ROUNDS: usize = 40;
/// Size of the file.
const FILE_BYTES: u64 = 16 << 20;
/// Of an I/O.
const BLOCK: usize = 4096;
/// Reads of a run.
const READS: u64 = 2_000;
/// Writes of a run, each with its sync.
const WRITES: u64 = 300;
/// Room for the records of a run, bytes.
const RING_BYTES: u64 = 8 << 20;
/// What an I/O passes, but for merges.
const TRACEPOINTS: [&str; 4] = [
    "block_bio_queue",
    "block_rq_issue",
    "block_rq_complete",
    "block_bio_complete",
];
const VARIANTS: [Variant; 4] = [
    Variant::Bare,
    Variant::Empty,
    Variant::Untraced,
    Variant::Traced,
];

/// What is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Bare,
    /// Empty programs.
    Empty,
    /// Ours, and the I/O is not the target's.
    Untraced,
    /// Ours, and it is.
    Traced,
}

/// ns of a read and of a write with its sync: of time, and of the thread's CPU.
type Costs = [f64; 4];

#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

fn main() {
    require_root();
    let rounds = rounds(ROUNDS);
    let dir = output_dir();
    let path = DiskFile::new(dir.path().join("file"), FILE_BYTES).path;
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        let flags = i32::try_from(flags.bits()).expect("flags");
        let file = options.read(true).write(true).custom_flags(flags);
        file.open(&path).expect("it is there")
    };
    let files = [OFlags::DIRECT, OFlags::empty()].map(open);
    let other = TestProgram::start("idle_std", Build::Plain);
    let mut costs = [const { Vec::new() }; VARIANTS.len()];
    let mut lost = 0;
    for round in 0..rounds {
        let mut made = [Costs::default(); VARIANTS.len()];
        for index in 0..VARIANTS.len() {
            let index = (index + round) % VARIANTS.len();
            made[index] = with(VARIANTS[index], other.pid(), &files, &mut lost);
        }
        for (costs, cost) in costs.iter_mut().zip(made) {
            let added = |at: usize| cost[at] - made[0][at];
            costs.push([0, 1, 2, 3].map(added));
        }
        costs[0][round] = made[0];
    }
    assert!(other.exit().success());
    print(&costs, rounds, lost);
}

fn print(costs: &[Vec<Costs>; VARIANTS.len()], rounds: usize, lost: u64) {
    println!("\nns, median of {rounds}; the bare one, and what is added to it\n");
    println!("                             direct read        write, fdatasync");
    println!("                             time     cpu          time     cpu");
    let names = [
        "nothing attached",
        "empty programs",
        "ours, of another process",
        "ours, of the target",
    ];
    for (name, costs) in names.into_iter().zip(costs) {
        let of = |at: usize| median(costs.iter().map(|of| of[at]).collect());
        println!(
            "{name:<25} {:>7.0} {:>7.0}      {:>8.0} {:>7.0}",
            of(0),
            of(1),
            of(2),
            of(3)
        );
    }
    println!("\nlost or unseen: {lost} records");
}

/// What I/O costs with a variant attached.
fn with(variant: Variant, other: u32, files: &[File; 2], lost: &mut u64) -> Costs {
    match variant {
        Variant::Bare => run(files),
        Variant::Empty => {
            let _links = TracepointBaseline::attach(&TRACEPOINTS).expect("the kernel has BTF");
            run(files)
        }
        Variant::Untraced => with_ours(other, files, lost),
        Variant::Traced => with_ours(process::id(), files, lost),
    }
}

fn with_ours(pid: u32, files: &[File; 2], lost: &mut u64) -> Costs {
    let target = Target::open(pid).expect("it runs");
    let options = Options {
        io: true,
        ..Options::bare(
            RING_BYTES,
            Abilities::probe(None).expect("the kernel can do it"),
        )
    };
    let mut tracer = Tracer::load(&target, options).expect("the programs load");
    let kernel_io = tracer.kernel_io().expect("it can be read");
    assert!(kernel_io.is_some(), "block I/O is recorded");
    tracer.attach(&target, &[]).expect("nothing to refuse");
    let costs = run(files);
    let losses = tracer.losses().expect("they can be read");
    *lost += losses.iter().map(|loss| loss.lost).sum::<u64>();
    costs
}

fn run([direct, cached]: &[File; 2]) -> Costs {
    let mut block = Aligned([1; BLOCK]);
    let mut place = 1_u64;
    let mut next = || {
        place = place
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (place >> 33) * BLOCK as u64 % FILE_BYTES
    };
    let [read, read_cpu] = timed(READS, || {
        direct
            .read_exact_at(&mut block.0, next())
            .expect("it is there");
    });
    let [write, write_cpu] = timed(WRITES, || {
        cached
            .write_all_at(&block.0, next())
            .expect("there is room");
        cached.sync_data().expect("it is synced");
    });
    [read, read_cpu, write, write_cpu]
}

/// Median time and mean CPU time of one, ns.
fn timed(count: u64, mut io: impl FnMut()) -> [f64; 2] {
    for _ in 0..count / 10 {
        io();
    }
    let before = thread_cpu();
    let mut once = || {
        let begin = Instant::now();
        io();
        begin.elapsed().as_secs_f64() * 1e9
    };
    let times: Vec<f64> = (0..count).map(|_| once()).collect();
    let cpu = thread_cpu().saturating_sub(before).as_secs_f64() * 1e9;
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let cpu = cpu / count as f64;
    [median(times), cpu]
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).expect("ns"),
    )
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
