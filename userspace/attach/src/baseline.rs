//! What probing costs before anything is recorded: empty programs at the very
//! sites of a plan and at the kernel's tracepoints, to compare ours with.
//!
//! In: a target and sites, or names of tracepoints. Out: live links of a plain program
//! that returns 0.
//! Never: used by a recording.

use std::os::fd::{AsFd as _, OwnedFd};

use aya::Btf;
use aya_obj::btf::BtfKind;
use dial9_bpf_probes::plan::{Probe, Site};

use crate::{
    AttachError, Target,
    link::{LinkKind, Links},
    program::{self, refused},
    sys::{self, Hook},
};

/// Empty programs, attached; dropping it detaches.
#[derive(Debug)]
#[expect(dead_code, reason = "the links are held, and detach when dropped")]
pub struct Baseline(Vec<Links>);

impl Baseline {
    /// Attaches one plain, empty program for each probe that has sites, as a
    /// tracer has one program for each.
    ///
    /// # Errors
    /// [`AttachError::Privilege`], [`AttachError::Kernel`] or
    /// [`AttachError::Link`].
    pub fn attach(target: &Target, sites: &[Site]) -> Result<Self, AttachError> {
        let mut links = Vec::new();
        for probe in Probe::ALL {
            let sites: Vec<&Site> = sites.iter().filter(|site| site.probe == probe).collect();
            if sites.is_empty() {
                continue;
            }
            let program = program::load_empty(Hook::UprobeMulti, false)
                .map_err(|(error, _)| refused("load an empty program", error))?;
            let attached = Links::attach(LinkKind::Multi, &program, target, &sites);
            links.push(attached.map_err(|source| AttachError::Link {
                probe,
                sites: sites.len(),
                pid: target.pid(),
                source,
            })?);
        }
        Ok(Self(links))
    }
}

/// Empty programs at tracepoints, attached; dropping it detaches.
#[derive(Debug)]
#[expect(dead_code, reason = "the links are held, and detach when dropped")]
pub struct TracepointBaseline(Vec<OwnedFd>);

impl TracepointBaseline {
    /// Attaches an empty program to each tracepoint, by BTF as ours are.
    ///
    /// # Errors
    /// [`AttachError::Btf`], [`AttachError::Privilege`] or [`AttachError::Kernel`].
    pub fn attach(names: &[&str]) -> Result<Self, AttachError> {
        let lacking = |error: &dyn std::error::Error| AttachError::Btf {
            reason: error.to_string(),
        };
        let btf = Btf::from_sys_fs().map_err(|error| lacking(&error))?;
        let link = |name: &&str| {
            let id = btf
                .id_by_type_name_kind(&format!("btf_trace_{name}"), BtfKind::Typedef)
                .map_err(|error| lacking(&error))?;
            let program = program::load_empty(Hook::Tracepoint(id), false)
                .map_err(|(error, _)| refused("load an empty program", error))?;
            sys::link_tracepoint(program.as_fd()).map_err(|error| refused("attach it", error))
        };
        names.iter().map(link).collect::<Result<_, _>>().map(Self)
    }
}
