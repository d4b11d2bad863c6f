//! `xtask kernels`: the tracer on Debian's kernels, in virtual machines.
//!
//! In: packages of kernels, by a list of sources of our own. Out: a table of what works on
//! which, and why not where it does not; an error where something is broken. Never: a
//! package that is installed, a change of the system's sources, a machine that outlives the
//! verb.
//!
//! The integration tests run in there as they are, from memory, those of block I/O on a disk.

mod console;
mod image;
mod machine;
mod packages;
mod rows;
mod table;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use self::console::Console;
use self::packages::Kernel;
use self::rows::{ROWS, Row};
use self::table::Table;
use crate::setup::{self, Scope};
use crate::{build_ebpf, shell};

/// Where the table is.
const TABLE: &str = "integration/KERNELS.md";

/// One thread for all CPUs. With a thread for each, QEMU 7.2 may go on executing a
/// breakpoint that another CPU has put into the kernel's text and taken out since, as the
/// kernel does where programs come to and leave tracepoints: the translation of old text
/// stays. The machine hangs then, with interrupts off.
const EMULATED: &str = "tcg,thread=single";

/// Which cells, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this kernel (`6.1`, `newest`, `6.12 preempt=full`); no table is written then
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// The other kernels' columns are what they said when they were booted last
    #[arg(long, requires = "only", conflicts_with = "row")]
    rest: bool,
    /// Only rows whose name has this in it; no table is written then
    #[arg(long, value_name = "TEXT")]
    row: Option<String>,
    /// How the machine is run: QEMU's emulation works everywhere, `kvm` is ten times as
    /// fast where there is hardware for it
    #[arg(long, value_name = "NAME", default_value = EMULATED)]
    accel: String,
}

/// A column: a kernel and what it is told.
struct Column {
    name: &'static str,
    /// What its version begins with; the newest of all where it is empty.
    series: &'static str,
    /// More of its command line.
    words: &'static str,
}

const COLUMNS: [Column; 5] = [
    column("5.10", "5.10.", ""),
    column("6.1", "6.1.", ""),
    column("6.12", "6.12.", ""),
    column("6.12 preempt=full", "6.12.", "preempt=full"),
    column("newest", "", ""),
];

const fn column(name: &'static str, series: &'static str, words: &'static str) -> Column {
    Column {
        name,
        series,
        words,
    }
}

/// Where kernels and the machine's memory are kept.
fn folder() -> PathBuf {
    shell::root().join("target/kernels")
}

fn rows_of(args: &Args) -> impl Iterator<Item = &'static Row> {
    let text = args.row.clone().unwrap_or_default();
    ROWS.iter().filter(move |row| row.what.contains(&text))
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(Scope::Kernels)?;
    build_ebpf::tracer()?;
    let rows: Vec<_> = rows_of(args).collect();
    let is_wanted = |column: &&Column| {
        let only = args.only.as_deref();
        only.is_none_or(|name| name == column.name)
    };
    if rows.is_empty() || !COLUMNS.iter().any(|column| is_wanted(&column)) {
        bail!("there is no such kernel or row");
    }
    fs::create_dir_all(folder())?;
    let available = packages::available()?;
    let image = image::build(&rows)?;
    let disk = image::disk()?;
    let mut booted = Vec::new();
    for column in &COLUMNS {
        let is_booted = is_wanted(&column);
        if !is_booted && !args.rest {
            continue;
        }
        let kernel = Kernel::fetch(&available, column.series)?;
        let console = folder().join(format!("{}.console", column.name));
        if is_booted {
            println!("kernels: {} {}", kernel.version, column.words);
            let lines = machine::boot((&kernel, column.words), (&image, &disk), &args.accel)?;
            fs::write(&console, lines.join("\n"))?;
        }
        let said = fs::read_to_string(&console).with_context(|| console.display().to_string())?;
        booted.push((column.words, kernel, Console::read(&said)));
    }
    let table = Table::of(&rows, &booted);
    println!("{table}");
    if (args.only.is_none() || args.rest) && args.row.is_none() {
        let text = table.document(&machine::version()?)?;
        fs::write(shell::root().join(TABLE), text)?;
    }
    if table.broken > 0 {
        bail!("{} cells are broken", table.broken);
    }
    Ok(())
}
