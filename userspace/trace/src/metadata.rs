//! What a segment says of itself as a whole.
//!
//! In: what is known of the target and of the probes. Out: the string map of a
//! `SegmentMetadataEvent`, with dial9's keys where it has one. Never: a value
//! that is not known (its key is absent), `tokio.unstable`, which readers take
//! for a diagnosis.

use std::collections::BTreeMap;

use crate::mapping::{self, Mapping};
use crate::object;
use crate::stats::{QueueCounts, StackCounts};

/// What counters of runtimes are called where they are absent.
pub const RUNTIME_METRICS: &str = "runtime-metrics";
/// What the depths of workers' queues are called where they are absent.
pub const LOCAL_QUEUE: &str = "local-queue";
/// What asks for tasks and workers.
pub const TOKIO: &str = "tokio";

/// A traced process and how it is traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Name of the service, for the viewer's title and the object key.
    pub service: Option<String>,
    /// What tells the service's instances apart, for the object key.
    pub instance: Option<String>,
    /// Name of the machine.
    pub host: Option<String>,
    /// Four lower-case letters, a hyphen and the target's pid: one for each
    /// run of a process.
    pub boot_id: String,
    /// Version of dial9-bpf.
    pub version: String,
    /// CPUs that the target may run on.
    pub available_parallelism: Option<usize>,
    /// Version of Tokio in the target.
    pub tokio_version: Option<String>,
    /// The target.
    pub target: Target,
    /// Whether intervals off the CPU come with their wakes.
    pub tells_waits: bool,
    /// Samples of the profile per second of a thread's time on a CPU, where there are any.
    pub profile_hz: Option<u32>,
    /// Which of the stacks of threads that leave their CPUs are taken, where any are.
    pub off_cpu_stacks: Option<String>,
    /// How many of these were left out since the recording began, to keep their bound.
    pub stacks_left_out: u64,
    /// Names of what was asked for.
    pub signals: Vec<&'static str>,
    /// Probes without a site, by name, and why.
    pub absent: Vec<(String, String)>,
    /// Processes so far that come from forks of the target and have executed no
    /// program; 0 also where that is not known.
    pub forked: u64,
    /// Intervals off the CPU so far that have no event, as the kernel told one of their
    /// switches only.
    pub untold_absences: u64,
    /// Names of the target's threads, by tid, as far as they are known.
    pub threads: BTreeMap<u32, String>,
    /// The machine and its kernel: names of facts, and these.
    pub machine: Vec<(&'static str, String)>,
    /// Names of the block devices that there are, by `MAJOR:MINOR`; none where block I/O is
    /// not recorded.
    pub devices: BTreeMap<String, String>,
    /// Files of the target with a Tokio of their own, by number; told where it is not
    /// the executable alone.
    pub objects: Vec<Object>,
    /// Where the target has, or had, code; told where callchains are recorded.
    pub mappings: Vec<Mapping>,
    /// What else is told, by key.
    pub facts: Vec<(String, String)>,
}

/// A file of the target with a Tokio of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Whether it is the target's executable.
    pub is_executable: bool,
    /// Its path as the target sees it.
    pub path: String,
    /// Its GNU build id, lower-case hex.
    pub build_id: Option<String>,
    /// Version of its Tokio.
    pub tokio_version: Option<String>,
    /// How many places of it are probed.
    pub sites: usize,
    /// Probes without a site in it, by name, and why.
    pub absent: Vec<(String, String)>,
}

/// Identity of the traced process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Its pid in the initial pid namespace.
    pub pid: u32,
    /// Its start, clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
    /// Path of its executable as the kernel names it.
    pub exe: String,
    /// GNU build id of the executable, lower-case hex.
    pub build_id: Option<String>,
}

/// Workers of one runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// What tells it from the others, unique in the target; `None` where there are none,
    /// or where it is not known whose the workers are.
    pub number: Option<u64>,
    /// Their ids.
    pub workers: Vec<u32>,
}

