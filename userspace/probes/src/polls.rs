//! Starts and ends of polls.
//!
//! In: the task vtables and the calls through them. Out: one site for each poll
//! function and one for each call, or none of either: a start without its end
//! would leave a poll open for ever. Never: a start that a loop in the poll
//! function would repeat.

use std::collections::BTreeMap;

use dial9_bpf_abi::cookie::Register;

use crate::calls;
use crate::code;
use crate::elf::Image;
use crate::entry::{self, Entry};
use crate::plan::{Miss, Probe, Site};
use crate::vtables::Found;

/// How often a poll function that jumps to another is followed.
const MAX_ALIAS_DEPTH: usize = 4;

/// Adds starts and ends of polls, both or neither.
pub(crate) fn find(
    image: &Image<'_>,
    found: &[Found],
    calls: &[u64],
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    match ends(image, calls) {
        Ok(ends) => sites.extend(ends),
        Err(reason) => {
            for probe in [Probe::PollStart, Probe::PollEnd] {
                misses.push(Miss {
                    probe,
                    reason: reason.clone(),
                });
            }
            return;
        }
    }
    let functions = poll_functions(image, found);
    let starts: Vec<_> = functions
        .values()
        .filter_map(|(entry, users)| {
            entry::task_site(image, Probe::PollStart, (*entry)?, found, users)
        })
        .collect();
    if starts.len() < functions.len() {
        let (missing, all) = (functions.len() - starts.len(), functions.len());
        let reason = format!("{missing} of {all} poll functions have no usable site");
        misses.push(Miss {
            probe: Probe::PollStart,
            reason,
        });
    }
    sites.extend(starts);
}

fn ends(image: &Image<'_>, calls: &[u64]) -> Result<Vec<Site>, String> {
    let ends: Vec<_> = calls
        .iter()
        .filter_map(|&call| calls::site_after(image, Probe::PollEnd, call))
        .collect();
    if calls.is_empty() {
        return Err("no call of a poll function through a task vtable".to_owned());
    }
    if ends.len() < calls.len() {
        return Err(format!(
            "{} of {} poll calls have a usable end",
            ends.len(),
            calls.len()
        ));
    }
    Ok(ends)
}

/// The poll functions, each with its entry and its vtables. One that only jumps
/// to another's poll function, as the compiler leaves behind for equal code,
/// counts as the other: a poll passes both.
fn poll_functions(
    image: &Image<'_>,
    found: &[Found],
) -> BTreeMap<u64, (Option<Entry>, Vec<usize>)> {
    let mut functions: BTreeMap<u64, (Option<Entry>, Vec<usize>)> = BTreeMap::new();
    for Found { vtable, .. } in found {
        functions
            .entry(vtable.poll)
            .or_insert_with(|| (entry::find(image, vtable.poll, Register::RDI), Vec::new()));
    }
    let jump = |poll: u64| {
        let (entry, _) = functions.get(&poll)?;
        let target = code::direct_target(image, &entry.as_ref()?.instruction)?;
        (target != poll && functions.contains_key(&target)).then_some(target)
    };
    let homes: Vec<_> = found
        .iter()
        .map(|found| {
            (0..MAX_ALIAS_DEPTH)
                .try_fold(found.vtable.poll, |poll, _| jump(poll).ok_or(poll))
                .unwrap_or_else(|end| end)
        })
        .collect();
    for (index, home) in homes.into_iter().enumerate() {
        if let Some((_, users)) = functions.get_mut(&home) {
            users.push(index);
        }
    }
    functions.retain(|_, (_, users)| !users.is_empty());
    functions
}
