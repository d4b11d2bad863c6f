//! What the trace is told of the target.
//!
//! In: a target and its objects. Out: metadata, task types. Never:
//! a value that is not known.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use dial9_bpf_attach::{Object, Target, Tracer};
use dial9_bpf_probes::plan::{Miss, Plan, TaskVtable};
use dial9_bpf_ship::identity::{ENV_SERVICE, Identity, Sources};
use dial9_bpf_trace::{
    location::{MAX_NAME_BYTES, ObjectTypes, TaskType},
    metadata::{self, Metadata, Target as TargetMetadata},
};

use crate::{
    args::Signal,
    objects::{self, Objects},
    parallelism,
};

/// Links to the block devices, called by their numbers.
const BLOCK_DEVICES: &str = "/sys/dev/block";
/// Block devices that the metadata names.
const MOST_DEVICES: usize = 256;
/// What is missing where task types have no names.
pub(crate) const UNTYPED: &str = "task-types";

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
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", target.pid())).unwrap_or_default();
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
    objects: &Objects,
    identity: &Identity,
    (signals, tracer): (&[Signal], &Tracer),
) -> Metadata {
    let Objects {
        traced,
        unusable,
        build_id,
        debug_file: _,
    } = objects;
    let first = traced.first().map(Object::plan);
    let mut absent: Vec<(String, String)> = first.map(misses).unwrap_or_default();
    let unusable = unusable.iter();
    absent.extend(unusable.map(|of| (of.path.clone(), of.reason.clone())));
    absent.extend(
        tracer
            .cpu_time_behind()
            .map(|reason| ("exact-cpu-time".to_owned(), reason.to_owned())),
    );
    Metadata {
        service: Some(identity.service.clone()),
        instance: Some(identity.instance.clone()),
        host: host(),
        boot_id: identity.boot_id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        available_parallelism: parallelism::available(target),
        tokio_version: first.and_then(|plan| plan.tokio_version.clone()),
        target: TargetMetadata {
            pid: target.pid(),
            start_ticks: target.start_ticks(),
            exe: target.path().display().to_string(),
            build_id: build_id.clone(),
        },
        tells_waits: tracer.tells_waits(),
        profile_hz: tracer.profile_hz(),
        off_cpu_stacks: tracer
            .takes_off_cpu_stacks()
            .then(crate::plan_report::off_cpu_stacks),
        stacks_left_out: 0,
        signals: signals.iter().map(|signal| signal.name()).collect(),
        absent,
        forked: 0,
        untold_absences: 0,
        objects: self::objects(traced),
        machine: machine(),
        mappings: Vec::new(),
        devices: if signals.contains(&Signal::Io) {
            devices()
        } else {
            BTreeMap::new()
        },
        threads: BTreeMap::new(),
        facts: Vec::new(),
    }
}

/// Names of the block devices that there are now, partitions among them, by their numbers.
fn devices() -> BTreeMap<String, String> {
    let Ok(links) = fs::read_dir(BLOCK_DEVICES) else {
        return BTreeMap::new();
    };
    let device = |link: fs::DirEntry| {
        let numbers = link.file_name().into_string().ok()?;
        let place = fs::read_link(link.path()).ok()?;
        Some((numbers, place.file_name()?.to_str()?.to_owned()))
    };
    links
        .flatten()
        .filter_map(device)
        .take(MOST_DEVICES)
        .collect()
}

/// The machine and its kernel.
fn machine() -> Vec<(&'static str, String)> {
    let uname = rustix::system::uname();
    let [architecture, release, version] =
        [uname.machine(), uname.release(), uname.version()].map(|text| text.to_string_lossy());
    let info = rustix::system::sysinfo();
    let memory = u64::from(info.mem_unit) * info.totalram;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot_id = boot_id.map(|id| ("kernel.boot_id", id.trim().to_owned()));
    let facts = [
        ("machine.architecture", architecture.into_owned()),
        ("machine.memory_bytes", memory.to_string()),
        ("kernel.release", release.into_owned()),
        ("kernel.version", version.into_owned()),
    ];
    facts.into_iter().chain(boot_id).collect()
}

/// The plan's vtables as the interpreter knows them, in the plan's order.
fn task_types(plan: &Plan) -> Vec<TaskType> {
    let mut at_places: HashMap<&[String], BTreeSet<&str>> = HashMap::new();
    for vtable in &plan.vtables {
        let types = at_places.entry(&vtable.spawned_at).or_default();
        types.extend(vtable.task_type.as_deref());
    }
    let types = plan.vtables.iter().map(|vtable| TaskType {
        name: label(vtable, at_places[vtable.spawned_at.as_slice()].len() > 1),
        address: vtable.address,
        blocking: vtable.blocking,
    });
    types.collect()
}

