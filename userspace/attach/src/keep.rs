//! A tracer that outlives its recorder, and its successor's.
//!
//! In: an attached tracer, or what a dead recorder's has left. Out: pinned links,
//! rings and maps; a tracer that reads on where the other stopped. Never: two
//! readers of one ring; something taken over that was made for another plan.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::fd::{AsFd as _, BorrowedFd},
};

use aya::maps::{Map, MapData};

use crate::{
    Abilities, AttachError, LinkKind, Object, Options, Target,
    block_io::{REQUESTS, SYNCED},
    link::Links,
    listeners::LISTENERS,
    maps::Maps,
    pin::{self, LINK, Pins},
    profile::{CPU_PROFILE, Profile},
    program::{
        ACCEPT_QUEUES, BLOCK_BIO_QUEUE, LIFE, SCHED_PROCESS_EXEC, SCHED_SWITCH, SCHED_WAKING,
        SYNCS, exec_unseen, refused,
    },
    progress::{Identity, Progress},
    rings::{Rings, os_error},
    tracer::{self, Loss, OBJECT, OFF_CPU, Tracer, WAKERS, cpus},
};

const PROGRESS: &str = "progress";
const MAP: &str = "map-";
const RING: &str = "ring-";
/// Among the links, behind those of the sites.
const TRACEPOINT: &str = "link-tracepoint-";

/// A place where a target's rings are kept.
#[derive(Debug)]
pub struct Place {
    pins: Pins,
    identity: Identity,
}

/// What is kept, by a living tracer.
#[derive(Debug)]
pub(crate) struct Kept {
    pins: Pins,
    progress: Progress,
}

/// What was kept and is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The process.
    pub pid: u32,
    /// Records that nobody had read.
    pub records: u64,
    /// Hits lost of which nobody had told.
    pub lost: u64,
}

/// What there is at a place.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Nothing(Place),
    /// A tracer that goes on, with the time before which everything is in files.
    Tracer(Box<Tracer>, u64),
    /// Something that could not be taken over and is gone, and why.
    Other(Place, Dropped, String),
}

/// Whether anything can be kept here.
///
/// # Errors
/// [`AttachError::NotKept`] where the kernel has no links that can be, or no BPF
/// file system.
pub fn check(abilities: Abilities) -> Result<(), AttachError> {
    if abilities.link != LinkKind::Multi {
        let reason = "this kernel has no uprobe_multi links (Linux 6.6 has)".to_owned();
        return Err(AttachError::NotKept { reason });
    }
    pin::check_mounted()
}

impl Place {
    /// Takes the target's place, and what a predecessor has left there if it is
    /// for the same objects.
    ///
    /// # Errors
    /// [`AttachError::NotKept`] where the kernel cannot, or has no BPF file system,
    /// [`AttachError::AlreadyKept`] when another recorder has it; otherwise what
    /// the kernel answered.
    pub fn take(
        target: &Target,
        objects: &[Object],
        options: Options,
    ) -> Result<Found, AttachError> {
        check(options.abilities)?;
        let pins = Pins::take(target)?;
        let identity = identity(target, objects, options);
        if pins.names("").is_empty() {
            return Ok(Found::Nothing(Self { pins, identity }));
        }
        let (pins, reason) = match Tracer::take_over(pins, identity, options) {
            Ok((tracer, until_ns)) => return Ok(Found::Tracer(Box::new(tracer), until_ns)),
            Err(refused) => refused,
        };
        let dropped = Dropped::of(&pins);
        drop(pins);
        let pins = Pins::take(target)?;
        Ok(Found::Other(Self { pins, identity }, dropped, reason))
    }
}

impl Kept {
    /// Nobody may take it over any more, and no hit is to come; what the rings hold
    /// stays until the value goes, so that a kill before the end can be told.
    pub(crate) fn detach(&self) {
        self.progress.set_complete(false);
        self.pins.clear(LINK);
    }
}

/// Why this is nothing to be taken over, if it is not.
fn difference(progress: &Progress, ours: Identity) -> Option<String> {
    if !progress.is_complete() {
        return Some("it is not complete".to_owned());
    }
    let names = [
        "another build of dial9-bpf",
        "another program in the process",
        "other sites or signals",
    ];
    let mut values = progress.identity().into_iter().zip(ours).zip(names);
    let (_, name) = values.find(|((theirs, ours), _)| theirs != ours)?;
    Some(format!("it is for {name}"))
}

