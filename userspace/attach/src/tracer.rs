//! The one place where programs, maps, rings and links of a target meet.
//!
//! In: a target, then its objects. Out: records through [`Tracer::rings`], losses
//! and gaps. Never: anything that outlives it, but what it was told to keep and
//! then only a process that is killed; dropping it detaches.

use std::{io, os::fd::OwnedFd};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Array, MapData, PerCpuArray},
};
use dial9_bpf_abi::{
    declared::MAX_DEFINITIONS,
    limits::{KNOWN_TASKS, MAX_CPUS, NO_TARGET},
    loss::{LossCause, counter_index},
    record::RecordKind,
    thread::SLOTS,
};
use dial9_bpf_probes::plan::Probe;

use crate::{
    AttachError, Object, Target,
    btf::{self, Offsets},
    declared::Places,
    keep::Kept,
    link::{self, Attached, LateLinks, LinkKind, Links},
    local_queue::QueueReads,
    maps::Maps,
    profile::{self, Profile},
    program::{
        Abilities, LIFE, Programs, SCHED_PROCESS_EXEC, SCHED_SWITCH, SCHED_WAKING, exec_unseen,
        refused,
    },
    rings::{Rings, os_error},
    tracepoint::{self, attach_tracepoint, attach_whole},
};

/// The kernel object, built by `cargo xtask build-ebpf`.
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("DIAL9_BPF_OBJECT"));

/// What is absent without the scheduler's switches, and without its wakes.
pub(crate) const OFF_CPU: &str = "off-cpu";
pub(crate) const WAKERS: &str = "thread-wakes";

/// How to trace.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is asked for by itself")]
pub struct Options {
    /// Budget of all rings together, bytes.
    pub ring_bytes: u64,
    /// How to attach: what [`Abilities::probe`] found.
    pub abilities: Abilities,
    /// Whether intervals off the CPU are recorded.
    pub sched: bool,
    /// Whether accept queues are.
    pub net: bool,
    /// How often a thread is sampled in a second of its CPU time; `None` for no profile.
    pub profile_hz: Option<u32>,
    /// Where the depth of a worker's queue is read.
    pub queue_reads: QueueReads,
    /// Whether block I/O is.
    pub io: bool,
    /// Whether probes are declared.
    pub declared: bool,
}

impl Options {
    /// Nothing but probes at Tokio's sites; what else is wanted is set on top.
    pub fn bare(ring_bytes: u64, abilities: Abilities) -> Self {
        Self {
            ring_bytes,
            abilities,
            sched: false,
            net: false,
            profile_hz: None,
            io: false,
            queue_reads: QueueReads::AtParks,
            declared: false,
        }
    }
}

/// Hits that were lost, by where, what and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The CPU.
    pub cpu: u32,
    /// What the hits would have become.
    pub kind: RecordKind,
    /// Why they did not.
    pub cause: LossCause,
    /// How many since the programs were loaded, without those that a predecessor
    /// has told.
    pub lost: u64,
}

/// A target's programs, maps, rings and links.
#[derive(Debug)]
pub struct Tracer {
    pub(crate) links: Vec<Links>,
    pub(crate) rings: Rings,
    pub(crate) programs: Vec<(Probe, OwnedFd)>,
    /// Links of the kernel's own tracepoints, by program.
    pub(crate) tracepoints: Vec<(String, OwnedFd)>,
    /// Their programs; none of a tracer that was taken over.
    pub(crate) tracepoint_programs: Vec<(String, OwnedFd)>,
    /// The program of declared probes, where some are to be attached.
    pub(crate) declared_program: Option<OwnedFd>,
    pub(crate) declared: Vec<Places>,
    pub(crate) declared_links: Vec<OwnedFd>,
    pub(crate) maps: Maps,
    pub(crate) profile: Option<Profile>,
    pub(crate) abilities: Abilities,
    pub(crate) cpu_time_behind: Option<String>,
    pub(crate) absent: Vec<(&'static str, String)>,
    pub(crate) has_remembered: bool,
    pub(crate) kept: Option<Kept>,
    /// What predecessors have told.
    pub(crate) told: Vec<Loss>,
}

impl Tracer {
    /// Loads everything; nothing is attached to the target yet.
    ///
    /// # Errors
    /// [`AttachError::Privilege`], [`AttachError::Kernel`],
    /// [`AttachError::Btf`], [`AttachError::Verifier`],
    /// [`AttachError::RingBudget`].
    pub fn load(target: &Target, options: Options) -> Result<Self, AttachError> {
        Self::load_with(target, options, false)
    }

