//! `dial9-bpf attach`: a target, its plan, a tracer and a recording, until one
//! of them ends.
//!
//! In: checked arguments. Out: sealed segments, an exit code. Never: a reason
//! for the target to wait.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use bytesize::ByteSize;
use dial9_bpf_attach::{
    Abilities, AttachError, Object, Options, Prices, Runtimes, Target, Tracer, block_io,
    profile::{self, CPU_PROFILE},
    rings::check_budget,
};
use dial9_bpf_ship::{convert::head_of_archive, identity::Identity};
use dial9_bpf_trace::{
    clock::monotonic_ns,
    line::{Config, Line},
    location::Locations,
    metadata::RUNTIME_METRICS,
    rotate::Policy,
    segment::{Owner, Place},
    spool::{Found, Spool},
};

use crate::{
    args::{AttachArgs, RecordArgs, Rotation, Signal},
    command::forked,
    declared::{self, Resolved},
    descriptors,
    dispatch::{Dispatch, Shipping},
    exit,
    flight::{self, Flight, Settings},
    forks::{Care, Forks},
    identity::{self, UNTYPED},
    keep::{self, Start},
    late::Late,
    names,
    objects::{Objects, Scanner, Unusable},
    output::Output,
    plan_report,
    profile::Profile,
    recording::Recording,
    sampler::Sampler,
    session::{Session, Until},
    status::Cost,
    stderr, stdout, stop,
    usage::Meter,
};

mod upload;

/// What is missing where the counters of the process cannot be read.
const RESOURCES: &str = "process-resources";
/// What is missing where objects that come later cannot be traced.
const LATER_OBJECTS: &str = "later-objects";

/// Runs the subcommand; the value is the exit code.
///
/// The order of the steps is that of the exit codes: of several reasons to
/// fail, the one with the lowest code is met first.
///
/// # Errors
/// Whatever `exit::of_failure` has a code for.
pub(crate) fn run(args: &AttachArgs) -> anyhow::Result<u8> {
    descriptors::raise_limit();
    if let Some(forked) = args.record.forked {
        return forked::run(forked.get(), &args.record);
    }
    let pid = args.pid.get();
    let ran = if args.dry_run {
        dry_run(pid, &args.record)
    } else {
        // First, so that an interrupted start leaves nothing behind either.
        let stop = stop::flag()?;
        let care = care_of(&args.record);
        record(pid, &args.record, (Until::Stopped, &stop), care, || {})
    };
    ran.map_err(descriptors::explain)
}

