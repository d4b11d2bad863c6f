//! Live links: what is dropped is detached.
//!
//! In: loaded programs and objects with sites. Out: fds that keep the breakpoints in.
//! Never: a breakpoint in another process than the target.

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    slice,
};

use dial9_bpf_probes::plan::{Probe, Site};

use crate::{AttachError, Object, sys};

/// Where the kernel tells the number of its uprobe PMU.
const UPROBE_PMU: &str = "/sys/bus/event_source/devices/uprobe/type";

/// The order of attaching; links are dropped the other way round. What ends an
/// interval is there before what begins it, so that none begins and cannot end; and
/// what forgets a task before what remembers it.
const ATTACH_ORDER: [Probe; 11] = [
    Probe::PanicMessage,
    Probe::Panic,
    Probe::BlockOnEnd,
    Probe::BlockOn,
    Probe::Unpark,
    Probe::Park,
    Probe::Terminate,
    Probe::PollEnd,
    Probe::Spawn,
    Probe::Wake,
    Probe::PollStart,
];

/// How programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// One `uprobe_multi` link for all sites of a program (Linux 6.6).
    Multi,
    /// One perf event and one link for each site (Linux 5.15). Detaching costs
    /// about 100 ms a site.
    Perf,
}

/// The links of one program in one object.
#[derive(Debug)]
pub struct Links {
    object: u8,
    fds: Vec<OwnedFd>,
}

/// What attaching to objects has come to.
#[derive(Debug, Default)]
pub struct Attached {
    /// In the order of attaching.
    pub links: Vec<Links>,
    /// What the kernel refused and the recording goes on without, and why.
    pub absent: Vec<(&'static str, String)>,
}

/// Attaches loaded programs to objects that come later, on any thread.
#[derive(Debug)]
pub struct LateLinks {
    pub(crate) kind: LinkKind,
    pub(crate) programs: Vec<(Probe, OwnedFd)>,
    pub(crate) pid: u32,
}

impl LateLinks {
    /// Attaches to every site of the object, or to none. Its ends are seen before its
    /// begins.
    ///
    /// # Errors
    /// [`AttachError::Link`] with what the kernel answered.
    pub fn attach(&self, object: &Object) -> Result<Attached, AttachError> {
        let Self {
            kind,
            programs,
            pid,
        } = self;
        attach(*kind, programs, *pid, slice::from_ref(object))
    }
}

/// Attaches the programs to every site of the objects, or to none.
///
/// # Errors
/// [`AttachError::Link`] with what the kernel answered.
pub(crate) fn attach(
    kind: LinkKind,
    programs: &[(Probe, OwnedFd)],
    pid: u32,
    objects: &[Object],
) -> Result<Attached, AttachError> {
    let mut attached = Attached::default();
    let in_order = ATTACH_ORDER
        .iter()
        .flat_map(|probe| objects.iter().map(move |object| (*probe, object)));
    for (probe, object) in in_order {
        let sites: Vec<&Site> = object
            .plan()
            .sites
            .iter()
            .filter(|site| site.probe == probe)
            .collect();
        let program = programs.iter().find(|(of, _)| *of == probe);
        let (Some((_, program)), false) = (program, sites.is_empty()) else {
            continue;
        };
        match Links::attach(kind, program, pid, (object, &sites)) {
            Ok(links) => attached.links.push(links),
            Err(source) if probe.is_optional() => {
                attached.absent.push((probe.name(), source.to_string()));
            }
            Err(source) => {
                return Err(AttachError::Link {
                    probe,
                    sites: sites.len(),
                    pid,
                    source,
                });
            }
        }
    }
    Ok(attached)
}

impl Links {
    /// A link that is live already.
    pub(crate) fn adopt(link: OwnedFd) -> Self {
        Self {
            object: 0,
            fds: vec![link],
        }
    }

    /// What holds them.
    pub(crate) fn fds(&self) -> &[OwnedFd] {
        &self.fds
    }

    /// Number of the object that they are in.
    pub(crate) fn object(&self) -> u8 {
        self.object
    }

    /// Attaches the program to all sites, which are in one file, or to none.
    ///
    /// # Errors
    /// The kernel's answer; what was already attached is detached again.
    fn attach(
        kind: LinkKind,
        program: &OwnedFd,
        pid: u32,
        (object, sites): (&Object, &[&Site]),
    ) -> io::Result<Self> {
        let number = object.number();
        let Some(binary) = sites.first().map(|site| site.binary) else {
            return Ok(Self {
                object: number,
                fds: Vec::new(),
            });
        };
        let path = CString::new(object.link_to(binary)?)?;
        if kind == LinkKind::Multi {
            let offsets: Vec<u64> = sites.iter().map(|site| site.file_offset).collect();
            let cookies: Vec<u64> = sites.iter().map(|site| site.cookie.pack()).collect();
            let link = sys::link_uprobe_multi(program.as_fd(), &path, &offsets, &cookies, pid)?;
            return Ok(Self {
                object: number,
                fds: vec![link],
            });
        }
        let pmu = uprobe_pmu()?;
        let mut fds = Vec::with_capacity(sites.len() * 2);
        for site in sites {
            fds.extend(sys::link_perf(
                program.as_fd(),
                pmu,
                &path,
                site.file_offset,
                site.cookie.pack(),
                pid,
            )?);
        }
        Ok(Self {
            object: number,
            fds,
        })
    }
}

pub(crate) fn uprobe_pmu() -> io::Result<u32> {
    let text = fs::read_to_string(UPROBE_PMU)?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::other(format!("{UPROBE_PMU}: {text:?}")))
}