/// What the tasks of a type are called, in the place of dial9's `spawn_loc`.
///
/// One place is written as `core::panic::Location` writes it, which is what dial9
/// records from the inside: its viewer groups by the whole text and makes a link of
/// `/crate-1.2.3/src/file.rs:line:column` at the end (`trace_parser.js`, `_docsRsUrl`,
/// 0.5.7). The type is there where it tells apart what is spawned at the same place,
/// and before that place, so that links hold. Several places are what the binary
/// alone cannot tell apart; they are shown without the folder of cargo's registry.
fn label(vtable: &TaskVtable, is_shared: bool) -> Option<String> {
    let task_type = vtable.task_type.as_deref().map(cut);
    let places = match vtable.spawned_at.as_slice() {
        [] => return task_type.map(str::to_owned),
        [place] => place.clone(),
        places => {
            let places: Vec<_> = places.iter().map(|place| in_crate(place)).collect();
            places.join(" | ")
        }
    };
    Some(match task_type.filter(|_| is_shared) {
        Some(task_type) => format!("{task_type} at {places}"),
        None => places,
    })
}

/// A path without cargo's registry: `axum-0.8.1/src/serve.rs:1:2`.
fn in_crate(place: &str) -> &str {
    let after = place.split_once("/registry/src/");
    let path = after.and_then(|(_, rest)| rest.split_once('/'));
    path.map_or(place, |(_, path)| path)
}

/// Leaves room for the place.
fn cut(task_type: &str) -> &str {
    &task_type[..task_type.floor_char_boundary(MAX_NAME_BYTES / 2)]
}

fn misses(plan: &Plan) -> Vec<(String, String)> {
    let miss = |miss: &Miss| (miss.probe.name().to_owned(), miss.reason.clone());
    let untyped = plan.untyped.as_ref();
    let untyped = untyped.map(|reason| (UNTYPED.to_owned(), reason.clone()));
    plan.misses.iter().map(miss).chain(untyped).collect()
}

/// What the trace is told of the objects.
pub(crate) fn objects(traced: &[Object]) -> Vec<metadata::Object> {
    traced.iter().map(object).collect()
}

/// What the trace is told of one.
pub(crate) fn object(object: &Object) -> metadata::Object {
    let plan = object.plan();
    metadata::Object {
        is_executable: object.is_executable(),
        path: object.path().display().to_string(),
        build_id: plan.build_id.clone(),
        tokio_version: plan.tokio_version.clone(),
        sites: plan.sites.len(),
        absent: misses(plan),
    }
}

/// An object's task types as the interpreter knows them, in the plan's order.
pub(crate) fn object_types(object: &Object) -> ObjectTypes {
    ObjectTypes {
        file: objects::file_name(object),
        load_bias: object.load_bias(),
        types: task_types(object.plan()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(types: &[(&[&str], Option<&str>)]) -> Vec<Option<String>> {
        let vtable = |&(places, task_type): &(&[&str], Option<&str>)| TaskVtable {
            address: 0,
            poll: 0,
            id_offset: 40,
            blocking: false,
            task_type: task_type.map(str::to_owned),
            spawned_at: places.iter().map(|&place| place.to_owned()).collect(),
        };
        let plan = Plan {
            vtables: types.iter().map(vtable).collect(),
            ..Plan::default()
        };
        let types = task_types(&plan);
        types.into_iter().map(|known| known.name).collect()
    }

    #[test]
    fn a_task_is_called_by_its_place_and_else_by_its_type() {
        let main = "src/main.rs:42:9";
        let named = names(&[
            (&[main], Some("app::serve")),
            (&[main], Some("app::serve")),
            (&[], Some("app::other")),
            (&[], None),
        ]);
        let expected = [Some(main), Some(main), Some("app::other"), None];
        assert_eq!(named, expected.map(|name| name.map(str::to_owned)));
    }

    #[test]
    fn types_of_one_place_are_told_apart_and_a_link_still_holds() {
        let place =
            "/root/.cargo/registry/src/index.crates.io-1/hyper-util-0.1.9/src/rt/tokio.rs:115:9";
        let named = names(&[(&[place], Some("app::A")), (&[place], Some("app::B"))]);
        let expected = ["app::A", "app::B"].map(|name| Some(format!("{name} at {place}")));
        assert_eq!(named, expected);
    }

    #[test]
    fn several_places_are_all_there() {
        let registry = "/root/.cargo/registry/src/index.crates.io-1/axum-0.8.1/src/serve.rs:3:4";
        let named = names(&[(&[registry, "src/main.rs:1:2"], Some("app::A"))]);
        let expected = "axum-0.8.1/src/serve.rs:3:4 | src/main.rs:1:2";
        assert_eq!(named, [Some(expected.to_owned())]);
    }

    #[test]
    fn the_place_is_there_however_long_the_type_is() {
        let long = "é".repeat(MAX_NAME_BYTES);
        let named = names(&[(&["a.rs:1:2"], Some(&long)), (&["a.rs:1:2"], Some("B"))]);
        let name = named[0].as_deref().unwrap();
        assert!(name.len() < MAX_NAME_BYTES && name.ends_with("é at a.rs:1:2"));
    }
}