    /// Loads what declared probes need and nothing else: besides them only the end of
    /// the target's program is seen, where it executes another.
    ///
    /// # Errors
    /// As [`Tracer::load`].
    pub fn load_declared(
        target: &Target,
        ring_bytes: u64,
        abilities: Abilities,
    ) -> Result<Self, AttachError> {
        let options = Options {
            declared: true,
            ..Options::bare(ring_bytes, abilities)
        };
        Self::load_with(target, options, true)
    }

    fn load_with(
        target: &Target,
        options: Options,
        is_declared_alone: bool,
    ) -> Result<Self, AttachError> {
        let Options {
            abilities,
            sched,
            net,
            profile_hz,
            io,
            ..
        } = options;
        let offsets = btf::of_running_kernel()?;
        let mut ebpf = load_maps(target, options, &offsets)?;
        let relocated = Programs::relocate(OBJECT, &ebpf, abilities)?;
        let mut absent = Vec::new();
        let programs = if is_declared_alone {
            Vec::new()
        } else {
            relocated.load_all(&mut absent)?
        };
        let declared_program = relocated.load_declared(options.declared)?;
        // The kernel's types, read once: that takes a while.
        let btf = Btf::from_sys_fs();
        let mut tracepoints = attach_whole(
            (&mut ebpf, &btf, &offsets),
            (target.pid(), net, io),
            &mut absent,
        );
        let mut refusal = |name: &'static str| match attach_tracepoint(&mut ebpf, &btf, name) {
            Ok(link) => {
                tracepoints.push((name.to_owned(), link));
                None
            }
            Err(reason) => Some(reason),
        };
        // Without it CPU times lag.
        let switches = (!is_declared_alone).then(|| refusal(SCHED_SWITCH));
        let cpu_time_behind = switches.flatten();
        absent.extend(refusal(SCHED_PROCESS_EXEC).map(|reason| exec_unseen(&reason)));
        for name in LIFE.into_iter().filter(|_| !is_declared_alone) {
            let lacking = offsets.life.as_ref().err().map(AttachError::in_full);
            absent.extend(
                lacking
                    .or_else(|| refusal(name))
                    .map(|reason| (name, reason)),
            );
        }
        if sched {
            let lacking = offsets.sched.as_ref().err().map(AttachError::in_full);
            let off_cpu = lacking.clone().or_else(|| cpu_time_behind.clone());
            absent.extend(off_cpu.map(|reason| (OFF_CPU, reason)));
            let wakers = lacking.or_else(|| refusal(SCHED_WAKING));
            absent.extend(wakers.map(|reason| (WAKERS, reason)));
        }
        let mut maps = Maps::of(&mut ebpf);
        let rings = Rings::create(maps.get_mut("RINGS")?, options.ring_bytes)?;
        let profile = match profile_hz {
            Some(hz) => Some(Profile::begin(
                (&mut ebpf, &offsets, &mut maps),
                (target.pid(), hz),
                cpu_time_behind.as_deref(),
                &mut absent,
            )?),
            None => None,
        };
        Ok(Self {
            links: Vec::new(),
            rings,
            programs,
            tracepoint_programs: tracepoint::programs_of(&ebpf, &tracepoints),
            tracepoints,
            declared_program,
            declared: Vec::new(),
            declared_links: Vec::new(),
            maps,
            profile,
            abilities,
            cpu_time_behind,
            absent,
            has_remembered: false,
            kept: None,
            told: Vec::new(),
        })
    }

    /// Attaches to every site of the objects, or to none. Hits count from the
    /// moment when all are live.
    ///
    /// # Errors
    /// [`AttachError::NoProcess`] when the target ended meanwhile,
    /// [`AttachError::Executed`] when its program did,
    /// [`AttachError::Link`] with what the kernel answered.
    pub fn attach(&mut self, target: &Target, objects: &[Object]) -> Result<(), AttachError> {
        self.forget_tasks()?;
        let mut sites = objects.iter().flat_map(|object| &object.plan().sites);
        self.has_remembered = sites.any(|site| site.cookie.remembers);
        let attached = link::attach(self.abilities.link, &self.programs, target.pid(), objects);
        let Attached { links, absent } = match attached {
            Ok(attached) => attached,
            Err(_) if !target.is_same() => {
                return Err(AttachError::NoProcess { pid: target.pid() });
            }
            Err(error) => return Err(error),
        };
        self.links = links;
        self.absent.extend(absent);
        self.attach_declared(target)?;
        // Those that there are, so that no arrival is missed from the first moment on.
        self.read_accept_queues()?;
        self.set_target(target.pid())?;
        // Seen before the word was set, it did not end the hits.
        if self.has_executed()? {
            self.detach();
            return Err(AttachError::Executed { pid: target.pid() });
        }
        Ok(())
    }

