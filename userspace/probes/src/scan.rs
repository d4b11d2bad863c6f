//! The scan: what of a binary can be probed, by which sites.
//!
//! In: the bytes of an ELF file, and of its debug file. Out: a [`Plan`]. Never: a look
//! at a process, a file or the kernel; a panic on hostile input.

use std::ops::Range;

use crate::block_on::BlockOns;
use crate::calls::PollCalls;
use crate::code;
use crate::debug_info::File;
use crate::elf::Image;
use crate::error::ScanError;
use crate::inlined::InlinedWakes;
use crate::names::Namer;
use crate::origins::Origins;
use crate::park::{self, Expectations, ParkCalls};
use crate::plan::{Plan, Probe, Site};
use crate::spawn::LocalSpawns;
use crate::vtables::{self, Found};
use crate::{complete, panics, polls, spawn, types, version, wakers};

/// Finds the sites of a Tokio program (Tokio 1.24 or later, x86-64, optimized).
///
/// # Errors
///
/// [`ScanError`] if the file is no such ELF file or has no Tokio in it. A probe
/// without a usable site is no error but one of [`Plan::misses`].
pub fn scan(elf: &[u8]) -> Result<Plan, ScanError> {
    let read = |part: Range<u64>| {
        let [start, end] = [part.start, part.end].map(|at| usize::try_from(at).ok());
        Some(elf.get(start?..end?)?.to_vec())
    };
    let file = File {
        parts: elf,
        read: &read,
    };
    scan_files(&file, None)
}

/// The same for a program whose symbols and debug information may be in another file.
///
/// # Errors
///
/// As [`scan`]; what is wrong with the other file is none.
pub fn scan_files(program: &File<'_>, debug_file: Option<&File<'_>>) -> Result<Plan, ScanError> {
    let elf = program.parts;
    let image = Image::parse_with(elf, debug_file.map(|file| file.parts))?;
    let mut found = vtables::find(&image)?;
    let Swept {
        polls: poll_calls,
        parks,
        expectations,
        wakes: inlined,
        local_spawns,
        block_ons,
        origins,
    } = sweep(&image, &found)?;
    origins.finish(&image, &mut found);
    let mut sites = Vec::new();
    let mut misses = Vec::new();
    polls::find(&image, &found, &poll_calls, &mut sites, &mut misses);
    // Closures of the blocking pool are never woken nor bound to a runtime.
    let tasks = found.iter().map(|found| &found.vtable);
    let tasks = tasks.filter(|vtable| !vtable.blocking);
    let id_offset = vtables::common_id_offset(tasks.map(|vtable| vtable.id_offset));
    wakers::find(&image, id_offset, &inlined, &mut sites, &mut misses);
    spawn::find(&image, id_offset, &local_spawns, &mut sites, &mut misses);
    if complete::find(&image, &found, &mut sites, &mut misses) {
        remember_tasks(&mut sites);
    }
    park::find(&image, &expectations, &parks, &mut sites, &mut misses);
    block_ons.finish(&image, &mut sites, &mut misses);
    panics::find(elf, &image, &mut sites, &mut misses);
    let mut names = Namer::of(&image);
    for site in &mut sites {
        site.function = names.function(site.address);
    }
    let files: Vec<_> = [program].into_iter().chain(debug_file).collect();
    let untyped = types::find(&image, &mut names, &files, &mut found);
    sites.sort_by_key(|site| (site.probe, site.file_offset));
    sites.dedup_by_key(|site| (site.probe, site.file_offset));
    Ok(Plan {
        sites,
        vtables: found.into_iter().map(|found| found.vtable).collect(),
        misses,
        tokio_version: version::find(&image),
        build_id: image.build_id().map(str::to_owned),
        has_symbols: !image.symbols().is_empty(),
        untyped,
    })
}

/// What the functions have shown.
struct Swept {
    polls: Vec<u64>,
    parks: ParkCalls,
    expectations: Expectations,
    wakes: InlinedWakes,
    local_spawns: LocalSpawns,
    block_ons: BlockOns,
    origins: Origins,
}

/// Decodes every function once.
fn sweep(image: &Image<'_>, found: &[Found]) -> Result<Swept, ScanError> {
    let tasks = found.iter().map(|found| &found.vtable);
    let tasks = tasks.filter(|vtable| !vtable.blocking);
    let mut local_spawns = LocalSpawns::of(image, tasks.map(|vtable| vtable.address).collect());
    let mut polls = PollCalls::new();
    let mut parks = ParkCalls::default();
    let mut expectations = Expectations::default();
    let mut wakes = InlinedWakes::new();
    let mut block_ons = BlockOns::of(image);
    let mut origins = Origins::new(image, found);
    let mut instructions = Vec::new();
    for range in image.functions() {
        code::decode(image, range, &mut instructions);
        polls.visit(range, &instructions);
        parks.visit(range, &instructions);
        expectations.visit(image, range, &instructions);
        wakes.visit(range, &instructions);
        local_spawns.visit(image, range, &instructions);
        block_ons.visit(image, range, &instructions);
        origins.visit(image, range, &instructions);
    }
    Ok(Swept {
        polls: polls.finish(image)?,
        parks,
        expectations,
        wakes,
        local_spawns,
        block_ons,
        origins,
    })
}

/// Lets the kernel side remember task ids: the end of every task is seen.
/// Closures of the blocking pool are polled once, and not worth an entry.
fn remember_tasks(sites: &mut [Site]) {
    let of_tasks = [
        Probe::PollStart,
        Probe::Wake,
        Probe::Spawn,
        Probe::Terminate,
    ];
    for site in sites {
        site.cookie.remembers = of_tasks.contains(&site.probe) && !site.cookie.blocking;
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
