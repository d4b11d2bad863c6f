//! `xtask layouts`: where Tokio's schedulers have their counters.
//!
//! In: the minor versions of Tokio. Out: for each, built here with debug information, the
//! offsets that the table in `userspace/attach/src/runtimes/layout.rs` has, from the
//! number of the list of tasks. Never: a table that is written: one compares.
//!
//! gdb reads the DWARF (`layouts.py`). The optimized build of a version has the layout of
//! the unoptimized one: a struct's is decided before.

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result};

use crate::shell;

const MINORS: RangeInclusive<u32> = 28..=54;

/// Which builds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// With `--cfg tokio_unstable`
    #[arg(long)]
    unstable: bool,
    /// One minor version only
    #[arg(long, value_name = "N")]
    minor: Option<u32>,
}

const PROGRAM: &str = r"
use std::time::Duration;
use tokio::runtime::Builder;

fn main() {
    for mut builder in [Builder::new_multi_thread(), Builder::new_current_thread()] {
        builder.enable_all().build().unwrap().block_on(async {
            let task = tokio::spawn(tokio::time::sleep(Duration::from_millis(1)));
            task.await.unwrap();
        });
    }
}
";

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let minors = args.minor.map_or(MINORS, |minor| minor..=minor);
    for minor in minors {
        print!("Tokio 1.{minor}\n{}", layouts(minor, args.unstable)?);
    }
    Ok(())
}

fn layouts(minor: u32, is_unstable: bool) -> Result<String> {
    let folder = shell::root().join("target/layouts");
    let target = folder.join(if is_unstable { "unstable" } else { "stable" });
    let package = folder.join(minor.to_string());
    fs::create_dir_all(package.join("src"))?;
    fs::write(package.join("src/main.rs"), PROGRAM)?;
    fs::write(package.join("Cargo.toml"), manifest(minor))?;
    let flags = if is_unstable {
        "--cfg tokio_unstable"
    } else {
        ""
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    shell::run(
        Command::new(cargo)
            .current_dir(&package)
            .env("CARGO_TARGET_DIR", &target)
            .env("RUSTFLAGS", flags)
            .args(["build", "--quiet"]),
    )?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/layouts.py");
    shell::output(
        Command::new("gdb")
            .args(["-batch", "-nx", "-iex", "set auto-load no", "-x"])
            .arg(script)
            .arg(target.join("debug").join(format!("layouts-{minor}"))),
    )
    .context("gdb with Python reads the debug information")
}

fn manifest(minor: u32) -> String {
    format!(
        "[workspace]\n\
         [package]\nname = \"layouts-{minor}\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
         [dependencies]\ntokio = {{ version = \"~1.{minor}\", features = [\"full\"] }}\n\
         [profile.dev]\ndebug = 2\nincremental = false\n"
    )
}
