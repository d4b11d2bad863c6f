//! What the trace is told of the target.
//!
//! In: a target and its plan. Out: metadata, task types, the load bias. Never:
//! a value that is not known.

use dial9_bpf_attach::{AttachError, Target};
use dial9_bpf_probes::plan::Plan;
use dial9_bpf_trace::{
    location::TaskType,
    metadata::{Metadata, Target as TargetMetadata},
};

/// The segment's metadata.
pub(crate) fn metadata(target: &Target, plan: &Plan, cpu_time_behind: Option<&str>) -> Metadata {
    let file_name = target
        .path()
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let mut absent: Vec<(String, String)> = plan
        .misses
        .iter()
        .map(|miss| (miss.probe.name().to_owned(), miss.reason.clone()))
        .collect();
    absent.extend(cpu_time_behind.map(|reason| ("exact-cpu-time".to_owned(), reason.to_owned())));
    Metadata {
        service: file_name,
        host: rustix::system::uname()
            .nodename()
            .to_str()
            .ok()
            .map(ToOwned::to_owned),
        boot_id: boot_id(target),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        available_parallelism: target.allowed_cpus().map(|cpus| cpus as usize),
        tokio_version: plan.tokio_version.clone(),
        target: TargetMetadata {
            pid: target.pid(),
            start_ticks: target.start_ticks(),
            exe: target.path().display().to_string(),
            build_id: plan.build_id.clone(),
        },
        absent,
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
    let Some(site) = plan.sites.first() else {
        return Ok(0);
    };
    Ok(target
        .code_address(site.file_offset)?
        .wrapping_sub(site.address))
}

/// One for each run of a process: four letters of its start time, and its pid
/// (dial9's form).
fn boot_id(target: &Target) -> String {
    let letters = (0..4).scan(target.start_ticks(), |rest, _| {
        let letter = b'a' + u8::try_from(*rest % 26).unwrap_or(0);
        *rest /= 26;
        Some(char::from(letter))
    });
    format!("{}-{}", letters.collect::<String>(), target.pid())
}
