//! Panics: std's function that runs the panic hook, and the unwinder's that
//! begins to unwind.
//!
//! In: symbols of the executable, and of the library that unwinds. Out: a site at
//! the entry of each. Never: where a panic happens in a stripped executable, or in
//! one whose std hands the location over in a register that is not known.
//!
//! `library/std/src/panicking.rs`: `panic_with_hook(payload: &mut dyn
//! PanicPayload, location: &Location, …)`, so that the location is in `rdx`. Until
//! it got this name it was `rust_panic_with_hook`, and before Rust 1.81 the
//! panic's message was in `rdx` there.

use std::collections::BTreeSet;

use dial9_bpf_abi::cookie::{Cookie, Register};

use crate::compiler;
use crate::elf::{self, Image};
use crate::entry;
use crate::names;
use crate::plan::{Binary, Miss, Plan, Probe, Site};

const PANIC: &str = "std::panicking::panic_with_hook";
const PANIC_BEFORE: &str = "std::panicking::rust_panic_with_hook";
/// The first Rust whose function of the name before has the location in `rdx`.
const FIRST_IN_RDX: (u32, u32) = (1, 81);
/// Every panic that unwinds comes here (`library/panic_unwind/src/gcc.rs`).
const UNWIND: &str = "_Unwind_RaiseException";
/// `rdx`, the third argument: a `dyn` takes two.
const RDX: Register = Register(2);

/// Adds the sites in the executable.
pub(crate) fn find(image: &Image<'_>, sites: &mut Vec<Site>, misses: &mut Vec<Miss>) {
    match location_sites(image) {
        Ok(found) => sites.extend(found),
        Err(reason) => misses.push(Miss {
            probe: Probe::Panic,
            reason,
        }),
    }
    // A static executable has the unwinder in itself.
    let unwind = image.symbols().iter().find(|symbol| symbol.name == UNWIND);
    sites.extend(
        unwind.and_then(|symbol| site(image, Probe::PanicMessage, symbol.address, Register::RDI)),
    );
}

/// Adds the site of panic messages, if the executable has none: `library` is the
/// file that unwinds the target's stacks, `None` where there is none.
pub fn add_unwinder(plan: &mut Plan, library: Option<&[u8]>) {
    if plan
        .sites
        .iter()
        .any(|site| site.probe == Probe::PanicMessage)
    {
        return;
    }
    let found = library
        .ok_or("no library of the target unwinds stacks")
        .and_then(|library| unwinder_site(library).ok_or("no usable _Unwind_RaiseException"));
    match found {
        Ok(site) => plan.sites.push(site),
        Err(reason) => plan.misses.push(Miss {
            probe: Probe::PanicMessage,
            reason: reason.to_owned(),
        }),
    }
}

fn unwinder_site(library: &[u8]) -> Option<Site> {
    let image = Image::parse(library).ok()?;
    let function = elf::exported(library, UNWIND)?;
    Some(Site {
        binary: Binary::Unwinder,
        function: Some(UNWIND.to_owned()),
        ..site(&image, Probe::PanicMessage, function, Register::RDI)?
    })
}

fn location_sites(image: &Image<'_>) -> Result<Vec<Site>, String> {
    if image.symbols().is_empty() {
        return Err("no symbol table: panics have no location".to_owned());
    }
    let mut functions = BTreeSet::new();
    for symbol in image.symbols() {
        if !symbol.name.contains("panic_with_hook") {
            continue;
        }
        let name = names::demangle(symbol.name);
        if name == PANIC_BEFORE && compiler::oldest(image) < Some(FIRST_IN_RDX) {
            return Err("this Rust is older than 1.81, or does not say its version".to_owned());
        }
        if name == PANIC || name == PANIC_BEFORE {
            functions.insert(symbol.address);
        }
    }
    if functions.is_empty() {
        return Err("no symbol std::panicking::panic_with_hook".to_owned());
    }
    let usable: Option<Vec<Site>> = functions
        .iter()
        .map(|&function| site(image, Probe::Panic, function, RDX))
        .collect();
    usable.ok_or_else(|| "std::panicking::panic_with_hook has no usable instruction".to_owned())
}

/// The site at the entry of a function whose argument in `argument` is wanted.
fn site(image: &Image<'_>, probe: Probe, function: u64, argument: Register) -> Option<Site> {
    let entry = entry::find(image, function, argument)?;
    let cookie = Cookie {
        header: entry.header,
        pushed: entry.pushed,
        ..Cookie::EMPTY
    };
    crate::code::site(image, probe, &entry.instruction, cookie)
}

#[cfg(test)]
mod tests;
