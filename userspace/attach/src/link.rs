//! Live links: what is dropped is detached.
//!
//! In: a loaded program and its sites. Out: fds that keep the breakpoints in.
//! Never: a breakpoint in another process than the target.

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
};

use dial9_bpf_probes::plan::Site;

use crate::{Target, sys};

/// Where the kernel tells the number of its uprobe PMU.
const UPROBE_PMU: &str = "/sys/bus/event_source/devices/uprobe/type";

/// How programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// One `uprobe_multi` link for all sites of a program (Linux 6.6).
    Multi,
    /// One perf event and one link for each site (Linux 5.15). Detaching costs
    /// about 100 ms a site.
    Perf,
}

/// The links of one program.
#[derive(Debug)]
pub(crate) struct Links(Vec<OwnedFd>);

impl Links {
    /// A link that is live already.
    pub(crate) fn adopt(link: OwnedFd) -> Self {
        Self(vec![link])
    }

    /// What holds them.
    pub(crate) fn fds(&self) -> &[OwnedFd] {
        &self.0
    }

    /// Attaches the program to all sites, which are in one file, or to none.
    ///
    /// # Errors
    /// The kernel's answer; what was already attached is detached again.
    pub(crate) fn attach(
        kind: LinkKind,
        program: &OwnedFd,
        target: &Target,
        sites: &[&Site],
    ) -> io::Result<Self> {
        let Some(binary) = sites.first().map(|site| site.binary) else {
            return Ok(Self(Vec::new()));
        };
        let path = CString::new(target.link_to(binary)?)?;
        if kind == LinkKind::Multi {
            let offsets: Vec<u64> = sites.iter().map(|site| site.file_offset).collect();
            let cookies: Vec<u64> = sites.iter().map(|site| site.cookie.pack()).collect();
            let link =
                sys::link_uprobe_multi(program.as_fd(), &path, &offsets, &cookies, target.pid())?;
            return Ok(Self(vec![link]));
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
                target.pid(),
            )?);
        }
        Ok(Self(fds))
    }
}

fn uprobe_pmu() -> io::Result<u32> {
    let text = fs::read_to_string(UPROBE_PMU)?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::other(format!("{UPROBE_PMU}: {text:?}")))
}
