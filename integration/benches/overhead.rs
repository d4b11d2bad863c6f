//! What a hit of ours adds to the target, against what an empty program adds.
//!
//! `cargo xtask bench` runs it, as root. One thread of a real Tokio program
//! polls one task over and over (`testprogs/src/bin/cycle.rs`) on CPU 1, and
//! says how much CPU time that took; we sit on CPU 0. In every round every
//! variant is attached once, in shuffled order: nothing, plain empty programs,
//! ours. Figures are medians over the rounds of what the variant added to the
//! unprobed cycle of the same round.
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::time::Instant;

use dial9_bpf_attach::{Object, Target, Tracer, baseline::Baseline};
use dial9_bpf_integration::{
    Attach, Build, TestProgram,
    demo::Demo,
    driven::{loaded, scanned},
    output_dir, require_root, rounds,
};
use dial9_bpf_probes::plan::{Plan, Probe, Site};
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_setaffinity},
};

/// Rounds when none are asked for.
const ROUNDS: usize = 40;
/// Cycles that are timed at a time.
const CYCLES: &str = "20000";
/// Cycles before, to warm the caches.
const WARM_UP: &str = "2000";
/// Attachments to the demo server.
const ATTACHMENTS: usize = 7;
/// Room for the records of every cycle of a run, bytes.
const RING_BYTES: u64 = 32 << 20;
/// CPU of the traced program.
const TARGET_CPU: usize = 1;

