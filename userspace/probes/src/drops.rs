//! Task types by what frees a task.
//!
//! In: the task vtables, and symbols of `drop_in_place`, which spell a type in
//! both manglings. Out: the future's type of a vtable. Never: a type where the
//! function that frees, or the one that drops, is another vtable's too: equal
//! functions are merged, and one of their names may be all that is left.
//!
//! `runtime/task/harness.rs`: `dealloc` drops a `Box<Cell<T, S>>`.

use std::collections::{BTreeMap, BTreeSet};

use crate::code;
use crate::elf::Image;
use crate::names;
use crate::vtables::Found;

const CELL: &str = "tokio::runtime::task::core::Cell<";
const DROPS: [&str; 2] = [
    "core::ptr::drop_in_place<",
    "core::ptr::drop_in_place<alloc::boxed::Box<",
];
/// Calls from `dealloc` to what drops the cell.
const MAX_DEPTH: usize = 2;

/// The future's type of each vtable, where one name says it.
pub(crate) fn task_types(image: &Image<'_>, found: &[Found]) -> Vec<Option<String>> {
    let drops: Vec<_> = found
        .iter()
        .map(|found| drop_of(image, found.dealloc))
        .collect();
    let mut users: BTreeMap<u64, usize> = BTreeMap::new();
    for drop in drops.iter().flatten() {
        *users.entry(*drop).or_default() += 1;
    }
    let only = |drop: &u64| users.get(drop) == Some(&1);
    drops
        .into_iter()
        .map(|drop| type_of(image, drop.filter(only)?))
        .collect()
}

/// The function that drops the cell: the first with such a name among those that
/// `dealloc` calls.
fn drop_of(image: &Image<'_>, dealloc: u64) -> Option<u64> {
    if image.symbols().is_empty() {
        return None;
    }
    let mut level = BTreeSet::from([dealloc]);
    for _ in 0..MAX_DEPTH {
        let mut next = BTreeSet::new();
        let mut instructions = Vec::new();
        for function in level {
            if let Some(range) = image.function_at(function) {
                code::decode(image, &range, &mut instructions);
                let targets = instructions.iter();
                next.extend(targets.filter_map(|it| code::direct_target(image, it)));
            }
        }
        let mut drops = next.iter().filter(|&&function| drops_cell(image, function));
        if let Some(&drop) = drops.next() {
            return drops.next().is_none().then_some(drop);
        }
        level = next;
    }
    None
}

fn drops_cell(image: &Image<'_>, function: u64) -> bool {
    names::all_of(image, function).any(|name| cell_argument(&name).is_some())
}

/// The one type that the names at `drop` spell.
fn type_of(image: &Image<'_>, drop: u64) -> Option<String> {
    let types: BTreeSet<_> = names::all_of(image, drop)
        .filter_map(|name| cell_argument(&name).map(str::to_owned))
        .collect();
    let mut types = types.into_iter();
    types.next().filter(|_| types.next().is_none())
}

/// `T` of `drop_in_place<Cell<T, S>>`.
fn cell_argument(name: &str) -> Option<&str> {
    // The second mangling writes `drop_in_place::<`.
    let cell = name.split_once(CELL)?;
    let is_drop = DROPS
        .iter()
        .any(|drop| cell.0.replacen("::<", "<", 1) == *drop);
    let end = names::first_argument_end(cell.1)?;
    is_drop.then(|| &cell.1[..end])
}

#[cfg(test)]
mod tests {
    use super::cell_argument;

    #[test]
    fn the_type_of_a_dropped_cell() {
        let of_legacy = "core::ptr::drop_in_place<tokio::runtime::task::core::Cell<\
                         app::Spin<app::Burst>,alloc::sync::Arc<S>>>";
        assert_eq!(cell_argument(of_legacy), Some("app::Spin<app::Burst>"));
        let of_box = "core::ptr::drop_in_place::<alloc::boxed::Box<\
                      tokio::runtime::task::core::Cell<app::run::{closure#0}, S>>>";
        assert_eq!(cell_argument(of_box), Some("app::run::{closure#0}"));
        let of_option = "core::ptr::drop_in_place<core::option::Option<\
                         tokio::runtime::task::core::Cell<app::Spin,S>>>";
        assert_eq!(cell_argument(of_option), None);
    }
}
