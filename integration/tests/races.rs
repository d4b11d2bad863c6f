//! Each event is told of the task that it was of, also where another task has
//! been at the same address a moment before.
//!
//! In: a program whose tasks are woken while they end, and whose runtimes come
//! and go. Out: for each task its own polls, wakes and spawn, and exactly one
//! end. Never: a tolerance.

use dial9_bpf_integration::{Attach, Build, Facts, TestProgram, output_dir, require_root, truth};

/// Spinning threads make more wakes than the default is for.
const RING_BYTES: &str = "128MiB";

#[test]
fn tasks_that_are_woken_while_they_end() {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let mut program = TestProgram::start_with("races", Build::Plain, |command| {
        command.arg(&counted);
    });
    let tracer = Attach::to(program.pid(), output.path())
        .arg("--ring-bytes")
        .arg(RING_BYTES)
        .attached();
    program.ask("go", "done");
    tracer.interrupt().expect(0);
    assert!(program.exit().success());

    let facts = Facts::of_dir(output.path());
    facts.expect_lossless().expect_at_rest();
    truth::expect_told(&truth::read(&counted), &facts, true);
}
