//! Older ways to attach record the same.
//!
//! In: the program that counts; the links and programs of older kernels.
//! Out: balanced counts of hits. Never: a look at which way is faster.

use std::collections::BTreeMap;

use dial9_bpf_attach::{Abilities, LinkKind, Options, Tracer, rings::Drained};
use dial9_bpf_integration::{Build, TestProgram, driven::scanned, output_dir, require_root, truth};
use dial9_bpf_trace::decode::Record;

/// Room for every record of the program that counts.
const RING_BYTES: u64 = 512 << 20;

#[test]
fn perf_links_record_every_hit() {
    records_every_hit(|abilities| abilities, Some(LinkKind::Perf));
}

#[test]
fn programs_that_cannot_sleep_record_every_hit() {
    records_every_hit(Abilities::without_sleeping, None);
}

fn records_every_hit(restrict: fn(Abilities) -> Abilities, link: Option<LinkKind>) {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = TestProgram::start_with("truth", Build::Plain, |command| {
        command.arg(&counted);
    });
    let (target, objects) = scanned(program.pid());
    let abilities = restrict(Abilities::probe(link).expect("the kernel can do it"));
    let options = Options::bare(RING_BYTES, abilities);
    let mut tracer = Tracer::load(&target, options).expect("the programs load");
    tracer
        .attach(&target, &objects)
        .expect("it can be attached to");
    if let Some(link) = link {
        assert_eq!(tracer.link_kind(), link);
    }
    program.ask("go", "done");
    tracer.detach();
    assert!(program.exit().success());

    let mut hits = BTreeMap::<&str, u64>::new();
    let drained = tracer.rings().drain(usize::MAX, |_, bytes| {
        let record = Record::decode(bytes).expect("a record");
        let kind = record.header().kind.name().expect("it was decoded");
        *hits.entry(kind).or_default() += 1;
    });
    assert_eq!(drained, Drained::All);
    let losses = tracer.losses().expect("they can be read");
    assert_eq!(losses, [], "{hits:?}");
    let truth = truth::read(&counted);
    let entries: u64 = truth.iter().map(|task| task.entries).sum();
    let wakes: u64 = truth.iter().map(|task| task.wakes).sum();
    assert_eq!(hits["poll-start"], entries, "{hits:?}");
    assert_eq!(hits["wake"], wakes, "{hits:?}");
}
