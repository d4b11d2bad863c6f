//! The task types' names.
//!
//! In: task vtables, symbols, debug information. Out: the future's type of each vtable, or
//! the few that it may be. Never: one of several; a name for a type that may be another.
//!
//! The linker merges equal functions, and what is merged keeps one name of several: a
//! function that several vtables share tells their types only if it has as many names.

use std::collections::{BTreeMap, BTreeSet};

use crate::debug_info::{self, File};
use crate::elf::Image;
use crate::glue;
use crate::names::Namer;
use crate::vtables::Found;

/// So many types are told where it may be any of them.
const MAX_CANDIDATES: usize = 4;
/// What stands between them.
const OR: &str = " or ";

/// Types by the address of what they are of.
pub(crate) type Types = BTreeMap<u64, BTreeSet<String>>;

/// Names the vtables; why some have no name, if so.
pub(crate) fn find(
    image: &Image<'_>,
    names: &mut Namer<'_>,
    files: &[&File<'_>],
    found: &mut [Found],
) -> Option<String> {
    let users = users(found.iter().map(|found| found.vtable.poll));
    let mut types = of_symbols(names, &users);
    let unread = add_debug_info(&mut types, files, &users);
    for Found { vtable, .. } in found.iter_mut() {
        let candidates = types.get(&vtable.poll);
        vtable.task_type =
            candidates.and_then(|candidates| told(candidates, users[&vtable.poll]));
    }
    if unnamed(found) > 0 {
        let types = glue::types(image, names, found);
        for Found { vtable, .. } in found.iter_mut() {
            let of_glue = || told(types.get(&vtable.address)?, 1);
            vtable.task_type = vtable.task_type.take().or_else(of_glue);
        }
    }
    reason(unnamed(found), found.len(), unread)
}

fn unnamed(found: &[Found]) -> usize {
    let has_none = |found: &&Found| found.vtable.task_type.is_none();
    found.iter().filter(has_none).count()
}

/// How often each function is among `functions`.
pub(crate) fn users(functions: impl Iterator<Item = u64>) -> BTreeMap<u64, usize> {
    let mut users = BTreeMap::new();
    for function in functions {
        *users.entry(function).or_default() += 1;
    }
    users
}

fn of_symbols(names: &mut Namer<'_>, polls: &BTreeMap<u64, usize>) -> Types {
    let types = polls.keys().map(|&poll| (poll, names.task_types(poll)));
    types.filter(|(_, types)| !types.is_empty()).collect()
}

/// Looks in the files for what symbols do not tell; why it is not all there, if so.
fn add_debug_info(
    types: &mut Types,
    files: &[&File<'_>],
    polls: &BTreeMap<u64, usize>,
) -> Option<debug_info::Unread> {
    let mut why = None;
    for file in files {
        let missing = polls.keys().filter(|poll| !types.contains_key(poll));
        let missing: BTreeSet<u64> = missing.copied().collect();
        if missing.is_empty() {
            return None;
        }
        let (found, unread) = debug_info::types(file, &missing);
        types.extend(found);
        // That a file has none says less than what is wrong with that of another.
        if why.is_none() || unread != Some(debug_info::Unread::Absent) {
            why = unread;
        }
    }
    why
}

/// The type, or all that it may be.
fn told(candidates: &BTreeSet<String>, users: usize) -> Option<String> {
    let is_known = candidates.len() >= users && candidates.len() <= MAX_CANDIDATES;
    is_known.then(|| {
        let candidates: Vec<&str> = candidates.iter().map(String::as_str).collect();
        candidates.join(OR)
    })
}

fn reason(unnamed: usize, all: usize, unread: Option<debug_info::Unread>) -> Option<String> {
    if unnamed == 0 {
        return None;
    }
    let why = unread.map_or_else(
        || "equal functions are one".to_owned(),
        |unread| format!("no v0 symbol, and {unread}"),
    );
    Some(format!("{unnamed} of {all} have no name: {why}"))
}
