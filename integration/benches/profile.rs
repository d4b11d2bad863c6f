//! What a thread that uses its CPU pays for the profile.
//!
//! `cargo xtask bench --only cpu` runs it, as root. A thread with a deep stack, of which
//! each sample copies all 32 KiB, does a fixed piece of work, which is timed by the thread's
//! CPU clock: interrupts are in it, unless the kernel counts them apart
//! (`CONFIG_IRQ_TIME_ACCOUNTING`). In every round it does so
//! without a profile, with one at 99 Hz, and with one at 1,000 Hz, for the price of a sample;
//! another thread unwinds meanwhile, as a recorder does. Figures are medians over the rounds
//! of what was added to the bare one of the same round.
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::{
    fs::File,
    hint::black_box,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use dial9_bpf_attach::{Abilities, Mapped, Options, Target, Tracer};
use dial9_bpf_integration::{require_root, rounds};
use dial9_bpf_trace::decode::{CopiedStack, UserStack};
use dial9_bpf_unwind::{Mapping, Module, Registers, Unwinder, Unwound};
use rustix::time::{ClockId, clock_gettime};

/// Rounds when none are asked for.
const ROUNDS: usize = 40;
/// Turns that are timed: about 0.3 s.
const TURNS: u64 = 200_000_000;
/// Frames of the thread, of more than 512 bytes each.
const DEPTH: u32 = 100;
/// Samples per second of each variant; none is the first.
const VARIANTS: [Option<u32>; 3] = [None, Some(99), Some(1000)];
/// Room for records, bytes.
const RING_BYTES: u64 = 1 << 20;

/// What was unwound.
#[derive(Default)]
struct Taken {
    stacks: u32,
    complete: u32,
    bytes: u64,
    took: Duration,
}

fn main() {
    require_root();
    let rounds = rounds(ROUNDS);
    let mut unwinder = own_unwinder();
    let mut times = [const { Vec::new() }; VARIANTS.len()];
    let (mut samples, mut all) = (Vec::new(), Taken::default());
    for round in 0..rounds {
        for index in 0..VARIANTS.len() {
            let index = (index + round) % VARIANTS.len();
            let (seconds, taken) = with(VARIANTS[index], &mut unwinder);
            times[index].push(seconds);
            if index == 2 {
                samples.push(f64::from(taken.stacks));
            }
            all.stacks += taken.stacks;
            all.complete += taken.complete;
            all.bytes += taken.bytes;
            all.took += taken.took;
        }
    }
    let [bare, at_99, at_1000] = times;
    let paired = |times: &[f64]| -> Vec<f64> {
        let added = times.iter().zip(&bare).map(|(time, bare)| time - bare);
        added.collect()
    };
    let percent = paired(&at_99).into_iter().zip(&bare);
    let percent = median(percent.map(|(added, bare)| added * 100.0 / bare).collect());
    let price = paired(&at_1000).into_iter().zip(&samples);
    let price = median(
        price
            .map(|(added, samples)| added * 1e6 / samples)
            .collect(),
    );
    let stacks = f64::from(all.stacks);
    println!("\nmedian of {rounds} rounds\n");
    println!("a thread at 99 Hz pays               {percent:>7.2} %   (limit 1)");
    println!("a sample costs it                    {price:>7.1} us");
    println!(
        "  that is at 99 Hz                   {:>7.3} %",
        price * 99.0 / 1e4
    );
    let unwinding = all.took.as_secs_f64() * 1e6 / stacks;
    println!("unwinding one costs the recorder     {unwinding:>7.1} us");
    let bytes = kib(all.bytes) / stacks;
    println!("a stack has                          {bytes:>7.1} KiB");
    println!(
        "complete                             {:>7} of {}",
        all.complete, all.stacks
    );
}

#[expect(clippy::cast_precision_loss, reason = "a mean")]
fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

/// Seconds of the work under a profile, and what that took.
fn with(hz: Option<u32>, unwinder: &mut Unwinder) -> (f64, Taken) {
    let is_over = Arc::new(AtomicBool::new(false));
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    let over = Arc::clone(&is_over);
    let worker = thread::spawn(move || {
        begun.recv().expect("it is begun");
        let seconds = deep(DEPTH);
        over.store(true, Relaxed);
        seconds
    });
    let mut taken = Taken::default();
    let target = Target::open(process::id()).expect("we run");
    let options = Options {
        profile_hz: hz,
        ..Options::bare(
            RING_BYTES,
            Abilities::probe(None).expect("the kernel can do it"),
        )
    };
    let mut tracer = Tracer::load(&target, options).expect("the programs load");
    assert_eq!(tracer.profile_hz(), hz);
    tracer.attach(&target, &[]).expect("nothing to refuse");
    begin.send(()).expect("it waits");
    while !is_over.load(Relaxed) {
        thread::sleep(Duration::from_millis(5));
        tracer.drain_stacks(|bytes| take(bytes, unwinder, &mut taken));
    }
    let losses = tracer.losses().expect("they can be read");
    assert!(losses.is_empty(), "a lost sample costs less: {losses:?}");
    (worker.join().expect("it does not panic"), taken)
}

fn take(bytes: &[u8], unwinder: &mut Unwinder, taken: &mut Taken) {
    let stack = CopiedStack::decode(bytes).expect("it is one");
    let Some(UserStack {
        ip, sp, bp, bytes, ..
    }) = stack.user
    else {
        return;
    };
    let began = Instant::now();
    let mut frames = Vec::with_capacity(1 << 10);
    let unwound = unwinder.unwind(Registers { ip, sp, bp }, bytes, 1 << 10, &mut frames);
    taken.took += began.elapsed();
    taken.stacks += 1;
    taken.complete += u32::from(unwound == Unwound::Complete);
    taken.bytes += bytes.len() as u64;
}

/// Works with many frames above.
#[inline(never)]
fn deep(depth: u32) -> f64 {
    let room = black_box([0_u8; 512]);
    let seconds = if depth == 0 {
        let before = thread_cpu_s();
        work();
        thread_cpu_s() - before
    } else {
        deep(black_box(depth - 1))
    };
    black_box(room);
    seconds
}

fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).expect("ns"),
    )
    .as_secs_f64()
}

#[inline(never)]
fn work() {
    let mut value = black_box(1_u64);
    for _ in 0..TURNS {
        value = value.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x55;
    }
    black_box(value);
}

fn own_unwinder() -> Unwinder {
    let mut modules = Vec::new();
    for mapped in Mapped::all(process::id()).expect("ours") {
        let mapping = |(addresses, offset)| Mapping { addresses, offset };
        let mappings: Vec<Mapping> = mapped.code().map(mapping).collect();
        let file: File = mapped.open().expect("it is there");
        let read = Module::of_file(&file, &mappings);
        modules.extend(read.expect("it has tables").into_iter().map(Arc::new));
    }
    Unwinder::of(modules)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