    /// What attaches to objects that the target loads later; `None` for a tracer that
    /// was taken over, which has no programs.
    ///
    /// # Errors
    /// The system's, when it has no descriptor left.
    pub fn late_links(&self, target: &Target) -> io::Result<Option<LateLinks>> {
        if self.programs.is_empty() {
            return Ok(None);
        }
        let programs = self.programs.iter();
        let programs = programs.map(|(probe, program)| Ok((*probe, program.try_clone()?)));
        Ok(Some(LateLinks {
            kind: self.abilities.link,
            programs: programs.collect::<io::Result<_>>()?,
            pid: target.pid(),
        }))
    }

    /// Hands out the links of an object that is not mapped any more: whoever drops
    /// them waits a while. None of a tracer that is kept.
    pub fn release(&mut self, object: u8) -> Vec<Links> {
        if self.is_kept() {
            return Vec::new();
        }
        let is_of = |links: &mut Links| links.object() == object;
        self.links.extract_if(.., is_of).collect()
    }

    /// Ends the hits, all at one moment, then detaches, which takes a while;
    /// the rings keep what they hold. No successor can take over any more.
    pub fn detach(&mut self) {
        // What has been accepted since the last time; nothing where it fails.
        let _ = self.read_accept_queues();
        // A word that cannot be written lets hits through until the last link is
        // gone: then the end is not one moment, and nothing else is wrong.
        let _ = self.set_target(NO_TARGET);
        if let Some(kept) = &self.kept {
            kept.detach();
        }
        if let Some(profile) = &mut self.profile {
            profile.stop();
        }
        // The other way round: begins before ends.
        while let Some(link) = self.declared_links.pop() {
            drop(link);
        }
        while let Some(links) = self.links.pop() {
            drop(links);
        }
    }

    /// Sets the process whose hits count: one word, so that the hits of all
    /// programs begin and end at one moment.
    fn set_target(&mut self, pid: u32) -> Result<(), AttachError> {
        let mut target: Array<&mut MapData, u32> = self
            .maps
            .get_mut("data")?
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        target
            .set(0, pid, 0)
            .map_err(|error| map_unreadable(&error))
    }

    /// Empties the array of known tasks, if it may hold any: while nothing was
    /// attached, tasks have ended unseen.
    fn forget_tasks(&mut self) -> Result<(), AttachError> {
        if !self.has_remembered {
            return Ok(());
        }
        let mut known: Array<&mut MapData, u64> = self
            .maps
            .get_mut("KNOWN")?
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        for index in 0..KNOWN_TASKS {
            known
                .set(index, 0, 0)
                .map_err(|error| map_unreadable(&error))?;
        }
        Ok(())
    }

    /// How the programs are attached.
    pub fn link_kind(&self) -> LinkKind {
        self.abilities.link
    }

    /// The rings.
    pub fn rings(&mut self) -> &mut Rings {
        &mut self.rings
    }

    /// Why CPU times lag behind by up to a tick; `None` when they are exact.
    pub fn cpu_time_behind(&self) -> Option<&str> {
        self.cpu_time_behind.as_deref()
    }

    /// Whether every interval off the CPU comes with the wake that ends it.
    pub fn tells_waits(&self) -> bool {
        let is_there = |name: &str| self.tracepoints.iter().any(|(of, _)| of == name);
        is_there(SCHED_SWITCH) && is_there(SCHED_WAKING)
    }

    /// Whether the target has executed another program, or its own again, since
    /// the programs were loaded: then its hits have ended.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the word cannot be read.
    pub fn has_executed(&self) -> Result<bool, AttachError> {
        let executed: Array<&MapData, u32> = self
            .maps
            .get("EXECUTED")?
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        let word = executed.get(&0, 0);
        Ok(word.map_err(|error| map_unreadable(&error))? == 1)
    }

