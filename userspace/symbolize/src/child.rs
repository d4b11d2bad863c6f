//! The process that reads programs.
//!
//! In: a program as its stdin, addresses in it over its stdout, which is a socket. Out:
//! the functions there, over the same. Never: more memory or time than its limits; a
//! name for an address that no symbol covers.
//!
//! Mapped files may become shorter, which is a signal; debug information may be anything:
//! so this is no part of the recorder's process.

use std::{
    io::{self, BufWriter, Write},
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
};

use blazesym::{
    MaybeDefault,
    symbolize::{
        Input, Reason, Sym, Symbolized, Symbolizer,
        source::{Elf, Kernel, Source},
    },
};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{
    Answer, Function, Unnamed,
    wire::{self, read_request, write_answer, write_peak},
};

/// Memory that it allocates at most, bytes (`RLIMIT_DATA`): what it maps of files the
/// kernel may take back.
pub const MEMORY_BYTES: u64 = 160 << 20;
/// CPU time that it may take, s: beyond what anybody waits for, in case nobody waits.
const CPU_SECONDS: u64 = 20;
/// Addresses after which answers are sent.
const CHUNK: usize = 64;
/// How far behind its begin the kernel's code is taken for a function's, bytes: the
/// kernel's table has no sizes.
const MAX_KERNEL_FUNCTION: usize = 1 << 20;
const KALLSYMS: &str = "/proc/kallsyms";
const PROGRAM: &str = "/proc/self/fd/0";

/// Answers what it is asked, and ends.
///
/// # Errors
/// The system's; whoever asks hears of no more answers.
pub fn run() -> io::Result<()> {
    for (resource, limit) in [
        (Resource::Data, MEMORY_BYTES),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Core, 0),
    ] {
        let limit = Some(limit);
        let limits = Rlimit {
            current: limit,
            maximum: limit,
        };
        setrlimit(resource, limits)?;
    }
    // It is in no hurry; where that is refused it is in a little.
    let _ = rustix::process::nice(10);
    let socket = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (source, addresses) = read_request(&socket)?;
    answer_all(source, Path::new(PROGRAM), &addresses, &socket)?;
    write_peak(&socket, peak_kib())
}

/// The most memory that it had resident, what it mapped included, KiB; 0 where that is
/// not known.
fn peak_kib() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let peak = lines.find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse().ok());
    peak.unwrap_or(0)
}

/// Answers for each address in turn.
pub(crate) fn answer_all(
    source: wire::Source,
    program: &Path,
    addresses: &[u64],
    to: impl Write,
) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    let has_debug_info = source == wire::Source::DebugInfo;
    let symbolizer = Symbolizer::builder()
        .enable_auto_reload(false)
        .enable_code_info(has_debug_info)
        .enable_inlined_fns(has_debug_info)
        // The recorder has looked for them already.
        .set_debug_dirs(Some([""; 0]))
        .build();
    let from = if source == wire::Source::Kernel {
        kernel()
    } else {
        let mut elf = Elf::new(program);
        elf.debug_syms = has_debug_info;
        Source::Elf(elf)
    };
    for chunk in addresses.chunks(CHUNK) {
        let input = match source {
            wire::Source::Kernel => Input::AbsAddr(chunk),
            _ => Input::VirtOffset(chunk),
        };
        match symbolizer.symbolize(&from, input) {
            Ok(found) => {
                for symbolized in found {
                    write_answer(&mut to, &answer(source, symbolized))?;
                }
            }
            Err(_) => {
                for _ in chunk {
                    write_answer(&mut to, &Err(Unnamed::Broken))?;
                }
            }
        }
        to.flush()?;
    }
    Ok(())
}

fn kernel() -> Source<'static> {
    Source::Kernel(Kernel {
        kallsyms: MaybeDefault::Some(PathBuf::from(KALLSYMS)),
        vmlinux: MaybeDefault::None,
        debug_syms: false,
        ..Kernel::default()
    })
}

fn answer(source: wire::Source, symbolized: Symbolized<'_>) -> Answer {
    let sym = match (symbolized, source) {
        (Symbolized::Sym(sym), _) => sym,
        // Addresses that are hidden are 0 and left out.
        (Symbolized::Unknown(_), wire::Source::Kernel) => return Err(Unnamed::KernelHidden),
        (Symbolized::Unknown(Reason::MissingSyms), _) => return Err(Unnamed::NoSymbols),
        (Symbolized::Unknown(Reason::IgnoredError), _) => return Err(Unnamed::Broken),
        (Symbolized::Unknown(_), _) => return Err(Unnamed::NoSymbol),
    };
    if sym.name.is_empty() || !covers(source, &sym) {
        return Err(Unnamed::NoSymbol);
    }
    let place = |info: Option<&blazesym::symbolize::CodeInfo<'_>>| {
        let file = info.map(|info| info.to_path().to_string_lossy().into());
        let line = info.and_then(|info| info.line);
        (file.unwrap_or_default(), line.unwrap_or(0))
    };
    let (file, line) = place(sym.code_info.as_deref());
    let outermost = Function {
        name: sym.name.into(),
        file,
        line,
    };
    let inlined = sym.inlined.iter().map(|function| {
        let (file, line) = place(function.code_info.as_ref());
        let name = function.name.as_ref().into();
        Function { name, file, line }
    });
    Ok([outermost].into_iter().chain(inlined).collect())
}

/// Whether the symbol says that it has the address. A table's symbol without a size is
/// only known to be where it begins; debug information has no size for a function in
/// several parts, but lines for its code.
fn covers(source: wire::Source, sym: &Sym<'_>) -> bool {
    match (source, sym.size) {
        (wire::Source::Kernel, _) => sym.offset < MAX_KERNEL_FUNCTION,
        (_, Some(size)) if size > 0 => sym.offset < size,
        (wire::Source::DebugInfo, _) if sym.addr == 0 => sym.code_info.is_some(),
        _ => sym.offset == 0,
    }
}
