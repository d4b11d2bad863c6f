//! Panics: std's function that runs the panic hook, and the unwinder's that
//! begins to unwind.
//!
//! In: symbols of the executable, and of the library that unwinds; with [`raise`] the
//! code of an executable that has that in itself. Out: a site at the entry of each. Never: where a panic happens in a stripped executable, or in
//! one whose std hands the location over in a register that is not known.
//!
//! `library/std/src/panicking.rs`: `panic_with_hook(payload: &mut dyn
//! PanicPayload, location: &Location, …)`, so that the location is in `rdx`. Until
//! it got this name it was `rust_panic_with_hook`, and before Rust 1.81 it had the
//! panic's message before the location. Read in the machine code of Rust 1.70,
//! 1.80, 1.81, 1.95 and 1.96, as are the layouts that the kernel programs rely on.

use std::collections::BTreeSet;

use dial9_bpf_abi::cookie::{Cookie, Register};

use crate::compiler;
use crate::elf::{self, Image};
use crate::entry;
use crate::names;
use crate::plan::{Binary, Miss, Plan, Probe, Site};

mod raise;

const PANIC: &str = "std::panicking::panic_with_hook";
const PANIC_BEFORE: &str = "std::panicking::rust_panic_with_hook";
/// The oldest Rust of which the code was read.
const OLDEST: (u32, u32) = (1, 70);
/// The first Rust whose function of the name before has the location in `rdx`.
const FIRST_IN_RDX: (u32, u32) = (1, 81);
/// Every panic that unwinds comes here (`library/panic_unwind/src/gcc.rs`).
const UNWIND: &str = "_Unwind_RaiseException";
/// `rdx`, the third argument: a `dyn` takes two.
const RDX: Register = Register(2);
/// `rcx`, the fourth.
const RCX: Register = Register(1);

/// Adds the sites in the executable `elf`.
pub(crate) fn find(elf: &[u8], image: &Image<'_>, sites: &mut Vec<Site>, misses: &mut Vec<Miss>) {
    let location = location_sites(image);
    match message_site(elf, image, location.is_ok()) {
        Ok(found) => sites.extend(found),
        Err(reason) => misses.push(Miss {
            probe: Probe::PanicMessage,
            reason: reason.to_owned(),
        }),
    }
    match location {
        Ok(found) => sites.extend(found),
        Err(reason) => misses.push(Miss {
            probe: Probe::Panic,
            reason,
        }),
    }
}

/// The site of messages, if the executable has it; an error if no library has it
/// either.
fn message_site(
    elf: &[u8],
    image: &Image<'_>,
    has_std: bool,
) -> Result<Option<Site>, &'static str> {
    if compiler::oldest(image).is_some_and(|version| version < OLDEST) {
        return Err("this Rust is older than 1.70");
    }
    let is_imported = elf::imports(elf, UNWIND);
    // A static executable has the unwinder in itself.
    let own = image.symbols().named(UNWIND).map(|own| own.address);
    let own = own.or_else(|| (!is_imported).then(|| raise::find(image))?);
    if let Some(own) = own {
        let site = site(image, Probe::PanicMessage, own, Register::RDI);
        return site.map(Some).ok_or("no usable _Unwind_RaiseException");
    }
    if has_std && !is_imported {
        return Err("panics abort: a message is not told to any unwinder");
    }
    Ok(None)
}

/// Adds the site of panic messages, unless the executable has it or cannot have
/// one: `library` is the file that unwinds the target's stacks, `None` where there
/// is none.
pub fn add_unwinder(plan: &mut Plan, library: Option<&[u8]>) {
    let is_settled = plan
        .sites
        .iter()
        .any(|site| site.probe == Probe::PanicMessage)
        || plan
            .misses
            .iter()
            .any(|miss| miss.probe == Probe::PanicMessage);
    if is_settled {
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
    let named = |wanted| names::functions(image, "panic_with_hook", |name| name == wanted);
    let (Some(now), Some(before)) = (named(PANIC), named(PANIC_BEFORE)) else {
        return Err("too many symbols have panic_with_hook in their names".to_owned());
    };
    if now.is_empty() && before.is_empty() {
        return Err("no symbol std::panicking::panic_with_hook".to_owned());
    }
    let before = match compiler::oldest(image) {
        _ if before.is_empty() => Vec::new(),
        Some(version) if version >= FIRST_IN_RDX => argument_of(before, RDX),
        Some(version) if version >= OLDEST => argument_of(before, RCX),
        _ => return Err("this Rust is older than 1.70, or does not say its version".to_owned()),
    };
    let usable: Option<Vec<Site>> = argument_of(now, RDX)
        .into_iter()
        .chain(before)
        .map(|(function, argument)| site(image, Probe::Panic, function, argument))
        .collect();
    usable.ok_or_else(|| "std::panicking::panic_with_hook has no usable instruction".to_owned())
}

fn argument_of(functions: BTreeSet<u64>, argument: Register) -> Vec<(u64, Register)> {
    functions
        .into_iter()
        .map(|function| (function, argument))
        .collect()
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
