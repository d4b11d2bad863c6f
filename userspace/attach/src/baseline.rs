//! What probing costs before anything is recorded: empty programs at the very
//! sites of a plan and at the kernel's tracepoints, to compare ours with.
//!
//! In: a target and an object of it, or names of tracepoints. Out: live links of a plain
//! program that returns 0.
//! Never: used by a recording.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    slice,
};

use aya::Btf;
use aya_obj::btf::BtfKind;
use dial9_bpf_probes::plan::Probe;

use crate::{
    AttachError, Object, Target,
    link::{self, LinkKind, Links},
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
    pub fn attach(target: &Target, object: &Object) -> Result<Self, AttachError> {
        let mut programs = Vec::new();
        for probe in Probe::ALL {
            if object.plan().sites.iter().any(|site| site.probe == probe) {
                let program = program::load_empty(Hook::UprobeMulti, false)
                    .map_err(|(error, _)| refused("load an empty program", error))?;
                programs.push((probe, program));
            }
        }
        let objects = slice::from_ref(object);
        let attached = link::attach(LinkKind::Multi, &programs, target.pid(), objects)?;
        Ok(Self(attached.links))
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
