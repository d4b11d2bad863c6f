//! Spawns: `OwnedTasks::bind_inner`, which enters a task into its runtime's
//! list.
//!
//! In: the symbol table. Out: one site for each copy of the function. Never: a
//! stripped file, Tokio before 1.30, tasks of a `LocalSet` (its `bind` has no
//! inner part that is not generic).
//!
//! `runtime/task/list.rs`: `bind_inner(&self, task: Task<S>, notified:
//! Notified<S>)`; `Task` is a pointer to the header, so it is in `rsi`.

use dial9_bpf_abi::cookie::{Cookie, Register};

use crate::code;
use crate::elf::Image;
use crate::entry;
use crate::names;
use crate::plan::{Miss, Probe, Site};

const FUNCTION: &str = "bind_inner";
const PATH: &str = "tokio::runtime::task::list::OwnedTasks<";
/// `rsi`, the second argument.
const RSI: Register = Register(6);

/// Adds the sites for spawns.
pub(crate) fn find(
    image: &Image<'_>,
    id_offset: u16,
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    let Some(functions) = names::functions(image, FUNCTION, is_bind) else {
        let reason = format!("too many symbols have {FUNCTION} in their names");
        misses.push(Miss {
            probe: Probe::Spawn,
            reason,
        });
        return;
    };
    let reason = if image.symbols().is_empty() {
        "no symbol table: tasks are shown from their first sighting".to_owned()
    } else if functions.is_empty() {
        "no symbol OwnedTasks::bind_inner: tasks are shown from their first sighting".to_owned()
    } else {
        let found: Vec<_> = functions
            .iter()
            .filter_map(|&function| site(image, function, id_offset))
            .collect();
        let usable = found.len();
        sites.extend(found);
        if usable == functions.len() {
            return;
        }
        let all = functions.len();
        format!("{usable} of {all} copies of OwnedTasks::bind_inner are usable")
    };
    misses.push(Miss {
        probe: Probe::Spawn,
        reason,
    });
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