impl Runtime {
    /// Its key: with Tokio's number for it, behind that of the object but for object 0.
    fn name(&self) -> String {
        let numbers = self
            .number
            .map(|number| (object::object_of(number), object::number_of(number)));
        match numbers {
            None => format!("runtime.{RUNTIME}"),
            Some((0, number)) => format!("runtime.{RUNTIME}-{number}"),
            Some((object, number)) => format!("runtime.{RUNTIME}-{object}.{number}"),
        }
    }
}

/// What is known only when a segment ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// False when the segment was sealed before its interval ended, so that
    /// readers expect the rest elsewhere.
    pub is_complete: bool,
    /// Hits lost in the segment.
    pub lost: u64,
    /// Records whose bytes did not decode in the segment.
    pub undecoded: u64,
    /// Events that could not be written since the recording began.
    pub unwritten: u64,
    /// Stacks in the segment.
    pub stacks: StackCounts,
    /// Events of the segment by whether the depth of the worker's queue was measured.
    pub queues: QueueCounts,
    /// Why a recorder that keeps nothing has kept the segment.
    pub dump: Option<&'a str>,
}

/// What a runtime is called, with a hyphen and its number where that is known.
pub(crate) const RUNTIME: &str = "tokio";
/// dial9's: whether what polls and parks say of the worker's queue is measured. Its
/// readers look at no other, so that one event without a value makes it false.
const LOCAL_QUEUES: &str = "tokio.local_queue";
const LOCAL_QUEUE_NOTE: &str = "tasks in the worker's queue, at most 255, the task in the LIFO \
    slot not counted";
const RUNTIME_METRICS_NOTE: &str = "every 10 ms, of each runtime of which a task has ended, \
    until it shuts down; read from the target's memory";

impl Object {
    fn tell(&self, number: usize, entries: &mut Entries) {
        let Self {
            is_executable: _,
            path,
            build_id,
            tokio_version,
            sites,
            absent,
        } = self;
        let key = |name: &str| format!("dial9-bpf.object.{number}.{name}");
        entries.put(&key("path"), path);
        entries.put_known(&key("build_id"), build_id.as_ref());
        entries.put_known(&key("tokio_version"), tokio_version.as_ref());
        entries.put(&key("sites"), sites);
        for (probe, reason) in absent {
            entries.put(&key(&format!("absent.{probe}")), reason);
        }
    }
}

const CPU_TIME_NOTE: &str = "scheduler's sum for the thread plus its time on the CPU since the \
    last switch-in; behind by up to one tick for threads not yet seen switching";

impl Metadata {
    /// The map at the start of a segment.
    pub(crate) fn opening(&self) -> Vec<(String, String)> {
        let mut entries = Entries::default();
        let Self {
            service,
            instance,
            host,
            boot_id,
            version,
            available_parallelism,
            tokio_version,
            target,
            tells_waits,
            profile_hz,
            off_cpu_stacks,
            stacks_left_out: _,
            signals,
            absent,
            forked,
            untold_absences,
            objects,
            machine,
            mappings,
            devices,
            threads: _,
            facts,
        } = self;
        entries.put_known("service", service.as_ref());
        entries.put_known("instance", instance.as_ref());
        entries.put_known("host", host.as_ref());
        for (fact, value) in machine {
            entries.put(fact, value);
        }
        entries.put_devices(devices);
        entries.put("boot_id", boot_id);
        entries.put("dial9.dial9-bpf.version", version);
        entries.put_known(
            "process.available_parallelism",
            available_parallelism.as_ref(),
        );
        let tells_tasks = signals.contains(&TOKIO);
        if tells_tasks {
            entries.put("tokio.poll_coverage", "all");
            entries.put(LOCAL_QUEUES, "false");
        }
        entries.put_known("tokio.version", tokio_version.as_ref());
        entries.put("target.pid", &target.pid);
        entries.put("target.start_ticks", &target.start_ticks);
        entries.put("target.exe", &target.exe);
        entries.put_known("target.build_id", target.build_id.as_ref());
        if tells_tasks {
            entries.put("dial9-bpf.cpu_time", CPU_TIME_NOTE);
        }
        if *tells_waits {
            // dial9's: of how many parks one has its wait.
            entries.put("sched.wait_sample_rate", &1);
        }
        if let Some(hz) = profile_hz {
            entries.put_profile(*hz);
        }
        entries.put_known("dial9-bpf.off_cpu_stacks", off_cpu_stacks.as_ref());
        entries.put("dial9-bpf.signals", &signals.join(","));
        if tells_tasks && absent.iter().all(|(name, _)| name != RUNTIME_METRICS) {
            entries.put("dial9-bpf.runtime_metrics", RUNTIME_METRICS_NOTE);
        }
        for (probe, reason) in absent {
            entries.put(&format!("dial9-bpf.absent.{probe}"), reason);
        }
        if *forked > 0 {
            entries.put("dial9-bpf.forked", forked);
        }
        if *untold_absences > 0 {
            entries.put("dial9-bpf.untold_absences", untold_absences);
        }
        if objects.iter().any(|object| !object.is_executable) {
            for (number, object) in objects.iter().enumerate() {
                object.tell(number, &mut entries);
            }
        }
        entries.0.extend(mapping::entries(mappings));
        entries.0.extend(facts.iter().cloned());
        entries.0
    }