/// Records a process; `attached` is called once the links are live. The value is the
/// exit code.
///
/// # Errors
/// As [`run`].
pub(crate) fn record(
    pid: u32,
    args: &RecordArgs,
    (until, stop): (Until, &AtomicBool),
    care: Care,
    attached: impl FnOnce(),
) -> anyhow::Result<u8> {
    let probes = declared::read(&args.probes)?;
    let owner = Owner::behind_sudo();
    let asked = flight::asked()?;
    let mut output = Output::prepare(&args.output, pid, owner)?;
    if args.keep_rings {
        keep::drop_stale();
    }
    let upload = upload::of(args)?;
    check_budget(args.ring_bytes)?;
    let abilities = Abilities::probe(None)?;
    if args.keep_rings {
        dial9_bpf_attach::keep::check(abilities)?;
    }
    let target = Arc::new(Target::open(pid)?);
    let mut scanner = Scanner::new(args.no_single_step, args.debug_file.clone());
    let mut objects = scanner.all(&target, args.wants(Signal::Tokio))?;
    let mut mappings = names::mappings_of(args, &target, objects.debug_file.take());
    let resolved = declared::resolve(&target, &probes, (args.debug_file.as_deref(), args.strict))?;
    let prices = Prices::measure(abilities).ok();
    let options = options_of(args, abilities);
    let mut start = Start::of(&target, &objects.traced, options, args.keep_rings)?;
    let named = (args.service.as_deref(), args.instance.as_deref());
    let identity = identity::identity(&target, &args.output, named)?;
    let mut config = config_of(args, (&target, &objects, start.tracer()), &identity, owner)?;
    let runtimes = runtimes_of(args, (&target, &objects), &mut config);
    let names = names::of(args, &mut mappings, &mut config.metadata);
    let shipping = Shipping {
        identity,
        compression: args.compression.into(),
        upload,
        names,
    };
    let mut locations = Locations::of_objects(objects.traced.iter().map(identity::object_types));
    locations.declare(resolved.declarations.clone());
    let flight = flight_of(args, &output, asked);
    let mut recording = match recording_of(config, locations, shipping, (args, &mut start), flight)
    {
        Ok(recording) => recording,
        Err(error) => {
            start.leave();
            return Err(error);
        }
    };
    let (mut tracer, began) = match attach(start, &target, &objects, resolved) {
        Ok(attached) => attached,
        Err(error) => {
            recording.discard()?;
            return Err(error.into());
        }
    };
    output.keep();
    if let Some(offset) = runtimes.as_ref().and_then(Runtimes::likely_queue) {
        tracer.read_queues(offset, true)?;
    }
    recording.note_absent(tracer.absent());
    recording.note_mappings(mappings.ok().flatten());
    if let Some(reason) = runtimes.as_ref().and_then(Runtimes::absent) {
        stderr::say(format_args!("missing: {RUNTIME_METRICS}: {reason}"));
    }
    let meter = meter_of(args, &target, &mut recording);
    recording.sample(Sampler::new(runtimes, meter));
    if tracer.profile_hz().is_some() || tracer.takes_off_cpu_stacks() {
        profile(&target, &mut recording);
    }
    let late = late_of(
        args,
        (&target, &tracer),
        scanner,
        (&objects, &mut recording),
    );
    let cost = prices.map(|prices| cost_of(prices, &objects));
    let beside = (Forks::new(care), late);
    let session = Session::new(&target, (recording, beside), cost, (began, until));
    attached();
    session.run(&mut tracer, stop, args.duration)
}

/// Reads the counters of runtimes, where tasks are wanted; what the segment says of it.
fn runtimes_of(
    args: &RecordArgs,
    (target, objects): (&Target, &Objects),
    config: &mut Config,
) -> Option<Runtimes> {
    let runtimes = args
        .wants(Signal::Tokio)
        .then(|| Runtimes::of(target, objects.tokio_version()))?;
    if let Some(reason) = runtimes.absent() {
        let absent = (RUNTIME_METRICS.to_owned(), reason.to_owned());
        config.metadata.absent.push(absent);
    }
    Some(runtimes)
}

fn options_of(args: &RecordArgs, abilities: Abilities) -> Options {
    Options {
        ring_bytes: args.ring_bytes,
        abilities,
        sched: args.wants(Signal::Sched),
        net: args.wants(Signal::Net),
        profile_hz: args.profile_hz(),
        queue_reads: args.local_queue.into(),
        io: args.wants(Signal::Io),
        declared: !args.probes.is_empty(),
    }
}

/// What is done about forks.
pub(crate) fn care_of(args: &RecordArgs) -> Care {
    args.follow_forks
        .map_or(Care::Tell, |limit| Care::Follow(limit.into()))
}

/// What reads the counters of the process, where they are wanted and can be had.
fn meter_of(args: &RecordArgs, target: &Target, recording: &mut Recording) -> Option<Meter> {
    if !args.wants(Signal::Res) {
        return None;
    }
    Meter::of(target.pid())
        .map_err(|error| miss(recording, RESOURCES, error.to_string()))
        .ok()
}

/// Has stacks unwound from now on.
fn profile(target: &Target, recording: &mut Recording) {
    match Profile::of(target.pid()) {
        Ok(profile) => recording.profile(profile),
        Err(error) => miss(recording, CPU_PROFILE, error.to_string()),
    }
}

