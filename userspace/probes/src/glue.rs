//! Task types that the symbols of drop glue spell.
//!
//! In: the functions of task vtables, legacy symbols. Out: the types that each vtable may
//! be of. Never: one of several; a guess from what a future's body is called, which may be
//! another's that is inlined in it.
//!
//! Legacy symbols leave out a function's generic arguments, but not those of the type that
//! `core::ptr::drop_in_place` drops. The functions of a vtable that give back a task come
//! to that of `Cell<T, S>` or of its `CoreStage<T>` (`runtime/task/core.rs`). Equal ones are merged, and then have
//! all of the names, or one where the compiler sees that nobody else needs the others
//! (one unit of code, fat LTO). A program in which a glue has fewer names than there are
//! vtables that come to it has lost others too, also of vtables that have become one: it
//! gives no types.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::FlowControl;

use crate::code;
use crate::elf::Image;
use crate::names::{self, Namer};
use crate::types::{self, Types};
use crate::vtables::Found;

/// How the names of the glue of a cell begin, and of the box that it is in; with the
/// future's type and the scheduler's.
const CELLS: [&str; 2] = [
    "core::ptr::drop_in_place<tokio::runtime::task::core::Cell<",
    "core::ptr::drop_in_place<alloc::boxed::Box<tokio::runtime::task::core::Cell<",
];
/// The same of the part with the future; with its type alone.
const STAGES: [&str; 2] = [
    "core::ptr::drop_in_place<tokio::runtime::task::core::CoreStage<",
    "core::ptr::drop_in_place<tokio::runtime::task::core::Stage<",
];
/// Whose calls are followed.
const TASK: &str = "tokio::runtime::task::";
/// The scheduler of closures of the blocking pool.
const BLOCKING: &str = "BlockingSchedule";
/// How many calls a glue is away from a vtable at most: `raw::dealloc`,
/// `Harness::dealloc`, the box's.
const MAX_DEPTH: usize = 4;
/// The largest function that is looked at, bytes.
const MAX_FUNCTION_BYTES: u64 = 1 << 14;
/// Functions that are looked at; a program has some thousand.
const MAX_FUNCTIONS: usize = 1 << 14;

/// The types of each vtable's tasks, by its address.
pub(crate) fn types(image: &Image<'_>, names: &mut Namer<'_>, found: &[Found]) -> Types {
    let mut search = Search {
        image,
        names,
        callees: BTreeMap::new(),
        glue: BTreeMap::new(),
    };
    let reached: Vec<BTreeSet<u64>> = found.iter().map(|found| search.reached(found)).collect();
    let users = types::users(reached.iter().flatten().copied());
    if search.loses_names(&users) {
        return Types::new();
    }
    let mut types = Types::new();
    for (Found { vtable, .. }, reached) in found.iter().zip(&reached) {
        let cells = reached.iter().filter_map(|glue| search.told(*glue, &users));
        let kinds = cells.map(|cells| of_scheduler(cells, vtable.blocking));
        if let Some(agreed) = agreed(kinds) {
            types.insert(vtable.address, agreed);
        }
    }
    types
}

/// A future, and its scheduler where it is known.
type Cell = (String, Option<String>);

/// What all say; `None` where they do not.
fn agreed(mut kinds: impl Iterator<Item = BTreeSet<String>>) -> Option<BTreeSet<String>> {
    let first = kinds.next().filter(|first| !first.is_empty())?;
    kinds.all(|other| other == first).then_some(first)
}

fn of_scheduler(cells: &BTreeSet<Cell>, blocking: bool) -> BTreeSet<String> {
    let fits = |cell: &&Cell| {
        let scheduler = cell.1.as_deref();
        scheduler.is_none_or(|scheduler| scheduler.contains(BLOCKING) == blocking)
    };
    cells
        .iter()
        .filter(fits)
        .map(|cell| cell.0.clone())
        .collect()
}

struct Search<'a, 'image, 'data> {
    image: &'a Image<'data>,
    names: &'a mut Namer<'image>,
    /// What functions call directly.
    callees: BTreeMap<u64, Vec<u64>>,
    /// The cells that functions are the glue of.
    glue: BTreeMap<u64, BTreeSet<Cell>>,
}

