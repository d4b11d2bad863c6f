//! Threads of the blocking pool, `block_in_place`, runtimes in runtimes: who is what.
//!
//! In: a program that times its closures and its calls of `block_on`. Out: a span for
//! each, on its thread, around the program's own clock reads. Never: a tolerance.

use std::{collections::BTreeMap, fs, path::Path};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, output_dir, require_root,
    truth::{self, TrueTask},
};

/// A run as the program timed it.
#[derive(Clone, Debug)]
struct Run {
    what: String,
    id: u64,
    tid: u64,
    span_ns: [u64; 2],
}

struct Recorded {
    tasks: Vec<TrueTask>,
    runs: Vec<Run>,
    facts: Facts,
}

impl Recorded {
    fn of(build: Build) -> Self {
        require_root();
        let output = output_dir();
        let counted = output.path().join("truth.tsv");
        let mut program = TestProgram::start_with("flavours", build, |command| {
            command.arg(&counted);
        });
        let tracer = Attach::to(program.pid(), output.path()).attached();
        program.ask("go", "done");
        tracer.interrupt().expect(0);
        assert!(program.exit().success());
        let facts = Facts::of_dir(output.path());
        facts.expect_lossless().expect_at_rest();
        Self {
            tasks: truth::read(&counted),
            runs: runs(&counted.with_extension("runs")),
            facts,
        }
    }

    fn runs(&self, what: &str) -> Vec<&Run> {
        let runs = self.runs.iter().filter(|run| run.what == what);
        runs.collect()
    }

    /// Each task as it was, but that hosts of a runtime are told with their worker.
    fn expect_tasks(&self, exact_spawns: bool) -> &Self {
        let (hosts, others): (Vec<_>, Vec<_>) = self
            .tasks
            .iter()
            .cloned()
            .partition(|task| task.kind == "host");
        assert_eq!(hosts.len(), 3);
        truth::expect_told(&others, &self.facts, exact_spawns);
        self
    }

    /// One span for each closure, around what the program timed in it, and no other but
    /// those of workers' loops.
    fn expect_closures(&self) -> &Self {
        let mut told = BTreeMap::new();
        for closure in &self.facts.closures {
            assert!(told.insert(closure.task, closure).is_none(), "{closure:?}");
        }
        let (plain, hosts) = (self.runs("closure"), self.runs("host"));
        assert_eq!((plain.len(), hosts.len()), (3, 3));
        for run in plain.iter().chain(&hosts) {
            let closure = told.remove(&run.id).expect("it is told");
            assert_eq!(closure.tid, run.tid, "{run:?}");
            assert!(
                surrounds(closure.run_ns, run.span_ns),
                "{run:?} {closure:?}"
            );
            assert_eq!(closure.worker.is_some(), run.what == "host", "{run:?}");
        }
        assert!(told.values().all(|closure| closure.worker.is_some()));
        self
    }

    /// One span for each call of `block_on`, within what the program timed around it
    /// and around what it timed inside, also where it panicked; none that was not.
    fn expect_block_ons(&self) -> &Self {
        let absent = self.facts.metadata.get("dial9-bpf.absent.block-on");
        assert_eq!(absent, None);
        assert_eq!(self.told_block_ons(), self.calls().len());
        for run in self.runs("inside") {
            let around =
                |told: &&(u64, [u64; 2])| told.0 == run.tid && surrounds(told.1, run.span_ns);
            let spans = self.facts.block_ons.iter().filter(around).count();
            assert_eq!(spans, 1, "{run:?}");
        }
        self
    }

    /// The same, but that functions with a computed jump, as inlined state machines
    /// have, may be left out, and are said to be.
    fn expect_some_block_ons(&self) -> &Self {
        let (told, all) = (self.told_block_ons(), self.calls().len());
        let absent = self.facts.metadata.get("dial9-bpf.absent.block-on");
        assert_eq!(told < all, absent.is_some(), "{told} of {all}: {absent:?}");
        assert!(told > 0);
        self
    }

    fn calls(&self) -> Vec<&Run> {
        let panicked = self.runs("panicked");
        let calls = [self.runs("block-on"), panicked.clone()].concat();
        assert_eq!(
            (calls.len(), panicked.len(), self.runs("inside").len()),
            (11, 1, 8)
        );
        calls
    }

    /// Spans, each of which is of another call.
    fn told_block_ons(&self) -> usize {
        let (calls, told) = (self.calls(), &self.facts.block_ons);
        let spans_of = |call: &&Run| {
            let within =
                |told: &&(u64, [u64; 2])| told.0 == call.tid && surrounds(call.span_ns, told.1);
            told.iter().filter(within).count()
        };
        let spans: Vec<usize> = calls.iter().map(spans_of).collect();
        assert!(spans.iter().all(|&spans| spans <= 1), "{told:?} {calls:?}");
        assert_eq!(
            spans.iter().sum::<usize>(),
            told.len(),
            "{told:?} {calls:?}"
        );
        told.len()
    }

    /// What a closure wakes is woken by no worker, whatever its thread was before.
    fn expect_wakes_from_outside(&self) -> &Self {
        let woken = self.runs("woken");
        assert_eq!(woken.len(), 3);
        for run in woken {
            assert_eq!(self.facts.wakes_from_outside.get(&run.id), Some(&1));
        }
        self
    }
}

fn surrounds(outer: [u64; 2], inner: [u64; 2]) -> bool {
    outer[0] <= inner[0] && inner[1] <= outer[1]
}

fn runs(path: &Path) -> Vec<Run> {
    let text = fs::read_to_string(path).expect("it is written");
    let parse = |line: &str| {
        let (what, numbers) = line.split_once('\t').expect("a tab");
        let mut numbers = numbers
            .split('\t')
            .map(|number| number.parse().expect("a number"));
        let [id, tid, begin_ns, end_ns] = [(); 4].map(|()| numbers.next().expect("four numbers"));
        Run {
            what: what.to_owned(),
            id,
            tid,
            span_ns: [begin_ns, end_ns],
        }
    };
    text.lines().map(parse).collect()
}

#[test]
fn of_a_plain_build() {
    Recorded::of(Build::Plain)
        .expect_tasks(true)
        .expect_closures()
        .expect_wakes_from_outside()
        .expect_block_ons();
}

#[test]
fn of_a_merged_build() {
    Recorded::of(Build::Merged)
        .expect_tasks(true)
        .expect_closures()
        .expect_wakes_from_outside()
        .expect_some_block_ons();
}

#[test]
fn of_a_stripped_build() {
    let recorded = Recorded::of(Build::Stripped);
    recorded
        .expect_tasks(false)
        .expect_closures()
        .expect_wakes_from_outside();
    let Facts {
        metadata,
        block_ons,
        ..
    } = &recorded.facts;
    assert_eq!(metadata["dial9-bpf.absent.block-on"], "no symbol table");
    assert_eq!(block_ons, &[]);
}