impl Tracer {
    /// Keeps an attached tracer at a place: from now on it outlives the process,
    /// until it is detached or dropped. Places in the rings are given back by
    /// [`Tracer::settle`] alone. There are no records of before `since_ns`.
    ///
    /// # Errors
    /// What the kernel answered.
    pub fn keep(&mut self, place: Place, since_ns: u64) -> Result<(), AttachError> {
        let Place { pins, identity } = place;
        let progress = Progress::create(cpus()?, identity)
            .map_err(|error| refused("create a BPF map", os_error(&error)))?;
        pins.pin(PROGRESS, fd(progress.data()))?;
        for (name, map) in self.maps.iter() {
            pins.pin_map(&format!("{MAP}{name}"), map)?;
        }
        if let Some(profile) = &self.profile {
            pins.pin(&format!("{MAP}STACKS"), fd(profile.data()))?;
        }
        for (cpu, map) in self.rings.maps() {
            pins.pin(&format!("{RING}{cpu}"), fd(map))?;
        }
        let links = self.links.iter().flat_map(Links::fds);
        for (index, link) in links.enumerate() {
            pins.pin(&format!("{LINK}{index:03}"), link.as_fd())?;
        }
        for (name, link) in &self.tracepoints {
            pins.pin(&format!("{TRACEPOINT}{name}"), link.as_fd())?;
        }
        self.rings.keep();
        progress.advance(since_ns, self.rings.positions(), std::iter::empty());
        progress.set_complete(true);
        self.kept = Some(Kept { pins, progress });
        Ok(())
    }

    /// Whether it outlives the process.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Everything of before a time is in files, as far as it has been drained, and
    /// so are these losses, of those that [`Tracer::losses`] tells: a successor does
    /// not tell them again. Gives the places in the rings back.
    pub fn settle(&mut self, until_ns: u64, losses: impl Iterator<Item = Loss>) {
        let Some(kept) = &self.kept else { return };
        let since = losses.map(|loss| Loss {
            lost: loss.lost + self.told_of(&loss),
            ..loss
        });
        let losses = self.told.iter().copied().chain(since);
        let positions = self.rings.positions();
        kept.progress.advance(until_ns, positions, losses);
        self.rings.give_back_before(until_ns);
    }

    /// Leaves out what is in the rings from before a time, for a tracer that was
    /// taken over: the file of its predecessor has more than that noted down.
    pub fn skip_before(&mut self, before_ns: u64) {
        self.rings.skip(before_ns, |_| None);
    }

    /// Leaves what is kept to the next recorder; for a recording that did not begin.
    #[expect(clippy::mem_forget, reason = "dropping it ends it")]
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// The tracer of a predecessor, and how far that came; otherwise what is pinned,
    /// and why it stays.
    fn take_over(
        pins: Pins,
        identity: Identity,
        options: Options,
    ) -> Result<(Self, u64), (Pins, String)> {
        let progress = match progress_of(&pins) {
            Ok(progress) => progress,
            Err(error) => return Err((pins, error.in_full())),
        };
        if let Some(difference) = difference(&progress, identity) {
            return Err((pins, difference));
        }
        match Self::open(&pins, &progress, options) {
            Ok(mut tracer) => {
                let until_ns = progress.until_ns();
                tracer.kept = Some(Kept { pins, progress });
                Ok((tracer, until_ns))
            }
            Err(error) => Err((pins, error.in_full())),
        }
    }

    fn open(pins: &Pins, progress: &Progress, options: Options) -> Result<Self, AttachError> {
        let (sites, tracepoints): (Vec<_>, Vec<_>) = pins
            .names(LINK)
            .into_iter()
            .partition(|(name, _)| !name.starts_with(TRACEPOINT));
        let links = sites
            .iter()
            .map(|(name, _)| pins.get(name).map(Links::adopt));
        let tracepoints: Vec<_> = tracepoints
            .into_iter()
            .map(|(name, _)| Ok((name[TRACEPOINT.len()..].to_owned(), pins.get(&name)?)))
            .collect::<Result<_, AttachError>>()?;
        let refusal = |name: &str| {
            let is_there = tracepoints.iter().any(|(of, _)| of == name);
            (!is_there).then(|| format!("{name} was refused"))
        };
        let cpu_time_behind = refusal(SCHED_SWITCH);
        let exec = refusal(SCHED_PROCESS_EXEC).map(|reason| exec_unseen(&reason));
        let life = LIFE.map(|name| Some((name, refusal(name)?)));
        let mut absent: Vec<_> = life.into_iter().chain([exec]).flatten().collect();
        if options.sched {
            absent.extend(cpu_time_behind.clone().map(|reason| (OFF_CPU, reason)));
            absent.extend(refusal(SCHED_WAKING).map(|reason| (WAKERS, reason)));
        }
        if options.net {
            absent.extend(refusal(ACCEPT_QUEUES).map(|reason| (LISTENERS, reason)));
        }
        if options.io {
            absent.extend(refusal(BLOCK_BIO_QUEUE).map(|reason| (REQUESTS, reason)));
            absent.extend(refusal(SYNCS[0]).map(|reason| (SYNCED, reason)));
        }
        let mut rings = Rings::adopt(rings_of(pins)?)?;
        rings.skip(progress.until_ns(), |cpu| Some(progress.position(cpu)));
        let mut maps = maps_of(pins)?;
        let profile = match options.profile_hz {
            Some(_) => Some(Profile::adopt(&mut maps)?),
            None => None,
        };
        let gone = |_| {
            (
                CPU_PROFILE,
                "it ended with the recorder that began it".to_owned(),
            )
        };
        absent.extend(options.profile_hz.map(gone));
        let mut told = tracer::losses_of(&maps)?;
        for loss in &mut told {
            loss.lost = progress.told(loss);
        }
        Ok(Self {
            links: links.collect::<Result<_, _>>()?,
            rings,
            programs: Vec::new(),
            tracepoints,
            tracepoint_programs: Vec::new(),
            declared_program: None,
            declared: Vec::new(),
            declared_links: Vec::new(),
            maps,
            profile,
            abilities: options.abilities,
            cpu_time_behind,
            absent,
            has_remembered: true,
            kept: None,
            told,
        })
    }
}

