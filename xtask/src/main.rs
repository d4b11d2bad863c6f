//! `cargo xtask`: the development commands of dial9-bpf, one module a verb.

#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "what it prints is for the one who works on this"
)]

mod bench;
mod build_ebpf;
mod check;
mod demo;
mod fuzz;
mod kernels;
mod layouts;
mod lint;
mod listening;
mod matrix;
mod object;
mod real;
mod schemas;
mod setup;
mod shell;
mod soak;
mod test;
mod tidy;
mod toolchain;
mod viewer;

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
    /// Build everything and trace the bundled server under load
    Demo(demo::Args),
    /// Run every check and test; the integration tests need root
    Test,
    /// Check format, lints, documentation and licences
    Lint,
    /// Check imports, file sizes, names and headers
    Tidy,
    /// Compare or write schemas/
    Schemas(schemas::Args),
    /// Damage programs, and see what the scanner makes of them
    Fuzz(fuzz::Args),
    /// Print where each version of Tokio has the counters of its runtimes
    Layouts(layouts::Args),
    /// Measure what a hit and an event cost
    Bench(bench::Args),
    /// Record for long, through kills and a store that fails at random
    Soak(soak::Args),
    /// Have dial9's viewer and a browser open what is uploaded
    Viewer(viewer::Args),
    /// Record one program in every build, and compare with what it counts
    Matrix(matrix::Args),
    /// Record programs of others under load, and see that they serve as before
    Real(real::Args),
    /// Run the tests of each signal on Debian's kernels, in virtual machines
    Kernels(kernels::Args),
}

fn main() -> ExitCode {
    let result = match Verb::parse() {
        Verb::Setup => setup::run(),
        Verb::BuildEbpf(args) => build_ebpf::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Test => return exit(test::run()),
        Verb::Lint => lint::run(),
        Verb::Tidy => tidy::run(),
        Verb::Schemas(args) => schemas::run(&args),
        Verb::Fuzz(args) => fuzz::run(&args),
        Verb::Layouts(args) => layouts::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Soak(args) => soak::run(&args),
        Verb::Viewer(args) => viewer::run(&args),
        Verb::Matrix(args) => matrix::run(&args),
        Verb::Real(args) => real::run(&args),
        Verb::Kernels(args) => kernels::run(&args),
    };
    exit(result.map(|()| ExitCode::SUCCESS))
}

fn exit(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
