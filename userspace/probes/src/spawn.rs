//! Spawns: `OwnedTasks::bind_inner`, which enters a task into its runtime's
//! list; those of a `LocalSet`, which has no such function, are in `local`.
//!
//! In: the symbol table. Out: one site for each copy of the function. Never: a
//! stripped file, Tokio before 1.30.
//!
//! `runtime/task/list.rs`: `bind_inner(&self, task: Task<S>, notified:
//! Notified<S>)`; `Task` is a pointer to the header, so it is in `rsi`.

use dial9_bpf_abi::cookie::{Cookie, Register};

use crate::code;
use crate::elf::Image;
use crate::entry;
use crate::names;
use crate::plan::{Miss, Probe, Site};

pub(crate) use local::LocalSpawns;

mod local;

const FUNCTION: &str = "bind_inner";
const PATH: &str = "tokio::runtime::task::list::OwnedTasks<";
/// `rsi`, the second argument.
const RSI: Register = Register(6);

/// Adds the sites for spawns.
pub(crate) fn find(
    image: &Image<'_>,
    id_offset: u16,
    locals: &LocalSpawns,
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    let mut reasons = Vec::new();
    match bind_sites(image, id_offset) {
        Ok(found) => sites.extend(found),
        Err((found, reason)) => {
            sites.extend(found);
            reasons.push(reason);
        }
    }
    let (found, reason) = locals.sites(image, id_offset);
    sites.extend(found);
    reasons.extend(reason);
    if !reasons.is_empty() {
        misses.push(Miss {
            probe: Probe::Spawn,
            reason: format!(
                "{}: tasks are shown from their first sighting",
                reasons.join("; ")
            ),
        });
    }
}

/// The sites in the copies of `bind_inner`; those that there are, and why not all.
fn bind_sites(image: &Image<'_>, id_offset: u16) -> Result<Vec<Site>, (Vec<Site>, String)> {
    let none = |reason: &str| Err((Vec::new(), reason.to_owned()));
    if image.symbols().is_empty() {
        return none("no symbol table");
    }
    let Some(functions) = names::functions(image, FUNCTION, is_bind) else {
        return none("too many symbols have bind_inner in their names");
    };
    if functions.is_empty() {
        return none("no symbol OwnedTasks::bind_inner");
    }
    let found: Vec<_> = functions
        .iter()
        .filter_map(|&function| site(image, function, id_offset))
        .collect();
    let (usable, all) = (found.len(), functions.len());
    if usable == all {
        return Ok(found);
    }
    let reason = format!("{usable} of {all} copies of OwnedTasks::bind_inner are usable");
    Err((found, reason))
}

/// Legacy symbols spell the path, v0 symbols put it in angle brackets.
fn is_bind(name: &str) -> bool {
    name.trim_start_matches('<').starts_with(PATH)
        && name
            .rsplit("::")
            .next()
            .is_some_and(|last| last == FUNCTION)
}

fn site(image: &Image<'_>, function: u64, id_offset: u16) -> Option<Site> {
    let entry = entry::find(image, function, RSI)?;
    let cookie = Cookie {
        id_offset,
        pushed: entry.pushed,
        header: entry.header,
        shared: true,
        ..Cookie::EMPTY
    };
    code::site(image, Probe::Spawn, &entry.instruction, cookie)
}