/// Removes what is kept of processes that are gone, and says of each what nobody
/// will read.
pub fn drop_stale() -> Vec<Dropped> {
    Pins::stale().iter().map(Dropped::of).collect()
}

/// Removes what a dead recorder has kept of the target.
pub fn drop_left(target: &Target) -> Option<Dropped> {
    Pins::left_of(target).map(|pins| Dropped::of(&pins))
}

impl Dropped {
    /// What is at a place; 0 where it cannot be read.
    fn of(pins: &Pins) -> Self {
        let progress = progress_of(pins).ok();
        let until_ns = progress.as_ref().map_or(0, Progress::until_ns);
        let position = |cpu| {
            progress
                .as_ref()
                .map_or(0, |progress| progress.position(cpu))
        };
        let mut records = 0;
        if let Ok(mut rings) = rings_of(pins).and_then(Rings::adopt) {
            rings.skip(until_ns, |cpu| Some(position(cpu)));
            rings.drain(usize::MAX, |_, _| records += 1);
        }
        let untold = |loss: &Loss| {
            let told = progress.as_ref().map_or(0, |progress| progress.told(loss));
            loss.lost.saturating_sub(told)
        };
        let losses = maps_of(pins).and_then(|maps| tracer::losses_of(&maps));
        Self {
            pid: pins.pid(),
            records,
            lost: losses.unwrap_or_default().iter().map(untold).sum(),
        }
    }
}

fn progress_of(pins: &Pins) -> Result<Progress, AttachError> {
    let map = open_map(pins, PROGRESS)?;
    Progress::open(map, cpus()?).map_err(|error| unreadable(&error))
}

fn rings_of(pins: &Pins) -> Result<Vec<(u32, MapData)>, AttachError> {
    let rings = pins.names(RING).into_iter().filter_map(|(name, cpu)| {
        let cpu = cpu.parse().ok()?;
        Some(open_map(pins, &name).map(|map| (cpu, map)))
    });
    rings.collect()
}

fn maps_of(pins: &Pins) -> Result<Maps, AttachError> {
    let mut maps = Maps::default();
    for (pin, name) in pins.names(MAP) {
        let map = Map::from_map_data(open_map(pins, &pin)?);
        maps.insert(name, map.map_err(|error| unreadable(&error))?);
    }
    Ok(maps)
}

fn open_map(pins: &Pins, name: &str) -> Result<MapData, AttachError> {
    MapData::from_fd(pins.get(name)?).map_err(|error| unreadable(&error))
}

fn unreadable(error: &(dyn std::error::Error + 'static)) -> AttachError {
    refused("open a pinned BPF map", os_error(error))
}

fn fd(map: &MapData) -> BorrowedFd<'_> {
    map.fd().as_fd()
}

fn identity(target: &Target, objects: &[Object], options: Options) -> Identity {
    // Another address tells that the process has executed the same file again.
    let addresses = objects.iter().map(|object| {
        let build_id = object.plan().build_id.as_deref();
        (object.load_bias(), build_id)
    });
    let addresses: Vec<_> = addresses.collect();
    let plans = objects.iter().map(Object::plan);
    [
        hash(|hasher| (OBJECT, env!("CARGO_PKG_VERSION")).hash(hasher)),
        hash(|hasher| (target.executable_id(), addresses).hash(hasher)),
        hash(|hasher| {
            plans.for_each(|plan| format!("{plan:?}").hash(hasher));
            (options.sched, options.net, options.io).hash(hasher);
            (options.profile_hz, options.queue_reads).hash(hasher);
        }),
    ]
}

fn hash(of: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    of(&mut hasher);
    hasher.finish()
}
