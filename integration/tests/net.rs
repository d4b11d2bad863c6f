//! Accept queues: how full they get, what arrives, what is dropped.
//!
//! In: a program that knows how many connections each of its listeners gets, in a network
//! namespace of its own. Out: the same numbers, but for runs of the kernel's program that
//! the kernel says to have left out. Never: a connection of another listener.

use std::{collections::BTreeMap, fs, path::Path};

use dial9_bpf_integration::{
    Attach, Build, Facts, Outcome, TestProgram, output_dir, require_root, segment::QueueFacts,
    target_dir::test_program,
};

/// The program's, where the queue is to get full and where not. Beyond it the kernel drops
/// requests (include/net/sock.h, `sk_acceptq_is_full`).
const BACKLOGS: [u64; 2] = [128, 1_024];

/// A line of the program's own account.
#[derive(Debug)]
struct Known {
    kind: String,
    inode: u64,
    address: String,
    arrived: u64,
    peak: u64,
    drops: u64,
}

impl Known {
    fn of(line: &str) -> Self {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, inode, ip, port, arrived, peak, drops] = fields[..] else {
            panic!("{line:?}")
        };
        let number = |text: &str| text.parse().expect("a number");
        Self {
            kind: kind.to_owned(),
            inode: number(inode),
            address: format!("{ip} {port}"),
            arrived: number(arrived),
            peak: number(peak),
            drops: number(drops),
        }
    }

    /// How many arrivals the trace, which has so many, does not have: the kernel may have
    /// left runs of the program out, and tells how many.
    fn untold(&self, told: u64) -> u64 {
        assert!(told <= self.arrived, "{told} told of {self:?}");
        self.arrived - told
    }

    fn limit(&self) -> u64 {
        BACKLOGS[usize::from(!self.kind.starts_with("full"))]
    }

    /// What the trace has of it.
    fn events<'a>(&self, facts: &'a Facts) -> Vec<&'a QueueFacts> {
        let is_its = |queue: &&QueueFacts| queue.inode == self.inode;
        let found: Vec<_> = facts.queues.iter().filter(is_its).collect();
        assert!(!found.is_empty(), "nothing of {self:?}");
        for queue in &found {
            assert_eq!((&queue.address, queue.limit), (&self.address, self.limit()));
        }
        found
    }
}

/// Connections of each of four clients where a test is to be short.
const FEW: &str = "250";

/// Where the program is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ours,
    Its,
}

fn start(namespace: Namespace, account: &Path, each: Option<&str>) -> TestProgram {
    if namespace == Namespace::Ours {
        return TestProgram::start_with("listens", Build::Plain, |command| {
            command.arg(account).args(each);
        });
    }
    let path = test_program("listens", Build::Plain).expect("it builds");
    TestProgram::start_at(Path::new("unshare"), |command| {
        let script = "ip link set lo up && exec \"$0\" \"$@\"";
        command.args(["--net", "sh", "-c", script]);
        command.arg(&path).arg(account).args(each);
    })
}

fn recorded(
    namespace: Namespace,
    output: &Path,
    each: Option<&str>,
) -> (Vec<Known>, Facts, Outcome) {
    require_root();
    let account = output.join("account.tsv");
    let traces = output.join("traces");
    let mut program = start(namespace, &account, each);
    let tracer = Attach::to(program.pid(), &traces)
        .arg("--signals")
        .arg("net")
        .attached();
    program.ask("go", "done");
    program.say("exit");
    assert!(program.wait().success());
    let outcome = tracer.outcome();
    outcome.expect(0);
    let account = fs::read_to_string(account).expect("it is written");
    let known = account.lines().map(Known::of).collect();
    (known, Facts::of_dir(&traces), outcome)
}

/// Arrivals are what the program has connected, the fullest and the drops what the kernel
/// counts; in the end nothing waits. How many arrivals are not told.
fn expect_full(namespace: Namespace, known: &Known, facts: &Facts) -> u64 {
    let events = known.events(facts);
    let last = events.last().expect("there is one");
    assert_eq!(known.arrived, BACKLOGS[0] + 1, "{known:?}");
    let untold = known.untold(last.arrivals);
    assert!(last.drops > 0 && last.drops <= known.drops, "{known:?}");
    // The kernel counts the namespace's: in ours are others', too.
    assert!(namespace == Namespace::Ours || last.drops == known.drops);
    let peak = events.iter().map(|queue| queue.pending).max();
    let lowest = known.peak - untold;
    assert!(
        peak.is_some_and(|peak| (lowest..=known.peak).contains(&peak)),
        "{known:?} {peak:?}"
    );
    assert_eq!((last.why.as_str(), last.pending), ("closed", 0));
    // Nobody came after the last was accepted.
    let is_read = |queue: &&&QueueFacts| queue.why == "reading" && queue.pending == 0;
    let read = events.iter().rev().find(is_read).expect("it was read");
    assert_eq!(read.arrivals, last.arrivals);
    untold
}