/// What is attached while the cycles run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Unprobed,
    Empty(&'static [Probe]),
    Ours(&'static [Probe]),
    /// Park programs at the sites of poll end: another record without a read.
    OursPark,
    /// The command itself, with its consumer.
    Command,
}

const START: &[Probe] = &[Probe::PollStart];
const END: &[Probe] = &[Probe::PollEnd];
const PAIR: &[Probe] = &[Probe::PollStart, Probe::PollEnd];
const WAKE: &[Probe] = &[Probe::Wake];
const CYCLE: &[Probe] = &[Probe::PollStart, Probe::PollEnd, Probe::Wake];

const VARIANTS: [Variant; 13] = [
    Variant::Unprobed,
    Variant::Empty(START),
    Variant::Ours(START),
    Variant::Empty(END),
    Variant::Ours(END),
    Variant::OursPark,
    Variant::Empty(PAIR),
    Variant::Ours(PAIR),
    Variant::Empty(WAKE),
    Variant::Ours(WAKE),
    Variant::Empty(CYCLE),
    Variant::Ours(CYCLE),
    Variant::Command,
];

fn main() {
    require_root();
    let rounds = rounds(ROUNDS);
    pin(None, 0);
    let mut bench = Bench::start();
    let added = bench.run(rounds);
    print_prices(&added, rounds);
    print_attachments();
}

struct Bench {
    program: TestProgram,
    target: Target,
    tracer: Tracer,
    plan: Plan,
}

impl Bench {
    fn start() -> Self {
        let program = TestProgram::start("cycle", Build::Plain);
        for thread in threads(program.pid()) {
            pin(Some(thread), TARGET_CPU);
        }
        let (target, [object]) = scanned(program.pid());
        let tracer = loaded(&target, RING_BYTES);
        Self {
            program,
            target,
            tracer,
            plan: object.plan().clone(),
        }
    }

    /// What each variant added to a cycle, ns, by round.
    fn run(&mut self, rounds: usize) -> Vec<(Variant, Vec<f64>)> {
        let mut added: Vec<(Variant, Vec<f64>)> = VARIANTS
            .iter()
            .map(|variant| (*variant, Vec::new()))
            .collect();
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..rounds {
            let mut order: Vec<usize> = (0..VARIANTS.len()).collect();
            shuffle(&mut order, &mut seed);
            let mut costs = [0.0; VARIANTS.len()];
            for index in order {
                costs[index] = self.cycle_ns(VARIANTS[index]);
            }
            for ((variant, added), cost) in added.iter_mut().zip(costs) {
                let base = if *variant == Variant::Unprobed {
                    0.0
                } else {
                    costs[0]
                };
                added.push(cost - base);
            }
        }
        added
    }

    fn cycle_ns(&mut self, variant: Variant) -> f64 {
        let sites = |probes: &[Probe]| -> Vec<Site> {
            let sites = self.plan.sites.iter();
            sites
                .filter(|site| probes.contains(&site.probe))
                .cloned()
                .collect()
        };
        match variant {
            Variant::Unprobed => self.timed(),
            Variant::Empty(probes) => {
                let baseline =
                    Baseline::attach(&self.target, &self.object(sites(probes))).expect("root");
                let ns = self.timed();
                drop(baseline);
                ns
            }
            Variant::Ours(probes) => self.ours(sites(probes)),
            Variant::OursPark => {
                let mut sites = sites(END);
                for site in &mut sites {
                    site.probe = Probe::Park;
                }
                self.ours(sites)
            }
            Variant::Command => {
                let output = output_dir();
                let command = Attach::to(self.target.pid(), output.path()).attached();
                let ns = self.timed();
                command.interrupt().expect(0);
                ns
            }
        }
    }

    /// Ours at `sites`; the rings have room for everything, and are emptied
    /// afterwards.
    fn ours(&mut self, sites: Vec<Site>) -> f64 {
        let object = self.object(sites);
        self.tracer
            .attach(&self.target, &[object])
            .expect("it still runs");
        let ns = self.timed();
        self.tracer.detach();
        let mut records = 0u64;
        self.tracer.rings().drain(usize::MAX, |_, _| records += 1);
        assert!(records > 0, "nothing was recorded");
        assert_eq!(
            self.tracer.losses().expect("root"),
            [],
            "a full ring is cheaper"
        );
        ns
    }

    /// The executable with these sites alone.
    fn object(&self, sites: Vec<Site>) -> Object {
        let plan = Plan {
            sites,
            ..self.plan.clone()
        };
        Object::of_executable(&self.target, plan).expect("it still runs")
    }

    fn timed(&mut self) -> f64 {
        self.program.say(WARM_UP);
        self.program.hear();
        self.program.say(CYCLES);
        let ns: f64 = self.program.hear().parse().expect("a number");
        ns / CYCLES.parse::<f64>().expect("a number")
    }
}

fn print_prices(added: &[(Variant, Vec<f64>)], rounds: usize) {
    let of = |variant: Variant| {
        let found = added.iter().find(|(of, _)| *of == variant);
        median(&found.expect("it was run").1)
    };
    let unprobed = of(Variant::Unprobed);
    println!(
        "\na poll cycle of one worker, {CYCLES} cycles a run, {rounds} interleaved rounds, medians"
    );
    println!("unprobed: {unprobed:.0} ns a cycle\n");
    println!(
        "{:<44} {:>9} {:>9} {:>7} {:>7}",
        "added to a cycle, ns", "empty", "ours", "ratio", "limit"
    );
    let row = |name: &str, empty: f64, ours: f64, limit: &str| {
        println!(
            "{name:<44} {empty:>9.0} {ours:>9.0} {:>7.3} {limit:>7}",
            ours / empty
        );
    };
    let (start, end) = (of(Variant::Empty(START)), of(Variant::Empty(END)));
    row(
        "poll start (the task is known)",
        start,
        of(Variant::Ours(START)),
        "1.25",
    );
    row("poll end (no read)", end, of(Variant::Ours(END)), "1.15");
    row(
        "park, at the site of poll end (no read)",
        end,
        of(Variant::OursPark),
        "1.15",
    );
    row(
        "start and end",
        of(Variant::Empty(PAIR)),
        of(Variant::Ours(PAIR)),
        "1.20",
    );
    row(
        "wake (the task is known)",
        of(Variant::Empty(WAKE)),
        of(Variant::Ours(WAKE)),
        "-",
    );
    let (cycle, ours) = (of(Variant::Empty(CYCLE)), of(Variant::Ours(CYCLE)));
    row("start, end and wake", cycle, ours, "-");
    let command = of(Variant::Command);
    println!(
        "\nwith the command's consumer running: {command:.0} ns, {:.3} of {ours:.0} ns without (limit 1.05)",
        command / ours
    );
}

/// Attaching to and detaching from the demo server's sites.
fn print_attachments() {
    let demo = Demo::serve();
    let (target, objects) = scanned(demo.pid());
    let (mut attach, mut detach) = (Vec::new(), Vec::new());
    for _ in 0..ATTACHMENTS {
        let mut tracer = loaded(&target, 1 << 20);
        let began = Instant::now();
        tracer.attach(&target, &objects).expect("it still runs");
        attach.push(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        tracer.detach();
        detach.push(began.elapsed().as_secs_f64() * 1e3);
    }
    println!(
        "\n{} sites of the demo server, median of {ATTACHMENTS}: attach {:.0} ms, detach {:.0} ms",
        objects[0].plan().sites.len(),
        median(&attach),
        median(&detach)
    );
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn shuffle(order: &mut [usize], seed: &mut u64) {
    for index in (1..order.len()).rev() {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        order.swap(
            index,
            usize::try_from(*seed % (index as u64 + 1)).expect("small"),
        );
    }
}

/// Binds a thread, or this one, to a CPU.
fn pin(thread: Option<Pid>, cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(thread, &cpus).expect("the CPU is there");
}

fn threads(pid: u32) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    tids.filter_map(Pid::from_raw).collect()
}
