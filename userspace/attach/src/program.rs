//! The kernel programs for the probes: found in the object, relocated, loaded.
//!
//! In: the embedded object and the maps that aya made. Out: program fds. Never:
//! a program by a name that is not tested against the object.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
};

use aya::{
    Ebpf,
    maps::{Map, MapData},
};
use aya_obj::{Object, generated::bpf_insn};
use dial9_bpf_probes::plan::Probe;

use crate::{
    AttachError,
    link::LinkKind,
    privilege,
    sys::{self, Hook},
};

/// Name of the scheduler's program in the object, and of its tracepoint.
pub(crate) const SCHED_SWITCH: &str = "sched_switch";
/// The same of the program that sees the target's exec.
pub(crate) const SCHED_PROCESS_EXEC: &str = "sched_process_exec";
/// The same of those that see exits and forks.
pub(crate) const SCHED_PROCESS_EXIT: &str = "sched_process_exit";
pub(crate) const SCHED_PROCESS_FORK: &str = "sched_process_fork";

/// What is absent where the one for execs was refused, and why.
pub(crate) fn exec_unseen(reason: &str) -> (&'static str, String) {
    let late = "an exec of the target is noticed a second late, or not at all";
    ("exec", format!("{late}: {reason}"))
}

/// Names of the programs that tell how the target ends, and what it forks.
pub(crate) const LIFE: [&str; 3] = [SCHED_PROCESS_EXIT, "signal_deliver", SCHED_PROCESS_FORK];
/// Name of the program that sees who wakes the target's threads.
pub(crate) const SCHED_WAKING: &str = "sched_waking";
/// Name of the profile's program.
pub(crate) const CPU_SAMPLE: &str = "cpu_sample";
/// The same of the program that sees connections arrive.
pub(crate) const INET_SOCK_SET_STATE: &str = "inet_sock_set_state";
/// Name of the program that looks through the target's files for listening sockets.
pub(crate) const ACCEPT_QUEUES: &str = "accept_queues";
/// The iterator that it is for.
pub(crate) const TASK_FILE: &str = "task_file";

/// The programs on block I/O, by their tracepoints, in the order in which they are
/// attached: ends before begins.
pub(crate) const BLOCK_IO: [&str; 6] = [
    "block_bio_complete",
    "block_rq_complete",
    "block_rq_issue",
    "block_bio_backmerge",
    "block_bio_frontmerge",
    BLOCK_BIO_QUEUE,
];
/// The last of them.
pub(crate) const BLOCK_BIO_QUEUE: &str = "block_bio_queue";
/// The same on syncs.
pub(crate) const SYNCS: [&str; 2] = ["ext4_sync_file_exit", "ext4_sync_file_enter"];

/// Name of the program of declared probes.
pub(crate) const DECLARED: &str = "declared";

/// Name of a probe's program in the object.
pub(crate) const fn program_name(probe: Probe) -> &'static str {
    match probe {
        Probe::PollStart => "poll_start",
        Probe::PollEnd => "poll_end",
        Probe::Wake => "wake",
        Probe::Spawn => "spawn",
        Probe::Terminate => "terminate",
        Probe::Park => "park",
        Probe::Unpark => "unpark",
        Probe::Panic => "panic_location",
        Probe::PanicMessage => "panic_message",
        Probe::BlockOn => "block_on",
        Probe::BlockOnEnd => "block_on_end",
    }
}

/// What this kernel lets us do with uprobe programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    pub(crate) link: LinkKind,
    pub(crate) sleepable: bool,
}

impl Abilities {
    /// Asks the kernel, best first: multi and sleepable (Linux 6.6), multi, perf
    /// and sleepable (6.0), perf (5.15). `wanted` restricts it to one kind.
    ///
    /// # Errors
    /// [`AttachError::Privilege`] or [`AttachError::Kernel`] when it takes none.
    pub fn probe(wanted: Option<LinkKind>) -> Result<Self, AttachError> {
        let kinds = match wanted {
            Some(kind) => vec![kind],
            None => vec![LinkKind::Multi, LinkKind::Perf],
        };
        let mut refusal = io::Error::from(io::ErrorKind::Unsupported);
        for link in kinds {
            for sleepable in [true, false] {
                match try_kind(link, sleepable) {
                    Ok(()) => return Ok(Self { link, sleepable }),
                    Err(error) => refusal = error,
                }
            }
        }
        Err(refused("attach programs to uprobes", refusal))
    }
}

impl Abilities {
    /// The same without sleepable programs, which are a little cheaper and can
    /// fault a page of the target in: what kernels before 6.0 have.
    #[must_use]
    pub fn without_sleeping(self) -> Self {
        Self {
            sleepable: false,
            ..self
        }
    }
}

fn try_kind(link: LinkKind, sleepable: bool) -> io::Result<()> {
    let program = load_empty(hook_of(link), sleepable).map_err(|(error, _)| error)?;
    match link {
        LinkKind::Multi => links_multi(&program),
        LinkKind::Perf => links_perf(&program),
    }
}