/// At most three from the first of 10 ms on, and no number that cannot be.
fn expect_bounded(known: &Known, events: &[&QueueFacts]) {
    let (_, open) = events.split_last().expect("the last is its close");
    // Of the first three one at least begins an interval, and so does one of the last.
    for six in open.windows(6) {
        assert!(six[5].at_ns - six[0].at_ns >= 10_000_000, "{six:?}");
    }
    for two in events.windows(2) {
        assert!(two[0].arrivals <= two[1].arrivals, "{two:?}");
        assert!(two[0].at_ns <= two[1].at_ns, "{two:?}");
    }
    for queue in events {
        assert!(queue.pending <= known.limit() + 2, "{known:?} {queue:?}");
    }
}

/// Each arrival, each accept, and nothing waits in the end. How many are not told.
fn expect_fast(known: &Known, facts: &Facts) -> u64 {
    let events = known.events(facts);
    let last = events.last().expect("there is one");
    assert_eq!((last.why.as_str(), last.pending), ("closed", 0));
    known.untold(last.arrivals)
}

/// Of some it cannot be told to which of the four they came; none is another one's. How
/// many are not told.
fn expect_shared(shared: &[&Known], facts: &Facts, outcome: &Outcome) -> u64 {
    let arrivals = |known: &Known| known.events(facts).last().expect("one").arrivals;
    for known in shared {
        assert!(arrivals(known) <= known.arrived, "{known:?}");
    }
    let told: u64 = shared.iter().map(|known| arrivals(known)).sum();
    let came: u64 = shared.iter().map(|known| known.arrived).sum();
    let told = told + unresolved(outcome);
    assert!(told <= came, "{told} of {came}");
    came - told
}

fn expect_what_arrives(namespace: Namespace, each: Option<&str>) {
    let output = output_dir();
    let (known, facts, outcome) = recorded(namespace, output.path(), each);
    facts.expect_lossless();
    let mut kinds = BTreeMap::<&str, Vec<&Known>>::new();
    for known in &known {
        kinds.entry(&known.kind).or_default().push(known);
        expect_bounded(known, &known.events(&facts));
    }
    let full = ["full", "full-6"].map(|kind| expect_full(namespace, kinds[kind][0], &facts));
    let fast = ["fast", "uring", "uring-multi"].map(|kind| expect_fast(kinds[kind][0], &facts));
    let shared = expect_shared(&kinds["shared"], &facts, &outcome);
    let untold = full.iter().chain(&fast).sum::<u64>() + shared;
    let left_out = summed(&outcome, "programs not run");
    assert!(untold <= left_out, "{untold}, not {left_out}");
    let inodes: Vec<u64> = known.iter().map(|known| known.inode).collect();
    let strange = facts
        .queues
        .iter()
        .find(|queue| !inodes.contains(&queue.inode));
    assert_eq!(strange, None);
}

#[test]
fn what_arrives_at_each_listener_is_counted() {
    expect_what_arrives(Namespace::Ours, None);
}

#[test]
fn what_arrives_in_another_network_namespace_is_counted() {
    expect_what_arrives(Namespace::Its, None);
}

/// What an emulated machine does in its time (`cargo xtask kernels`).
#[test]
fn a_few_arrivals_are_counted() {
    expect_what_arrives(Namespace::Its, Some(FEW));
}

/// What the summary says of arrivals at one of several.
fn unresolved(outcome: &Outcome) -> u64 {
    summed(outcome, "arrivals at unknown")
}

/// A count of the summary's; 0 where it says nothing of it.
fn summed(outcome: &Outcome, name: &str) -> u64 {
    let mut lines = outcome.stdout.lines().map(str::trim);
    let count = lines.find_map(|line| line.strip_prefix(name));
    count.map_or(0, |count| {
        count.trim().replace(',', "").parse().expect("a number")
    })
}
