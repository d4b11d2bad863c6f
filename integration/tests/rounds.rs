//! Attaching again and again, and to one of two.
//!
//! In: targets under load. Out: the same use of descriptors, mappings, memory
//! and kernel objects from the second round on; a bystander without a trace of
//! us. Never: a limit on time.

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, kernel::Loaded, output_dir, proc, require_root, truth, wait,
};

const ROUNDS: usize = 10;
/// What the target's allocator may differ by, KiB.
const TARGET_SLACK_KIB: u64 = 1024;
/// What records that came in one heap may make of the tracer's memory, KiB.
const TRACER_SLACK_KIB: u64 = 16 * 1024;

#[derive(Debug)]
struct Round {
    target_fds: usize,
    target_mappings: usize,
    target_kib: u64,
    tracer_fds: usize,
    tracer_kib: u64,
    links: usize,
    programs: usize,
    maps: usize,
}

#[test]
fn ten_rounds_leave_nothing_behind() {
    require_root();
    let mut program = TestProgram::start("serve", Build::Plain);
    let rounds: Vec<Round> = (0..ROUNDS).map(|_| round(&mut program)).collect();
    assert!(program.exit().success());

    let [_, second, later @ ..] = &rounds[..] else {
        panic!("{ROUNDS} rounds")
    };
    for one in later {
        let same = |round: &Round| {
            let Round {
                target_fds,
                target_mappings,
                tracer_fds,
                links,
                programs,
                maps,
                ..
            } = round;
            [
                *target_fds,
                *target_mappings,
                *tracer_fds,
                *links,
                *programs,
                *maps,
            ]
        };
        assert_eq!(same(one), same(second), "{rounds:#?}");
        assert!(
            one.target_kib <= second.target_kib + TARGET_SLACK_KIB,
            "{rounds:#?}"
        );
        assert!(
            one.tracer_kib <= second.tracer_kib + TRACER_SLACK_KIB,
            "{rounds:#?}"
        );
    }
}

/// The tracer is measured while attached, the target after.
fn round(program: &mut TestProgram) -> Round {
    let output = output_dir();
    program.ask("load", "loaded");
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.wait_for_progress(2_000);
    let ours = Loaded::of(tracer.pid());
    let (tracer_fds, tracer_kib) = (proc::fds(tracer.pid()), proc::resident_kib(tracer.pid()));
    let outcome = tracer.interrupt();
    let lost = || Facts::of_dir(output.path()).lost;
    assert_eq!(outcome.code, Some(0), "{:?} {outcome:#?}", lost());
    program.wait_for_progress(100);
    program.ask("rest", "resting");
    wait::until("everything of the round is gone from the kernel", || {
        Loaded::now().also_in(&ours).is_empty().then_some(())
    });
    let pid = program.pid();
    Round {
        target_fds: proc::fds(pid),
        target_mappings: proc::mappings(pid).len(),
        target_kib: proc::resident_kib(pid),
        tracer_fds,
        tracer_kib,
        links: ours.links.len(),
        programs: ours.programs.len(),
        maps: ours.maps.len(),
    }
}

/// Both work at the same time on the same file.
#[test]
fn a_bystander_of_the_same_binary_takes_no_hit() {
    require_root();
    let output = output_dir();
    let counted = output.path().join("truth.tsv");
    let other_counted = output.path().join("bystander.tsv");
    let start = |counted: &std::path::Path| {
        TestProgram::start_with("truth", Build::Plain, |command| {
            command.arg(counted).arg("20");
        })
    };
    let (mut program, mut bystander) = (start(&counted), start(&other_counted));
    let tracer = Attach::to(program.pid(), output.path()).attached();
    program.say("go");
    bystander.say("go");
    assert!(program.hear().starts_with("done"));
    assert!(bystander.hear().starts_with("done"));

    let breakpoints = |of: &TestProgram| proc::changed_code(of.pid(), of.path());
    assert!(breakpoints(&program) > 0, "the target has no breakpoint");
    assert_eq!(breakpoints(&bystander), 0, "the bystander has breakpoints");
    tracer.interrupt().expect(0);
    assert_eq!(breakpoints(&program), 0, "breakpoints stay in the target");
    assert!(bystander.exit().success());
    assert!(program.exit().success());
    let facts = Facts::of_dir(output.path());
    facts.expect_lossless().expect_at_rest();
    truth::expect_told(&truth::read(&counted), &facts, true);
}
