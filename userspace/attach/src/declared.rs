//! Probes that probe files declare, of whatever function.
//!
//! In: definitions and the places of their sites. Out: live links. Never: a link whose
//! definition is not there yet; a begin of a call without the links of its end.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use aya::maps::{Array, MapData, PerCpuArray};
use dial9_bpf_abi::declared::{Definition, cookie};

use crate::{
    AttachError, LinkKind, Target, Tracer,
    link::uprobe_pmu,
    sys::{self, MultiSites, PerfSite},
    tracer::map_unreadable,
};

/// What is attached.
#[derive(Debug, Default)]
pub struct Declared {
    /// By index; not more than `declared::MAX_DEFINITIONS`.
    pub definitions: Vec<Definition>,
    /// In the order of attaching: ends before begins.
    pub places: Vec<Places>,
}

/// Sites of one file.
#[derive(Debug)]
pub struct Places {
    /// The very file.
    pub file: File,
    /// What it is called in messages.
    pub name: String,
    /// Whether the returns of the functions there are hit, by return probes.
    pub is_return: bool,
    /// The sites.
    pub sites: Vec<DeclaredSite>,
}

/// A site of a declared probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredSite {
    /// Index of the definition.
    pub definition: u16,
    /// Offset in the file, bytes.
    pub file_offset: u64,
    /// Bytes that the stack has grown since the function's begin.
    pub pushed: u16,
    /// Offset in the file of a counter that is raised while somebody listens, 0 for none.
    pub semaphore: u64,
}

impl DeclaredSite {
    fn cookie(&self) -> u64 {
        cookie(self.definition, self.pushed)
    }
}

impl Tracer {
    /// What is attached together with the objects, besides them.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the definitions cannot be written.
    pub fn declare(&mut self, declared: Declared) -> Result<(), AttachError> {
        if declared.definitions.is_empty() {
            return Ok(());
        }
        let mut definitions: Array<&mut MapData, DefinitionBytes> = self
            .maps
            .get_mut("DEFINITIONS")?
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        for (index, definition) in (0..).zip(&declared.definitions) {
            definitions
                .set(index, DefinitionBytes(*definition), 0)
                .map_err(|error| map_unreadable(&error))?;
        }
        self.declared = declared.places;
        Ok(())
    }

    /// Hits so far at the sites of each of the first definitions, those that their filters
    /// leave out included.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the counters cannot be read.
    pub fn declared_hits(&self, definitions: u32) -> Result<Vec<u64>, AttachError> {
        let hits: PerCpuArray<&MapData, u64> = self
            .maps
            .get("DECLARED_HITS")?
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        let of = |index| {
            let counts = hits.get(&index, 0);
            counts
                .map(|counts| counts.iter().sum())
                .map_err(|error| map_unreadable(&error))
        };
        (0..definitions).map(of).collect()
    }

    /// Attaches what was declared, all or nothing.
    pub(crate) fn attach_declared(&mut self, target: &Target) -> Result<(), AttachError> {
        let Some(program) = &self.declared_program else {
            return Ok(());
        };
        let mut links = Vec::new();
        for places in &self.declared {
            let attached = attach(self.abilities.link, program, target.pid(), places);
            links.extend(attached.map_err(|source| AttachError::Declared {
                sites: places.sites.len(),
                file: places.name.clone(),
                source,
            })?);
        }
        self.declared_links = links;
        Ok(())
    }
}

fn attach(
    kind: LinkKind,
    program: &OwnedFd,
    pid: u32,
    places: &Places,
) -> io::Result<Vec<OwnedFd>> {
    let path = CString::new(format!("/proc/self/fd/{}", places.file.as_raw_fd()))?;
    if kind == LinkKind::Multi {
        let of = |value: fn(&DeclaredSite) -> u64| -> Vec<u64> {
            places.sites.iter().map(value).collect()
        };
        let has_semaphores = places.sites.iter().any(|site| site.semaphore != 0);
        let sites = MultiSites {
            offsets: &of(|site| site.file_offset),
            cookies: &of(DeclaredSite::cookie),
            semaphores: &if has_semaphores {
                of(|site| site.semaphore)
            } else {
                Vec::new()
            },
            is_return: places.is_return,
        };
        return Ok(vec![sys::link_multi_sites(
            program.as_fd(),
            &path,
            &sites,
            pid,
        )?]);
    }
    let pmu = uprobe_pmu()?;
    let mut links = Vec::new();
    for site in &places.sites {
        let at = PerfSite {
            offset: site.file_offset,
            cookie: site.cookie(),
            semaphore: site.semaphore,
            is_return: places.is_return,
        };
        links.extend(sys::link_perf_site(program.as_fd(), pmu, &path, at, pid)?);
    }
    Ok(links)
}

/// [`Definition`] as aya writes map values.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct DefinitionBytes(Definition);

// SAFETY: integers without padding; every bit pattern is valid.
unsafe impl aya::Pod for DefinitionBytes {}
