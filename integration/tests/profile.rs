//! Where threads are: shares of functions, stacks to the end, waits inside polls.
//!
//! In: a program that burns CPU in known functions and sleeps in a known one, by its own
//! clock. Out: the same. Never: a name from the trace: addresses are looked up in the
//! program's own symbols.

use std::{collections::HashMap, fs, ops::Range, path::Path};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, require_root, segment::StackFacts,
    target_dir::test_program,
};
use object::{Object as _, ObjectSymbol as _};

/// Often enough that chance moves a share by little.
const HZ: u64 = 997;
/// As often as an emulated machine can take stacks and unwind them.
const SLOW_HZ: u64 = 99;
/// Addresses of the kernel's half.
const KERNEL: u64 = 0x0000_8000_0000_0000;

/// What the program says of itself.
struct Account(Vec<Vec<String>>);

impl Account {
    fn of(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("it is written");
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        Self(text.lines().map(words).collect())
    }

    fn number(&self, key: &[&str]) -> u64 {
        let line = self.0.iter().find(|words| words.starts_with_words(key));
        let line = line.unwrap_or_else(|| panic!("no {key:?}"));
        line[key.len()].parse().expect("a number")
    }
}

trait StartsWithWords {
    fn starts_with_words(&self, key: &[&str]) -> bool;
}

impl StartsWithWords for Vec<String> {
    fn starts_with_words(&self, key: &[&str]) -> bool {
        key.iter().zip(self).all(|(key, word)| key == word)
    }
}

/// Where the program's functions are.
struct Functions {
    /// Run-time addresses of those whose names have a part in common, by that.
    ranges: HashMap<&'static str, Vec<Range<u64>>>,
}

impl Functions {
    const NAMES: [&'static str; 7] = [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "naps",
        "main",
        "thread_start",
    ];

    /// From the symbols of a file; the account says where one of them is.
    fn of(file: &Path, account: &Account) -> Self {
        let bytes = fs::read(file).expect("it is there");
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let mut ranges: HashMap<_, Vec<_>> = HashMap::new();
        for symbol in file.symbols().filter(|symbol| symbol.size() > 0) {
            let name = symbol.name().unwrap_or_default();
            let is_of = |part: &&&str| match **part {
                "main" => name == "main",
                "thread_start" => name.contains("thread_start"),
                part => name.contains("5burns") && name.contains(part),
            };
            if let Some(part) = Self::NAMES.iter().find(is_of) {
                let range = symbol.address()..symbol.address() + symbol.size();
                ranges.entry(*part).or_default().push(range);
            }
        }
        let at = account.number(&["at", "alpha"]);
        let bias = at.wrapping_sub(ranges["alpha"][0].start);
        for range in ranges.values_mut().flatten() {
            *range = range.start.wrapping_add(bias)..range.end.wrapping_add(bias);
        }
        Self { ranges }
    }

    fn has(&self, name: &str, address: u64) -> bool {
        let ranges = self.ranges.get(name);
        ranges.is_some_and(|ranges| ranges.iter().any(|range| range.contains(&address)))
    }

    fn is_in(&self, name: &str, stack: &StackFacts) -> bool {
        stack.frames.iter().any(|frame| self.has(name, *frame))
    }

    /// Whether the stack goes to the first function of the process or of a thread.
    fn is_whole(&self, stack: &StackFacts) -> bool {
        self.is_in("main", stack) || self.is_in("thread_start", stack)
    }
}

fn recorded(build: Build, signals: &str, hz: u64, output: &Path) -> (Account, Facts) {
    require_root();
    let account = output.join("account");
    let traces = output.join("traces");
    let mut program = TestProgram::start_with("burns", build, |command| {
        command.arg(&account);
    });
    let tracer = Attach::to(program.pid(), &traces)
        .arg("--signals")
        .arg(signals)
        .arg("--cpu-hz")
        .arg(hz.to_string())
        .attached();
    program.ask("go", "done");
    program.say("exit");
    assert!(program.wait().success());
    tracer.outcome().expect(0);
    (Account::of(&account), Facts::of_dir(&traces))
}