impl Search<'_, '_, '_> {
    /// The glue that a vtable's functions come to.
    fn reached(&mut self, found: &Found) -> BTreeSet<u64> {
        let mut glue = BTreeSet::new();
        let mut seen: BTreeSet<u64> = found.functions().collect();
        let mut next: Vec<u64> = seen.iter().copied().collect();
        for _ in 0..MAX_DEPTH {
            for function in std::mem::take(&mut next) {
                for callee in self.callees(function) {
                    if !seen.insert(callee) {
                        continue;
                    }
                    if self.is_glue(callee) {
                        glue.insert(callee);
                    } else if self.is_of_task(callee) {
                        next.push(callee);
                    }
                }
            }
        }
        glue
    }

    /// The cells of a glue, if its names are all that it had.
    fn told(&self, glue: u64, users: &BTreeMap<u64, usize>) -> Option<&BTreeSet<Cell>> {
        let cells = self.glue.get(&glue)?;
        (cells.len() >= *users.get(&glue)?).then_some(cells)
    }

    /// Whether the glue of a cell, which is one vtable's, has more users than names.
    fn loses_names(&self, users: &BTreeMap<u64, usize>) -> bool {
        users.iter().any(|(glue, &users)| {
            let cells = self.glue.get(glue).into_iter().flatten();
            (1..users).contains(&cells.filter(|cell| cell.1.is_some()).count())
        })
    }

    fn is_glue(&mut self, function: u64) -> bool {
        if !self.glue.contains_key(&function) {
            let names = self.names.all(function);
            let cells = names.iter().filter_map(|name| cell(name)).collect();
            self.glue.insert(function, cells);
        }
        self.glue
            .get(&function)
            .is_some_and(|cells| !cells.is_empty())
    }

    fn is_of_task(&mut self, function: u64) -> bool {
        let names = self.names.all(function);
        let is_one = |name: &String| name.trim_start_matches('<').starts_with(TASK);
        names.iter().any(is_one)
    }

    fn callees(&mut self, function: u64) -> Vec<u64> {
        if let Some(callees) = self.callees.get(&function) {
            return callees.clone();
        }
        let range = self.image.function_at(function);
        let range = range.filter(|range| range.end - range.start <= MAX_FUNCTION_BYTES);
        let mut callees = Vec::new();
        if let Some(range) = range.filter(|_| self.callees.len() < MAX_FUNCTIONS) {
            let mut instructions = Vec::new();
            code::decode(self.image, &(function..range.end), &mut instructions);
            let calls = instructions.iter().filter(|instruction| {
                matches!(
                    instruction.flow_control(),
                    FlowControl::Call | FlowControl::UnconditionalBranch
                )
            });
            callees.extend(
                calls
                    .filter_map(code::near_target)
                    .filter(|to| !range.contains(to)),
            );
        }
        self.callees.insert(function, callees.clone());
        callees
    }
}

/// What a function of this name drops of a task.
fn cell(name: &str) -> Option<Cell> {
    let after = |begins: [&str; 2]| {
        begins
            .into_iter()
            .find_map(|begin| name.strip_prefix(begin))
    };
    if let Some(arguments) = after(CELLS) {
        let (future, rest) = names::first_argument(arguments)?;
        let (scheduler, _) = names::first_argument(rest.strip_prefix(',')?)?;
        return Some((future.to_owned(), Some(scheduler.to_owned())));
    }
    let (future, _) = names::first_argument(after(STAGES)?)?;
    Some((future.to_owned(), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glues_name_spells_the_future_and_the_scheduler() {
        let name = "core::ptr::drop_in_place<tokio::runtime::task::core::Cell<a::B<C,D>,E<F>>>";
        let expected = ("a::B<C,D>".to_owned(), Some("E<F>".to_owned()));
        assert_eq!(cell(name), Some(expected));
        assert_eq!(cell("core::ptr::drop_in_place<a::Cell<B,C>>"), None);
        assert_eq!(cell(&name[..name.len() - 5]), None);
        let name = "core::ptr::drop_in_place<tokio::runtime::task::core::CoreStage<a::B>>";
        assert_eq!(cell(name), Some(("a::B".to_owned(), None)));
    }

    #[test]
    fn what_is_told_differently_is_not_told() {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let (a, b): (BTreeSet<String>, BTreeSet<String>) = (set(&["A"]), set(&["B"]));
        assert_eq!(agreed([a.clone(), a.clone()].into_iter()), Some(a.clone()));
        assert_eq!(agreed([a, b].into_iter()), None);
        assert_eq!(agreed([BTreeSet::new()].into_iter()), None);
        assert_eq!(agreed(std::iter::empty()), None);
    }
}
