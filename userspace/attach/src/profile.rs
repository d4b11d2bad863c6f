//! The profile: where the target's threads are at ticks of their own CPU time, and where
//! they leave their CPUs inside polls.
//!
//! In: the loaded object. Out: perf events, one a thread; stacks as bytes. Never: an event
//! on a thread that has one already by inheritance, which would count it twice; a stack in
//! the rings of the records.

use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use aya::{
    Ebpf,
    maps::{Map, MapData, PerCpuArray},
    programs::{PerfEvent, ProgramError},
};
use dial9_bpf_abi::stack::Pace;
use rustix::process::{Resource, getrlimit};

use crate::{
    AttachError, Tracer,
    btf::Offsets,
    maps::{Maps, absent},
    program::{CPU_SAMPLE, load_empty, refused},
    ring::Ring,
    rings::{Drained, os_error},
    sys::{self, Hook},
    tracer::map_unreadable,
};

/// What is absent where the kernel refuses the clock.
pub const CPU_PROFILE: &str = "cpu-profile";
/// What is absent where it refuses the stacks of threads that wait.
pub const OFF_CPU_STACKS: &str = "off-cpu-stacks";
/// How often it is tried to have one event on each thread while threads start.
const ATTEMPTS: usize = 10;
/// Descriptors that the events leave: for links, files and what comes later.
const SPARE_DESCRIPTORS: u64 = 128;
/// Bytes of the ring of stacks for each CPU: 0.3 s of samples at 99 Hz and 32 KiB.
const BYTES_A_CPU: u32 = 1 << 20;
/// Least and most bytes of the ring.
const MIN_BYTES: u32 = 4 << 20;
const MAX_BYTES: u32 = 64 << 20;

/// The ring of stacks, and the events that fill it.
#[derive(Debug)]
pub(crate) struct Profile {
    ring: Ring,
    events: Vec<OwnedFd>,
    hz: Option<u32>,
    has_off_cpu: bool,
}

/// Events on the threads of a process.
struct Events {
    fds: Vec<OwnedFd>,
    /// Threads that have started meanwhile, and may have none.
    unknown: usize,
}

/// Bytes of the ring of stacks on a machine with so many CPUs.
pub(crate) fn ring_bytes(cpus: usize) -> u32 {
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
    let bytes = BYTES_A_CPU.saturating_mul(cpus).clamp(MIN_BYTES, MAX_BYTES);
    1 << bytes.ilog2()
}

impl Profile {
    /// Takes the ring, and has the kernel sample the process so often a second of CPU time;
    /// what it refuses is added to `absent`.
    pub(crate) fn begin(
        (ebpf, offsets, maps): (&mut Ebpf, &Offsets, &mut Maps),
        (pid, hz): (u32, u32),
        switch_refused: Option<&str>,
        absent: &mut Vec<(&'static str, String)>,
    ) -> Result<Self, AttachError> {
        let mut profile = Self::adopt(maps)?;
        profile.has_off_cpu = switch_refused.is_none() && offsets.sched.is_ok();
        if let Err(lacking) = &offsets.sched {
            let reason = lacking.in_full();
            absent.extend([CPU_PROFILE, OFF_CPU_STACKS].map(|name| (name, reason.clone())));
            return Ok(profile);
        }
        absent.extend(switch_refused.map(|reason| (OFF_CPU_STACKS, reason.to_owned())));
        match load(ebpf).and_then(|program| Events::on(program.as_fd(), pid, hz)) {
            Ok(Events { fds, unknown }) => {
                profile.events = fds;
                profile.hz = Some(hz);
                if unknown > 0 {
                    let reason = format!("{unknown} threads that started during the attach");
                    absent.push(("cpu-profile-of-threads", reason));
                }
            }
            Err(error) => absent.push((CPU_PROFILE, error.in_full())),
        }
        Ok(profile)
    }

    /// The ring alone, as a predecessor has left it or before anything fills it.
    pub(crate) fn adopt(maps: &mut Maps) -> Result<Self, AttachError> {
        let Map::RingBuf(map) = maps.take("STACKS")? else {
            return Err(absent("ring of stacks"));
        };
        let unmapped = |error: &(dyn std::error::Error + 'static)| {
            refused("map the ring of stacks", os_error(error))
        };
        let bytes = map.info().map_err(|error| unmapped(&error))?.max_entries();
        let ring = Ring::map(map, bytes).map_err(|error| unmapped(&error))?;
        Ok(Self {
            ring,
            events: Vec::new(),
            hz: None,
            has_off_cpu: true,
        })
    }

    /// The ring's map.
    pub(crate) fn data(&self) -> &MapData {
        self.ring.data()
    }

    /// Ends the ticks.
    pub(crate) fn stop(&mut self) {
        self.events.clear();
    }
}

fn load(ebpf: &mut Ebpf) -> Result<OwnedFd, AttachError> {
    let failed = |error: ProgramError| refused("load the profile's program", os_error(&error));
    let program: &mut PerfEvent = ebpf
        .program_mut(CPU_SAMPLE)
        .ok_or_else(|| absent(CPU_SAMPLE))?
        .try_into()
        .map_err(failed)?;
    program.load().map_err(failed)?;
    let fd = program.fd().map_err(failed)?.as_fd().try_clone_to_owned();
    fd.map_err(|error| refused("load the profile's program", error))
}

/// Whether the kernel would sample a process so often a second of CPU time: asked of one
/// thread, with a program that does nothing.
///
/// # Errors
/// Why not.
pub fn check(pid: u32, hz: u32) -> Result<(), String> {
    let program = load_empty(Hook::PerfEvent, false);
    let program = program.map_err(|(error, _)| refused("load a program", error).in_full())?;
    let event = sys::link_task_clock(program.as_fd(), pid, hz);
    let event = event.map_err(|error| refused("sample the threads", error).in_full());
    event.map(drop)
}

impl Events {
    /// One on each thread. A thread that starts while they are made has one or none: by
    /// which thread it was started is not told. So they are made again.
    fn on(program: BorrowedFd<'_>, pid: u32, hz: u32) -> Result<Self, AttachError> {
        let opened = |error| refused("sample the threads", error);
        leave_descriptors(threads(pid)?.len()).map_err(opened)?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let before = threads(pid)?;
            let mut fds = Vec::with_capacity(before.len());
            for tid in &before {
                match sys::link_task_clock(program, *tid, hz) {
                    Ok(event) => fds.push(event),
                    // It is gone.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(opened(error)),
                }
            }
            let unknown = threads(pid)?.difference(&before).count();
            if unknown == 0 || attempt == ATTEMPTS {
                return Ok(Self { fds, unknown });
            }
        }
    }
}