    /// The full map at the seal. `runtimes` have all ids given so far, `threads` the
    /// thread of each that is one now.
    pub(crate) fn closing(
        &self,
        runtimes: &[Runtime],
        threads: &[(u32, u32)],
        outcome: Outcome<'_>,
    ) -> Vec<(String, String)> {
        let Outcome {
            is_complete,
            lost,
            undecoded,
            unwritten,
            stacks,
            queues,
            dump,
        } = outcome;
        let mut entries = Entries(self.opening());
        entries.put_queues(queues);
        for runtime in runtimes {
            let name = runtime.name();
            let workers = &runtime.workers;
            let workers: Vec<String> = workers.iter().map(u32::to_string).collect();
            entries.put(&name, &workers.join(","));
        }
        let threads: Vec<String> = threads
            .iter()
            .map(|(worker, tid)| format!("{worker}:{tid}"))
            .collect();
        if !threads.is_empty() {
            entries.put("dial9-bpf.worker_threads", &threads.join(","));
        }
        for (tid, name) in &self.threads {
            entries.put(&format!("thread.{tid}"), name);
        }
        entries.put("segment.complete", &is_complete);
        entries.put_known("dial9-bpf.dump", dump);
        entries.put("dial9-bpf.lost", &lost);
        entries.put("dial9-bpf.undecoded", &undecoded);
        if unwritten > 0 {
            entries.put("dial9-bpf.unwritten", &unwritten);
        }
        if self.profile_hz.is_some() || self.off_cpu_stacks.is_some() {
            let StackCounts {
                complete,
                truncated,
                failed,
                kernel,
                outside_polls,
            } = stacks;
            entries.put("dial9-bpf.stacks.complete", &complete);
            entries.put("dial9-bpf.stacks.truncated", &truncated);
            entries.put("dial9-bpf.stacks.failed", &failed);
            entries.put("dial9-bpf.stacks.kernel", &kernel);
            entries.put("dial9-bpf.stacks.outside_polls", &outside_polls);
            entries.put("dial9-bpf.stacks.left_out", &self.stacks_left_out);
        }
        entries.0
    }
}

#[derive(Default)]
struct Entries(Vec<(String, String)>);

impl Entries {
    /// They are known where I/O is recorded.
    fn put_devices(&mut self, devices: &BTreeMap<String, String>) {
        for (numbers, name) in devices {
            self.put(&format!("device.{numbers}"), name);
        }
        if !devices.is_empty() {
            self.put("dial9-bpf.file_syncs", "of ext4 only");
        }
    }

