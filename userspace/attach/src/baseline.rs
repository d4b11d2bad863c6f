//! What probing costs before anything is recorded: empty programs at the very
//! sites of a plan, to compare ours with.
//!
//! In: a target and sites. Out: live links of a plain program that returns 0.
//! Never: used by a recording.

use dial9_bpf_probes::plan::{Probe, Site};

use crate::{
    AttachError, Target,
    link::{LinkKind, Links},
    program::{self, refused},
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
            let program = program::load_empty(LinkKind::Multi, false)
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