/// Whether so many events leave descriptors for what else is to be opened.
fn leave_descriptors(events: usize) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile).current;
    match limit {
        Some(limit) if events as u64 + SPARE_DESCRIPTORS > limit => Err(io::Error::other(format!(
            "{events} threads, and no more than {limit} files may be open (ulimit -n)"
        ))),
        _ => Ok(()),
    }
}

/// Threads of a process.
fn threads(pid: u32) -> Result<BTreeSet<u32>, AttachError> {
    let path = format!("/proc/{pid}/task");
    let listed = || -> io::Result<BTreeSet<u32>> {
        let mut tids = BTreeSet::new();
        for entry in fs::read_dir(&path)? {
            let name = entry?.file_name();
            tids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(tids)
    };
    listed().map_err(|source| AttachError::Proc {
        path: path.clone(),
        source,
    })
}

impl Tracer {
    /// Hands the stacks that are in their ring to `take`, and frees their places.
    pub fn drain_stacks(&mut self, mut take: impl FnMut(&[u8])) -> Drained {
        let Some(Profile { ring, .. }) = &mut self.profile else {
            return Drained::All;
        };
        let until = ring.produced();
        while ring.read() < until
            && let Some(stack) = ring.next()
        {
            take(stack);
            ring.give_back();
        }
        if ring.read() >= until {
            Drained::All
        } else {
            Drained::Blocked
        }
    }

    /// Samples per second of a thread's CPU time; `None` where there are none.
    pub fn profile_hz(&self) -> Option<u32> {
        self.profile.as_ref()?.hz
    }

    /// Whether stacks of threads that wait inside polls are taken.
    pub fn takes_off_cpu_stacks(&self) -> bool {
        let profile = self.profile.as_ref();
        profile.is_some_and(|profile| profile.has_off_cpu)
    }

    /// Bytes of the ring of stacks; 0 where there is none.
    pub fn stack_ring_bytes(&self) -> u64 {
        let profile = self.profile.as_ref();
        profile.map_or(0, |profile| profile.ring.data_bytes())
    }

    /// Stacks of threads that wait inside polls which were left out, since their CPUs had
    /// taken many.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the counters cannot be read.
    pub fn stacks_left_out(&self) -> Result<u64, AttachError> {
        let paces: PerCpuArray<&MapData, PaceBytes> = (self.maps.get("PACE")?)
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        let paces = paces.get(&0, 0).map_err(|error| map_unreadable(&error))?;
        Ok(paces.iter().map(|PaceBytes(pace)| pace.left_out).sum())
    }
}

/// [`Pace`] as aya reads map values.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct PaceBytes(Pace);

// SAFETY: integers without padding; every bit pattern is valid.
unsafe impl aya::Pod for PaceBytes {}

#[cfg(test)]
mod tests {
    use super::{ring_bytes, threads};

    #[test]
    fn the_ring_grows_with_the_machine_within_limits() {
        let mib = [1, 2, 6, 48, 1000].map(|cpus| ring_bytes(cpus) >> 20);
        assert_eq!(mib, [4, 4, 4, 32, 64]);
    }

    #[test]
    fn our_threads_are_found() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let own = u32::try_from(own).expect("positive");
        assert!(threads(std::process::id()).expect("ours").contains(&own));
    }
}