    /// Nothing where none was measured.
    fn put_queues(&mut self, queues: QueueCounts) {
        let QueueCounts {
            measured_parks,
            other_parks,
            measured_polls,
            other_polls,
        } = queues;
        if measured_parks + measured_polls == 0 {
            return;
        }
        let are_all = queues.are_all_measured();
        let mut entries = self.0.iter_mut();
        if let Some((_, value)) = entries.find(|(key, _)| key == LOCAL_QUEUES) {
            *value = are_all.to_string();
        }
        self.put("dial9-bpf.local_queue", LOCAL_QUEUE_NOTE);
        let counts = [
            ("measured_parks", measured_parks),
            ("other_parks", other_parks),
            ("measured_polls", measured_polls),
            ("other_polls", other_polls),
        ];
        for (name, count) in counts {
            self.put(&format!("dial9-bpf.local_queue.{name}"), &count);
        }
    }

    /// With dial9's keys.
    fn put_profile(&mut self, hz: u32) {
        self.put("cpu.profile.enabled", "true");
        self.put("cpu.profile.backend", "perf");
        self.put("cpu.profile.event_source", "task-clock");
        self.put("cpu.profile.frequency_hz", &hz);
    }

    fn put(&mut self, key: &str, value: &(impl ToString + ?Sized)) {
        self.0.push((key.to_owned(), value.to_string()));
    }

    fn put_known(&mut self, key: &str, value: Option<&(impl ToString + ?Sized)>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_told_by_number() {
        let plugin = Object {
            is_executable: false,
            path: "/opt/plugin.so".into(),
            build_id: Some("ab".into()),
            tokio_version: None,
            sites: 12,
            absent: vec![("park".into(), "no such call".into())],
        };
        let metadata = Metadata {
            objects: vec![Object::default(), plugin],
            ..Metadata::default()
        };
        let of_plugin = |(key, value): (String, String)| {
            Some((key.strip_prefix("dial9-bpf.object.1.")?.to_owned(), value))
        };
        let told: Vec<_> = metadata
            .opening()
            .into_iter()
            .filter_map(of_plugin)
            .collect();
        let expected = [
            ("path", "/opt/plugin.so"),
            ("build_id", "ab"),
            ("sites", "12"),
            ("absent.park", "no such call"),
        ];
        assert_eq!(
            told,
            expected.map(|(key, value)| (key.into(), value.into()))
        );
    }

    #[test]
    fn the_seal_adds_what_the_start_could_not_know() {
        let metadata = Metadata {
            boot_id: "abcd-7".into(),
            absent: vec![("spawn".into(), "no bind function".into())],
            ..Metadata::default()
        };
        let opening = metadata.opening();
        let has = |entries: &[(String, String)], key: &str| {
            entries
                .iter()
                .find(|(k, _)| k == key)
                .map(|(_, value)| value.clone())
        };
        assert_eq!(has(&opening, "service"), None);
        assert_eq!(has(&opening, "segment.complete"), None);
        assert_eq!(has(&opening, "runtime.tokio"), None);
        assert_eq!(has(&opening, "tokio.unstable"), None);
        assert_eq!(
            has(&opening, "dial9-bpf.absent.spawn").as_deref(),
            Some("no bind function")
        );
        let outcome = Outcome {
            is_complete: true,
            lost: 3,
            undecoded: 0,
            unwritten: 0,
            stacks: StackCounts::default(),
            queues: QueueCounts::default(),
            dump: None,
        };
        let runtime = |number, workers: &[u32]| Runtime {
            number,
            workers: workers.to_vec(),
        };
        let of_plugin = runtime(Some(object::unique(2, 1)), &[3]);
        let runtimes = [runtime(None, &[0, 1]), runtime(Some(3), &[2]), of_plugin];
        let closing = metadata.closing(&runtimes, &[(0, 70), (1, 71)], outcome);
        assert_eq!(has(&closing, "runtime.tokio").as_deref(), Some("0,1"));
        assert_eq!(has(&closing, "runtime.tokio-3").as_deref(), Some("2"));
        assert_eq!(has(&closing, "runtime.tokio-2.1").as_deref(), Some("3"));
        assert_eq!(
            has(&closing, "dial9-bpf.worker_threads").as_deref(),
            Some("0:70,1:71")
        );
        assert_eq!(has(&closing, "segment.complete").as_deref(), Some("true"));
        assert_eq!(has(&closing, "dial9-bpf.lost").as_deref(), Some("3"));
        assert_eq!(closing[..opening.len()], opening);
    }
}
