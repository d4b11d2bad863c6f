//! The task types' names.
//!
//! In: task vtables, symbols, debug information. Out: the future's type of each vtable, or
//! the few that it may be. Never: one of several; a name for a type that may be another.
//!
//! The compiler merges equal functions, and what is merged keeps one name of several, or
//! all: a function that several vtables share tells their types only if it has as many
//! names.

use std::collections::{BTreeMap, BTreeSet};

use crate::debug_info::{self, File, Unread};
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
    let users = users(found.iter().flat_map(Found::functions));
    let spelled = users
        .keys()
        .map(|&function| (function, names.task_types(function)));
    let mut types: Types = spelled.filter(|(_, types)| !types.is_empty()).collect();
    let unread = add_debug_info(&mut types, files, found);
    for found in found.iter_mut() {
        let candidates = candidates(found, &types, &users);
        found.vtable.task_type = candidates.and_then(|candidates| told(&candidates));
    }
    if unnamed(found) > 0 {
        let types = glue::types(image, names, found);
        for Found { vtable, .. } in found.iter_mut() {
            let of_glue = || told(types.get(&vtable.address)?);
            vtable.task_type = vtable.task_type.take().or_else(of_glue);
        }
    }
    reason(unnamed(found), found.len(), unread)
}

/// What a vtable's poll function is called, if it has as many names as users; and its
/// other functions, if they are its own: what is called otherwise is of a type that was
/// merged with this one.
fn candidates(
    found: &Found,
    types: &Types,
    users: &BTreeMap<u64, usize>,
) -> Option<BTreeSet<String>> {
    let poll = found.vtable.poll;
    let mut candidates = types.get(&poll)?.clone();
    if candidates.len() < users[&poll] {
        return None;
    }
    let own = found.functions().filter(|function| users[function] == 1);
    candidates.extend(
        own.filter_map(|function| types.get(&function))
            .flatten()
            .cloned(),
    );
    Some(candidates)
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

/// Looks in the files for what symbols do not tell; why it is not all there, if so.
fn add_debug_info(types: &mut Types, files: &[&File<'_>], found: &[Found]) -> Option<Unread> {
    let mut why = None;
    for file in files {
        let untold = |found: &&Found| !types.contains_key(&found.vtable.poll);
        let functions = found.iter().filter(untold).flat_map(Found::functions);
        let functions: BTreeSet<u64> = functions.collect();
        if functions.is_empty() {
            return None;
        }
        let (more, unread) = debug_info::types(file, &functions);
        types.extend(more);
        let is_told = |found: &Found| types.contains_key(&found.vtable.poll);
        let unread = match unread {
            _ if found.iter().all(is_told) => return None,
            None => Unread::Unspelled,
            Some(unread) => unread,
        };
        // That a file has none says less than what is wrong with that of another.
        if why.is_none() || unread != Unread::Absent {
            why = Some(unread);
        }
    }
    why
}

/// The type, or all that it may be.
fn told(candidates: &BTreeSet<String>) -> Option<String> {
    let candidates: Vec<&str> = candidates.iter().map(String::as_str).collect();
    (1..=MAX_CANDIDATES)
        .contains(&candidates.len())
        .then(|| candidates.join(OR))
}

fn reason(unnamed: usize, all: usize, unread: Option<Unread>) -> Option<String> {
    if unnamed == 0 {
        return None;
    }
    let why = unread.map_or_else(
        || "equal functions are one".to_owned(),
        |unread| format!("no v0 symbol, and {unread}"),
    );
    Some(format!("{unnamed} of {all} have no name: {why}"))
}