/// Whether there are multi links. Kernels before 6.6 load a program for them without a
/// look at its attach type (kernel/bpf/syscall.c, `bpf_prog_load_check_attach`); but only
/// who knows them sees that a folder is no file to probe (`kernel/trace/bpf_trace.c`,
/// `bpf_uprobe_multi_link_attach`).
fn links_multi(program: &OwnedFd) -> io::Result<()> {
    match sys::link_uprobe_multi(program.as_fd(), c"/", &[0], &[0], 0) {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Whether there are links of perf events. Who knows them sees that there is no such file
/// (kernel/bpf/syscall.c, `bpf_perf_link_attach`).
fn links_perf(program: &OwnedFd) -> io::Result<()> {
    match sys::link_perf_event(program.as_fd(), -1, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(io::Error::other(
            "it has no attach cookies (Linux 5.15 has)",
        )),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Loads a program that does nothing.
pub(crate) fn load_empty(hook: Hook, sleepable: bool) -> Result<OwnedFd, (io::Error, String)> {
    // r0 = 0; exit (Documentation/bpf/standardization/instruction-set.rst).
    let instructions = [instruction(0xb7), instruction(0x95)];
    sys::load_program(&sys::ProgramLoad {
        instructions: &instructions,
        license: c"GPL",
        name: "dial9_ability",
        hook,
        sleepable,
    })
}

pub(crate) const fn hook_of(link: LinkKind) -> Hook {
    match link {
        LinkKind::Multi => Hook::UprobeMulti,
        LinkKind::Perf => Hook::Uprobe,
    }
}

fn instruction(code: u8) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm: 0,
    }
}

/// The object's programs, relocated against live maps.
pub(crate) struct Programs {
    object: Object,
    abilities: Abilities,
}

impl Programs {
    /// # Errors
    /// [`AttachError::Object`] when the object does not relocate.
    pub(crate) fn relocate(
        bytes: &[u8],
        ebpf: &Ebpf,
        abilities: Abilities,
    ) -> Result<Self, AttachError> {
        let broken = |error: &dyn std::error::Error| AttachError::Object {
            reason: error.to_string(),
        };
        let mut object = Object::parse(bytes).map_err(|error| broken(&error))?;
        let fds: HashMap<&str, RawFd> = ebpf
            .maps()
            .filter_map(|(name, map)| Some((name, map_fd(map)?)))
            .collect();
        let maps: Vec<_> = object.maps.drain().collect();
        let code: HashSet<usize> = object
            .functions
            .keys()
            .map(|(section, _)| *section)
            .collect();
        let live = maps
            .iter()
            .filter_map(|(name, map)| fds.get(name.as_str()).map(|fd| (name.as_str(), *fd, map)));
        object
            .relocate_maps(live, &code)
            .map_err(|error| broken(&error))?;
        object
            .relocate_calls(&code)
            .map_err(|error| broken(&error))?;
        Ok(Self { object, abilities })
    }

    /// # Errors
    /// [`AttachError::Verifier`] with the last line of the verifier's log.
    pub(crate) fn load(&self, probe: Probe) -> Result<OwnedFd, AttachError> {
        self.load_named(program_name(probe), self.abilities.sleepable)
    }

    /// The programs of all probes that the kernel takes; what it refuses and a recording goes
    /// on without is added to `absent`.
    ///
    /// # Errors
    /// As [`Programs::load`].
    pub(crate) fn load_all(
        &self,
        absent: &mut Vec<(&'static str, String)>,
    ) -> Result<Vec<(Probe, OwnedFd)>, AttachError> {
        let mut programs = Vec::with_capacity(Probe::ALL.len());
        for probe in Probe::ALL {
            match self.load(probe) {
                Ok(program) => programs.push((probe, program)),
                Err(error) if probe.is_optional() => absent.push((probe.name(), error.in_full())),
                Err(error) => return Err(error),
            }
        }
        Ok(programs)
    }

    /// The program of declared probes, where it is wanted. It fills the CPU's scratch, and
    /// must not sleep meanwhile.
    ///
    /// # Errors
    /// As [`Programs::load`].
    pub(crate) fn load_declared(&self, is_wanted: bool) -> Result<Option<OwnedFd>, AttachError> {
        is_wanted
            .then(|| self.load_named(DECLARED, false))
            .transpose()
    }

    fn load_named(&self, name: &'static str, sleepable: bool) -> Result<OwnedFd, AttachError> {
        let absent = || AttachError::Object {
            reason: format!("no program {name}"),
        };
        let program = self.object.programs.get(name).ok_or_else(absent)?;
        let function = self
            .object
            .functions
            .get(&program.function_key())
            .ok_or_else(absent)?;
        let loaded = sys::load_program(&sys::ProgramLoad {
            instructions: &function.instructions,
            license: &program.license,
            name,
            hook: hook_of(self.abilities.link),
            sleepable,
        });
        loaded.map_err(|(source, log)| {
            if log.is_empty() {
                return refused(&format!("load program {name}"), source);
            }
            let last = log
                .lines()
                .rev()
                .find(|line| !line.starts_with("processed"));
            let log = last.unwrap_or_default().to_owned();
            AttachError::Verifier {
                program: name,
                source,
                log,
            }
        })
    }
}

/// The fd of a map of the types that the object declares.
fn map_fd(map: &Map) -> Option<RawFd> {
    let data: &MapData = match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::PerCpuArray(data)
        | Map::ArrayOfMaps(data)
        | Map::RingBuf(data) => data,
        _ => return None,
    };
    Some(data.fd().as_fd().as_raw_fd())
}

/// An error for what the kernel refused: for want of a capability, or because
/// it cannot.
pub(crate) fn refused(doing: &str, source: io::Error) -> AttachError {
    let denied = source.kind() == io::ErrorKind::PermissionDenied;
    match privilege::missing() {
        Some(missing) if denied => AttachError::Privilege {
            doing: doing.to_owned(),
            missing,
        },
        _ => AttachError::Kernel {
            doing: doing.to_owned(),
            source,
        },
    }
}