/// Says what the trace lacks from the begin on, and has it told.
fn miss(recording: &mut Recording, name: &str, reason: String) {
    stderr::say(format_args!("missing: {name}: {reason}"));
    recording.note_absent(&[(name, reason)]);
}

/// The watch for what the target loads from now on; where there can be none, the
/// recording goes on without.
fn late_of(
    args: &RecordArgs,
    (target, tracer): (&Arc<Target>, &Tracer),
    mut scanner: Scanner,
    (objects, recording): (&Objects, &mut Recording),
) -> Late {
    if !args.wants(Signal::Tokio) {
        return Late::none(&objects.traced);
    }
    if tracer.is_kept() {
        scanner.keep();
    }
    let started = match tracer.late_links(target) {
        Ok(Some(links)) => {
            Late::start(target, scanner, links, &objects.traced).map_err(|error| error.to_string())
        }
        Ok(None) => {
            let reason =
                "the rings were taken over, so that what the target loads later is not traced";
            recording.note_absent(&[(LATER_OBJECTS, reason.to_owned())]);
            return Late::none(&objects.traced);
        }
        Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
    };
    started.unwrap_or_else(|reason| {
        let reason = format!("what the target loads later is not traced: {reason}");
        miss(recording, LATER_OBJECTS, reason);
        Late::none(&objects.traced)
    })
}

fn cost_of(prices: Prices, objects: &Objects) -> Cost {
    let mut cost = Cost::new(prices);
    for object in &objects.traced {
        cost.add(object.plan());
    }
    cost
}

/// Needs no privilege but to read the target.
fn dry_run(pid: u32, args: &RecordArgs) -> anyhow::Result<u8> {
    check_budget(args.ring_bytes)?;
    let target = Target::open(pid)?;
    let mut scanner = Scanner::new(args.no_single_step, args.debug_file.clone());
    let objects = scanner.all(&target, args.wants(Signal::Tokio))?;
    let prices = Abilities::probe(None)
        .and_then(Prices::measure)
        .map_err(|error| format!("{:#}", anyhow::Error::from(error)));
    stdout::print(&plan_report::render(&target, &objects, prices))?;
    if let Some(hz) = args.profile_hz() {
        stdout::print(&plan_report::profile(hz, profile::check(pid, hz)))?;
    }
    if args.wants(Signal::Io) {
        stdout::print(&plan_report::block_io(block_io::missing(&target)))?;
    }
    Ok(exit::DONE)
}

fn config_of(
    args: &RecordArgs,
    (target, objects, tracer): (&Target, &Objects, &Tracer),
    identity: &Identity,
    owner: Owner,
) -> anyhow::Result<Config> {
    let max_bytes = args.max_segment_bytes.get();
    let policy = match args.rotate {
        Rotation::Epochs(epoch) => Policy::new(epoch, max_bytes)?,
        Rotation::Off => Policy::without_epochs(max_bytes),
    };
    let (place, policy) = match Settings::of(args) {
        Some(settings) => (Place::Memory, settings.policy()?),
        None => (Place::Spool(args.output.clone()), policy),
    };
    Ok(Config {
        place,
        owner,
        policy,
        metadata: identity::metadata(target, objects, identity, (&args.signals, tracer)),
    })
}

fn flight_of(args: &RecordArgs, output: &Output, asked: Arc<AtomicBool>) -> Option<Flight> {
    let settings = Settings::of(args)?;
    Some(Flight::new(
        &args.output,
        settings,
        output.spool_lock(),
        asked,
    ))
}

