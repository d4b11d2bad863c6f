//! `cargo xtask`: the development commands of dial9-bpf, one module a verb.

mod build_ebpf;
mod object;
mod setup;
mod shell;
mod toolchain;

use std::process::ExitCode;

use clap::Parser as _;

/// The development commands of dial9-bpf
#[derive(Debug, clap::Parser)]
#[command(bin_name = "cargo xtask")]
enum Verb {
    /// Install what the builds and tests need (Debian, as root)
    Setup,
    /// Build and check the kernel object, target/bpf/dial9.o
    BuildEbpf(build_ebpf::Args),
}

fn main() -> ExitCode {
    let result = match Verb::parse() {
        Verb::Setup => setup::run(),
        Verb::BuildEbpf(args) => build_ebpf::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
