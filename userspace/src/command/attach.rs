//! `dial9-bpf attach`: a target, its plan, a tracer and a recording, until one
//! of them ends.
//!
//! In: checked arguments. Out: a sealed segment, an exit code. Never: a reason
//! for the target to wait.

use std::{path::Path, time::Instant};

use anyhow::Context as _;
use bytesize::ByteSize;
use dial9_bpf_attach::{
    Abilities, AttachError, Options, Prices, Target, Tracer, rings::check_budget,
};
use dial9_bpf_probes::plan::{Plan, Probe};
use dial9_bpf_trace::{
    clock::Anchor,
    location::Locations,
    segment::{ActiveSegment, Owner},
};

use crate::{
    args::AttachArgs, descriptors, exit, identity, output::Output, plan_report,
    recording::Recording, session::Session, status::Cost, stderr, stdout, stop,
};

/// Runs the subcommand; the value is the exit code.
///
/// The order of the steps is that of the exit codes: of several reasons to
/// fail, the one with the lowest code is met first.
///
/// # Errors
/// Whatever `exit::of_failure` has a code for.
pub(crate) fn run(args: &AttachArgs) -> anyhow::Result<u8> {
    if args.dry_run {
        return dry_run(args);
    }
    descriptors::raise_limit();
    record(args).map_err(descriptors::explain)
}

fn record(args: &AttachArgs) -> anyhow::Result<u8> {
    let pid = args.pid.get();
    let owner = Owner::behind_sudo();
    // First, so that an interrupted start leaves nothing behind either.
    let stop = stop::flag()?;
    let mut output = Output::prepare(&args.output, pid, owner)?;
    check_budget(args.ring_bytes)?;
    let abilities = Abilities::probe(None)?;
    let target = Target::open(pid)?;
    let plan = plan_of(&target, args)?;
    let prices = Prices::measure(abilities).ok();
    let options = Options {
        ring_bytes: args.ring_bytes,
        abilities,
    };
    let mut tracer = Tracer::load(&target, options)?;
    let recording = recording_of(&target, &plan, &tracer, output.dir(), owner)?;
    let began = match attach(&mut tracer, &target, &plan) {
        Ok(began) => began,
        Err(error) => {
            recording.discard()?;
            return Err(error.into());
        }
    };
    output.keep();
    let cost = prices.map(|prices| Cost::new(&plan, &prices));
    Session::new(&target, recording, cost, began).run(&mut tracer, &stop, args.duration)
}

/// Needs no privilege but to read the target.
fn dry_run(args: &AttachArgs) -> anyhow::Result<u8> {
    check_budget(args.ring_bytes)?;
    let target = Target::open(args.pid.get())?;
    let plan = plan_of(&target, args)?;
    let prices = Abilities::probe(None)
        .and_then(Prices::measure)
        .map_err(|error| format!("{:#}", anyhow::Error::from(error)));
    stdout::print(&plan_report::render(&target, &plan, prices))?;
    Ok(exit::DONE)
}

fn plan_of(target: &Target, args: &AttachArgs) -> anyhow::Result<Plan> {
    let bytes = target.read_executable()?;
    let plan = dial9_bpf_probes::scan(&bytes)
        .map_err(anyhow::Error::from)
        .and_then(|plan| Ok(with_polls(plan)?))
        .with_context(|| format!("nothing to trace in process {}", target.pid()))?;
    Ok(if args.no_single_step {
        plan.without_single_step()
    } else {
        plan
    })
}

/// A Tokio program of which no poll can be seen: a trace of it would be empty.
#[derive(Debug, thiserror::Error)]
#[error("no site for polls: {reason}; builds without optimization have none")]
pub(crate) struct NoPolls {
    /// What was looked for and not found.
    reason: String,
}

fn with_polls(plan: Plan) -> Result<Plan, NoPolls> {
    if plan.sites.iter().any(|site| site.probe == Probe::PollStart) {
        return Ok(plan);
    }
    let miss = plan
        .misses
        .into_iter()
        .find(|of| of.probe == Probe::PollStart);
    Err(NoPolls {
        reason: miss.map_or_else(String::new, |miss| miss.reason),
    })
}

/// A recording with a segment that begins now.
fn recording_of(
    target: &Target,
    plan: &Plan,
    tracer: &Tracer,
    dir: &Path,
    owner: Owner,
) -> anyhow::Result<Recording> {
    let load_bias = identity::load_bias(target, plan)?;
    let locations = Locations::new(&identity::task_types(plan), load_bias);
    let metadata = identity::metadata(target, plan, tracer.cpu_time_behind());
    let segment = ActiveSegment::create(dir, owner, &metadata, Anchor::read())?;
    Ok(Recording::new(segment, metadata, locations))
}

/// Attaches, and says so; the value is when the links were live.
fn attach(tracer: &mut Tracer, target: &Target, plan: &Plan) -> Result<Instant, AttachError> {
    let tried = Instant::now();
    tracer.attach(target, plan)?;
    let began = Instant::now();
    stderr::say(format_args!(
        "attached to process {} ({}): {} sites in {} ms, {} of rings",
        target.pid(),
        target.path().display(),
        plan.sites.len(),
        began.duration_since(tried).as_millis(),
        ByteSize(tracer.rings().total_bytes()),
    ));
    for miss in &plan.misses {
        let (probe, reason) = (miss.probe.name(), &miss.reason);
        stderr::say(format_args!("missing: {probe}: {reason}"));
    }
    Ok(began)
}