/// A recording with a segment that begins now, or where the last one of a tracer
/// that was taken over ends, in a spool that is recovered.
fn recording_of(
    config: Config,
    locations: Locations,
    shipping: Shipping,
    (args, start): (&RecordArgs, &mut Start),
    flight: Option<Flight>,
) -> anyhow::Result<Recording> {
    let uploads = shipping.upload.is_some();
    let dir = &args.output;
    let bytes = args.spool_bytes.get();
    let (spool, found) = Spool::open(dir, config.owner, bytes, head_of_archive)?;
    report(&found, uploads);
    let begins = start.begins(&found.recorded, &config.metadata.target);
    let mut line = Line::begin(config, locations, begins)?;
    for gone in found.evicted {
        line.evicted(gone);
    }
    match (Dispatch::start(dir, spool, shipping), flight) {
        (Ok(dispatch), Some(flight)) => Ok(Recording::on_demand(line, dispatch, flight)),
        (Ok(dispatch), None) => {
            let goes_on = args.rotate != Rotation::Off;
            Ok(Recording::new(line, dispatch, goes_on))
        }
        (Err(error), _) => {
            line.discard()?;
            Err(error)
        }
    }
}

/// Says what a predecessor has left, where there is something to be done.
fn report(found: &Found, uploads: bool) {
    let Found {
        recovered,
        waiting,
        discarded,
        failed,
        ..
    } = found;
    if recovered + discarded > 0 || (uploads && *waiting > 0) {
        stderr::say(format_args!(
            "spool: recovered {recovered}, waiting {waiting}, discarded {discarded}"
        ));
    }
    for error in failed {
        stderr::say(error.in_full());
    }
}

/// Attaches, and says so; the value is when the links were live.
fn attach(
    mut start: Start,
    target: &Target,
    objects: &Objects,
    resolved: Resolved,
) -> Result<(Tracer, Instant), AttachError> {
    let Objects {
        traced, unusable, ..
    } = objects;
    start.tracer().declare(resolved.declared)?;
    let tried = Instant::now();
    let since_ns = monotonic_ns();
    let (mut tracer, how) = match start {
        Start::TakenOver(tracer, noted_ns) => {
            let ago = Duration::from_nanos(since_ns.saturating_sub(noted_ns));
            (tracer, format!("as {} ms ago", ago.as_millis()))
        }
        Start::Unkept(mut tracer) => {
            tracer.attach(target, traced)?;
            (tracer, format!("in {} ms", tried.elapsed().as_millis()))
        }
        Start::New(mut tracer, place) => {
            tracer.attach(target, traced)?;
            tracer.keep(place, since_ns)?;
            (tracer, format!("in {} ms", tried.elapsed().as_millis()))
        }
    };
    let began = Instant::now();
    stderr::say(format_args!(
        "attached to process {} ({}): {} sites {how}, {} of rings{}",
        target.pid(),
        target.path().display(),
        traced
            .iter()
            .map(|object| object.plan().sites.len())
            .sum::<usize>(),
        ByteSize(tracer.rings().total_bytes()),
        plan_report::of_stacks(tracer.stack_ring_bytes()),
    ));
    for object in traced {
        tell(object);
    }
    for row in &resolved.rows {
        stderr::say(row);
    }
    for Unusable { path, reason } in unusable {
        stderr::say(format_args!("missing: {path}: {reason}"));
    }
    for (name, reason) in tracer.absent() {
        stderr::say(format_args!("missing: {name}: {reason}"));
    }
    Ok((tracer, began))
}

/// Says which file it is, unless it is the executable, and what is missing in it.
fn tell(object: &Object) {
    let place = if object.is_executable() {
        String::new()
    } else {
        let path = object.path().display();
        stderr::say(format_args!(
            "{} of the sites are in {path}",
            object.plan().sites.len()
        ));
        format!(" in {path}")
    };
    for miss in &object.plan().misses {
        let (probe, reason) = (miss.probe.name(), &miss.reason);
        stderr::say(format_args!("missing: {probe}{place}: {reason}"));
    }
    if let Some(reason) = &object.plan().untyped {
        stderr::say(format_args!("missing: {UNTYPED}{place}: {reason}"));
    }
}