/// Whole, and the shares and waits that the program had.
fn judge(functions: &Functions, account: &Account, facts: &Facts, hz: u64) {
    facts.expect_lossless();
    let (waits, samples): (Vec<_>, Vec<_>) = facts.stacks.iter().partition(|stack| stack.waits);
    expect_count(&samples, account.number(&["all"]), hz);
    let whole = samples.iter().filter(|stack| functions.is_whole(stack));
    let (whole, all) = (whole.count(), samples.len());
    assert!(whole * 100 >= all * 95, "{whole} of {all} stacks are whole");
    let burners = ["alpha", "beta", "gamma", "delta"];
    let known: Vec<u64> = burners.map(|name| account.number(&["cpu", name])).to_vec();
    for (name, known_ns) in burners.iter().zip(&known) {
        let found = samples.iter().filter(|stack| functions.is_in(name, stack));
        let found = percent(found.count() as u64, all as u64);
        let known = percent(*known_ns, account.number(&["all"]));
        assert!(
            (found - known).abs() <= 5.0,
            "{name}: {found} %, not {known} %"
        );
    }
    expect_late(functions, &samples, account.number(&["late"]));
    expect_waits(functions, &waits, account.number(&["naps"]));
    for stack in &facts.stacks {
        let is_kernel = |frame: &u64| *frame >= KERNEL;
        let kernel = stack.frames.iter().take_while(|frame| is_kernel(frame));
        let user = &stack.frames[kernel.count()..];
        assert!(!user.iter().any(is_kernel), "{stack:x?}");
    }
    let counted = ["complete", "truncated", "failed", "kernel"]
        .map(|extent| facts.metadata[&format!("dial9-bpf.stacks.{extent}")].parse::<u64>());
    let counted: u64 = counted
        .into_iter()
        .map(|count| count.expect("a number"))
        .sum();
    assert_eq!(counted, facts.stacks.len() as u64);
    assert_eq!(facts.metadata["cpu.profile.frequency_hz"], hz.to_string());
}

fn expect_count(samples: &[&StackFacts], cpu_ns: u64, hz: u64) {
    let expected = cpu_ns * hz / 1_000_000_000;
    let count = samples.len() as u64;
    assert!(
        (expected * 7 / 10..=expected * 13 / 10).contains(&count),
        "{count} samples, of about {expected}"
    );
}

/// A thread that is started while it is recorded is sampled, and as often.
fn expect_late(functions: &Functions, samples: &[&StackFacts], late: u64) {
    let of_late: Vec<_> = samples.iter().filter(|stack| stack.tid == late).collect();
    let of_delta = samples
        .iter()
        .filter(|stack| functions.is_in("delta", stack));
    assert!(!of_late.is_empty());
    assert!(of_delta.clone().all(|stack| stack.tid == late));
    assert!(of_delta.count() * 10 >= of_late.len() * 9);
    assert!(of_late.iter().all(|stack| stack.worker.is_none()));
    let names: Vec<_> = samples.iter().map(|stack| stack.name.as_deref()).collect();
    assert!(names.contains(&Some("tokio-rt-worker")), "{names:?}");
}

/// Each nap is one wait in the poll, in a system call; no park is one.
fn expect_waits(functions: &Functions, waits: &[&StackFacts], naps: u64) {
    let napping = |stack: &&&StackFacts| functions.is_in("naps", stack);
    let napping: Vec<_> = waits.iter().filter(napping).collect();
    assert_eq!(napping.len() as u64, naps);
    for stack in napping {
        assert!(stack.worker.is_some() && functions.is_whole(stack));
        assert!(stack.frames[0] >= KERNEL, "{stack:x?}");
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

fn expect_shares_and_waits(hz: u64) {
    let output = output_dir();
    let (account, facts) = recorded(Build::Plain, "tokio,sched,cpu", hz, output.path());
    let program = test_program("burns", Build::Plain).expect("it is built");
    judge(&Functions::of(&program, &account), &account, &facts, hz);
}

#[test]
fn shares_waits_and_whole_stacks_of_a_default_release_build() {
    expect_shares_and_waits(HZ);
}

/// What an emulated machine does in its time (`cargo xtask kernels`).
#[test]
fn shares_and_waits_at_a_lower_rate() {
    expect_shares_and_waits(SLOW_HZ);
}

/// The same code without symbols; its twin has them.
#[test]
fn stripped_stacks_are_as_whole() {
    let output = output_dir();
    let (account, facts) = recorded(Build::Stripped, "tokio,cpu", HZ, output.path());
    let twin = test_program("burns", Build::Merged).expect("it is built");
    judge(&Functions::of(&twin, &account), &account, &facts, HZ);
}

#[test]
fn without_the_signal_there_is_none() {
    let output = output_dir();
    let (_, facts) = recorded(Build::Plain, "tokio,sched", HZ, output.path());
    facts.expect_lossless();
    assert_eq!(facts.stacks, []);
    assert_eq!(facts.metadata.get("cpu.profile.enabled"), None);
}
