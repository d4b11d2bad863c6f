//! What the trace is told of the target.
//!
//! In: a target and its plan. Out: metadata, task types, the load bias. Never:
//! a value that is not known.

use std::{io, os::unix::fs::MetadataExt as _, path::Path};

use dial9_bpf_attach::{AttachError, Target, Tracer};
use dial9_bpf_probes::plan::{Binary, Plan, Site};
use dial9_bpf_ship::identity::{ENV_SERVICE, Identity, Sources};
use dial9_bpf_trace::{
    location::TaskType,
    metadata::{Metadata, Target as TargetMetadata},
};

use crate::args::Signal;

/// Whose the segments of a spool are, by the command line, the environment and the
/// target.
///
/// # Errors
/// When the spool's directory is gone.
pub(crate) fn identity(
    target: &Target,
    spool: &Path,
    (service, instance): (Option<&str>, Option<&str>),
) -> io::Result<Identity> {
    let spool = spool.metadata()?;
    let env_service = std::env::var(ENV_SERVICE).ok();
    // It is gone with the target; then the executable has a name.
    let cgroup =
        std::fs::read_to_string(format!("/proc/{}/cgroup", target.pid())).unwrap_or_default();
    let exe = target.path().display().to_string();
    Ok(Identity::resolve(&Sources {
        service,
        instance,
        env_service: env_service.as_deref(),
        cgroup: &cgroup,
        exe: &exe,
        host: host().as_deref(),
        start_ticks: target.start_ticks(),
        spool: (spool.dev(), spool.ino()),
        pid: target.pid(),
    }))
}

fn host() -> Option<String> {
    let uname = rustix::system::uname();
    uname.nodename().to_str().ok().map(ToOwned::to_owned)
}

/// The segment's metadata.
pub(crate) fn metadata(
    target: &Target,
    plan: &Plan,
    identity: &Identity,
    (signals, tracer): (&[Signal], &Tracer),
) -> Metadata {
    let mut absent: Vec<(String, String)> = plan
        .misses
        .iter()
        .map(|miss| (miss.probe.name().to_owned(), miss.reason.clone()))
        .collect();
    absent.extend(
        tracer
            .cpu_time_behind()
            .map(|reason| ("exact-cpu-time".to_owned(), reason.to_owned())),
    );
    let untyped = plan.untyped.as_ref();
    absent.extend(untyped.map(|reason| ("task-types".to_owned(), reason.clone())));
    Metadata {
        service: Some(identity.service.clone()),
        instance: Some(identity.instance.clone()),
        host: host(),
        boot_id: identity.boot_id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        available_parallelism: target.allowed_cpus().map(|cpus| cpus as usize),
        tokio_version: plan.tokio_version.clone(),
        target: TargetMetadata {
            pid: target.pid(),
            start_ticks: target.start_ticks(),
            exe: target.path().display().to_string(),
            build_id: plan.build_id.clone(),
        },
        tells_waits: tracer.tells_waits(),
        signals: signals.iter().map(|signal| signal.name()).collect(),
        absent,
        forked: 0,
    }
}

/// The plan's vtables as the interpreter knows them, in the plan's order.
pub(crate) fn task_types(plan: &Plan) -> Vec<TaskType> {
    let types = plan.vtables.iter().map(|vtable| TaskType {
        name: vtable.task_type.clone(),
        address: vtable.address,
        blocking: vtable.blocking,
    });
    types.collect()
}

/// Run-time address of the file's link-time address 0.
///
/// # Errors
/// [`AttachError`] when the target's mappings cannot be read.
pub(crate) fn load_bias(target: &Target, plan: &Plan) -> Result<u64, AttachError> {
    let in_executable = |site: &&Site| site.binary == Binary::Executable;
    let Some(site) = plan.sites.iter().find(in_executable) else {
        return Ok(0);
    };
    Ok(target
        .code_address(site.file_offset)?
        .wrapping_sub(site.address))
}