    /// What the trace lacks since the kernel refused it, by name, and why; after
    /// [`Tracer::attach`].
    pub fn absent(&self) -> &[(&'static str, String)] {
        &self.absent
    }

    /// What was lost so far; only counts above zero.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the counters cannot be read.
    pub fn losses(&self) -> Result<Vec<Loss>, AttachError> {
        let mut losses = losses_of(&self.maps)?;
        for loss in &mut losses {
            loss.lost = loss.lost.saturating_sub(self.told_of(loss));
        }
        losses.retain(|loss| loss.lost > 0);
        Ok(losses)
    }

    /// How much of a counter predecessors have told.
    pub(crate) fn told_of(&self, loss: &Loss) -> u64 {
        let counter = |loss: &Loss| (loss.cpu, loss.kind, loss.cause);
        let told = self.told.iter().find(|told| counter(told) == counter(loss));
        told.map_or(0, |told| told.lost)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.detach();
    }
}

fn load_maps(target: &Target, options: Options, offsets: &Offsets) -> Result<Ebpf, AttachError> {
    let sleepable = u32::from(options.abilities.sleepable);
    let tgid = target.pid();
    let life = offsets.life.as_ref().copied().unwrap_or_default();
    let sched = offsets.sched.as_ref().copied().unwrap_or_default();
    let has_state = u32::from(sched.has_state);
    let records_sched = u32::from(options.sched && offsets.sched.is_ok());
    let off_cpu_stacks = u32::from(options.profile_hz.is_some() && offsets.sched.is_ok());
    let poll_queues = u32::from(options.queue_reads == QueueReads::AtPolls);
    let cpus = cpus()?;
    let net = offsets.net.as_ref().map_or(&[][..], |net| &net.0);
    let io = offsets.io.as_ref().map_or(&[][..], |io| &io.0);
    let offsets = offsets.task;
    let mut loader = EbpfLoader::new();
    loader
        .override_global("SLEEPABLE", &sleepable, true)
        .override_global("SCHED_TGID", &tgid, true)
        .override_global("SCHED_RECORDS", &records_sched, true)
        .override_global("SCHED_HAS_STATE", &has_state, true)
        .override_global("TASK_STATE", &sched.state, true)
        .override_global("TASK_STACK", &sched.stack, true)
        .override_global("TASK_FLAGS", &sched.flags, true)
        .override_global("REGS_ORIG_AX", &sched.orig_ax, true)
        .override_global("REGS_IP", &sched.ip, true)
        .override_global("REGS_SP", &sched.sp, true)
        .override_global("REGS_BP", &sched.bp, true)
        .override_global("POLL_QUEUES", &poll_queues, true)
        .override_global("OFF_CPU_STACKS", &off_cpu_stacks, true)
        .override_global("TASK_TGID", &offsets.tgid, true)
        .override_global("TASK_PID", &offsets.pid, true)
        .override_global("TASK_MM", &offsets.mm, true)
        .override_global("TASK_CPU_NS", &offsets.cpu_ns, true)
        .override_global("TASK_SIGNAL", &life.signal, true)
        .override_global("SIGNAL_LIVE", &life.live, true)
        .override_global("SIGNAL_STATUS", &life.status, true)
        .override_global("ACTION_HANDLER", &life.handler, true)
        .override_global("INFO_CODE", &life.code, true)
        .override_global("INFO_ADDRESS", &life.address, true);
    let entries = u32::try_from(cpus).unwrap_or(MAX_CPUS).min(MAX_CPUS);
    if options.profile_hz.is_some() {
        loader
            .map_max_entries("STACKS", profile::ring_bytes(cpus))
            .map_max_entries("SCRATCH", entries);
    }
    if options.declared {
        loader
            .map_max_entries("DEFINITIONS", MAX_DEFINITIONS)
            .map_max_entries("DECLARED_HITS", MAX_DEFINITIONS)
            .map_max_entries("DECLARED_SCRATCH", entries)
            .map_max_entries("OPEN_CALLS", SLOTS);
    }
    for (global, offset) in net.iter().chain(io) {
        loader.override_global(global, offset, true);
    }
    loader
        .load(OBJECT)
        .map_err(|error| refused("create the BPF maps", os_error(&error)))
}

/// CPUs that there may be.
pub(crate) fn cpus() -> Result<usize, AttachError> {
    aya::util::nr_cpus().map_err(|(path, source)| AttachError::Proc {
        path: path.to_owned(),
        source,
    })
}

/// Every counter above zero, since the programs were loaded.
pub(crate) fn losses_of(maps: &Maps) -> Result<Vec<Loss>, AttachError> {
    let counters: PerCpuArray<&MapData, u64> = maps
        .get("LOSSES")?
        .try_into()
        .map_err(|error| map_unreadable(&error))?;
    let mut losses = Vec::new();
    for kind in RecordKind::HITS {
        for cause in LossCause::ALL {
            let counts = counters
                .get(&counter_index(kind, cause), 0)
                .map_err(|error| map_unreadable(&error))?;
            let lost = (0..).zip(counts.iter()).filter(|(_, lost)| **lost > 0);
            losses.extend(lost.map(|(cpu, lost)| Loss {
                cpu,
                kind,
                cause,
                lost: *lost,
            }));
        }
    }
    Ok(losses)
}

pub(crate) fn map_unreadable(error: &(dyn std::error::Error + 'static)) -> AttachError {
    refused("read a BPF map", os_error(error))
}
