//! The scan: what of a binary can be probed, by which sites.
//!
//! In: the bytes of an ELF file. Out: a [`Plan`]. Never: a look at a process, a
//! file or the kernel; a panic on hostile input.

use std::collections::BTreeMap;

use dial9_bpf_abi::cookie::{Cookie, Register};

use crate::calls::{self, PollCalls};
use crate::code;
use crate::elf::Image;
use crate::entry;
use crate::error::ScanError;
use crate::names;
use crate::park::ParkCalls;
use crate::plan::{Miss, Plan, Probe, Site, TaskVtable};
use crate::vtables::{self, Found};
use crate::{complete, spawn, version, wakers};

/// Finds the sites of a Tokio program (Tokio 1.24 or later, x86-64, optimized).
///
/// # Errors
///
/// [`ScanError`] if the file is no such ELF file or has no Tokio in it. A probe
/// without a usable site is no error but one of [`Plan::misses`].
pub fn scan(elf: &[u8]) -> Result<Plan, ScanError> {
    let image = Image::parse(elf)?;
    let mut found = vtables::find(&image)?;
    let (poll_calls, park_calls) = sweep(&image);
    let mut sites = Vec::new();
    let mut misses = Vec::new();
    find_polls(&image, &found, &poll_calls, &mut sites, &mut misses);
    let id_offset = common_id_offset(&found);
    wakers::find(&image, id_offset, &mut sites, &mut misses);
    spawn::find(&image, id_offset, &mut sites, &mut misses);
    complete::find(&image, &found, &mut sites, &mut misses);
    park_calls.finish(&image, &mut sites, &mut misses);
    name_everything(&image, &mut found, &mut sites);
    sites.sort_by_key(|site| (site.probe, site.file_offset));
    sites.dedup_by_key(|site| (site.probe, site.file_offset));
    Ok(Plan {
        sites,
        vtables: found.into_iter().map(|found| found.vtable).collect(),
        misses,
        tokio_version: version::find(&image),
        build_id: image.build_id().map(str::to_owned),
        has_symbols: !image.symbols().is_empty(),
    })
}

/// Decodes every function once.
fn sweep(image: &Image<'_>) -> (Vec<u64>, ParkCalls) {
    let mut polls = PollCalls::new();
    let mut parks = ParkCalls::default();
    let mut instructions = Vec::new();
    for range in image.functions() {
        code::decode(image, range, &mut instructions);
        polls.visit(range, &instructions);
        parks.visit(range, &instructions);
    }
    (polls.finish(image), parks)
}

/// Adds starts and ends of polls, both or neither.
fn find_polls(
    image: &Image<'_>,
    found: &[Found],
    calls: &[u64],
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    let ends: Vec<_> = calls
        .iter()
        .filter_map(|&call| calls::site_after(image, Probe::PollEnd, call))
        .collect();
    if ends.is_empty() || ends.len() < calls.len() {
        let reason = match calls.len() {
            0 => "no call of a poll function through a task vtable".to_owned(),
            calls => format!("{} of {calls} poll calls have a usable end", ends.len()),
        };
        for probe in [Probe::PollStart, Probe::PollEnd] {
            misses.push(Miss {
                probe,
                reason: reason.clone(),
            });
        }
        return;
    }
    sites.extend(ends);
    let functions = poll_functions(image, found);
    let starts: Vec<_> = functions
        .iter()
        .filter_map(|(&poll, users)| start_site(image, found, poll, users))
        .collect();
    if starts.len() < functions.len() {
        let missing = functions.len() - starts.len();
        let reason = format!(
            "{missing} of {} poll functions have no usable site",
            functions.len()
        );
        misses.push(Miss {
            probe: Probe::PollStart,
            reason,
        });
    }
    sites.extend(starts);
}

/// The vtables of each poll function. One that only jumps to another's poll
/// function, as the linker leaves behind for equal code, counts as the other.
fn poll_functions(image: &Image<'_>, found: &[Found]) -> BTreeMap<u64, Vec<usize>> {
    let mut functions: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, found) in found.iter().enumerate() {
        functions.entry(found.vtable.poll).or_default().push(index);
    }
    let aliases: Vec<_> = functions
        .keys()
        .filter_map(|&poll| {
            let entry = entry::find(image, poll, Register::RDI)?;
            let target = code::direct_target(image, &entry.instruction)?;
            (target != poll && functions.contains_key(&target)).then_some((poll, target))
        })
        .collect();
    for (poll, target) in aliases {
        let users = functions.remove(&poll).unwrap_or_default();
        functions.entry(target).or_default().extend(users);
    }
    functions
}

fn start_site(image: &Image<'_>, found: &[Found], poll: u64, users: &[usize]) -> Option<Site> {
    let layout = |&user: &usize| (found[user].vtable.id_offset, found[user].vtable.blocking);
    let first = users.first()?;
    let (id_offset, blocking) = layout(first);
    if users
        .iter()
        .any(|user| layout(user) != (id_offset, blocking))
    {
        return None;
    }
    let entry = entry::find(image, poll, Register::RDI)?;
    let cookie = Cookie {
        vtable: u32::try_from(*first).ok()?,
        id_offset,
        pushed: entry.pushed,
        header: entry.header,
        shared: users.len() > 1,
        branch: None,
        blocking,
    };
    code::site(image, Probe::PollStart, &entry.instruction, cookie)
}

/// Offset of the task id in every task that is no blocking closure: those are
/// never woken nor bound to a runtime.
fn common_id_offset(found: &[Found]) -> Option<u16> {
    let mut offsets = found
        .iter()
        .filter(|found| !found.vtable.blocking)
        .map(|found| found.vtable.id_offset);
    let first = offsets.next()?;
    offsets.all(|offset| offset == first).then_some(first)
}

fn name_everything(image: &Image<'_>, found: &mut [Found], sites: &mut [Site]) {
    for site in sites {
        site.function = names::function(image, site.address);
    }
    let mut users: BTreeMap<u64, usize> = BTreeMap::new();
    for found in found.iter() {
        *users.entry(found.vtable.poll).or_default() += 1;
    }
    for Found { vtable, .. } in found {
        let TaskVtable {
            poll, task_type, ..
        } = vtable;
        if users.get(poll) == Some(&1) {
            *task_type = names::task_type(image, *poll);
        }
    }
}

#[cfg(test)]
mod tests;
