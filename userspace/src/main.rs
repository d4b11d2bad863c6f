//! dial9-bpf: what a Tokio service did, without a rebuild of it.
//!
//! In: a command line. Out: an exit code, one of `exit`'s. Never: an algorithm;
//! the packages beside this one have those.

mod args;
mod code;
mod command;
mod declared;
mod descriptors;
mod dispatch;
mod exit;
mod fio_job;
mod flight;
mod follow;
mod forks;
mod identity;
mod io_report;
mod keep;
mod kernel_io;
mod keys_report;
mod late;
mod launch;
mod listeners;
mod looks;
mod mappings;
mod names;
mod objects;
mod outbox;
mod output;
mod parallelism;
mod plan_report;
mod profile;
mod recording;
mod sampler;
mod session;
mod status;
mod stderr;
mod stdout;
mod stop;
mod summary;
mod usage;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser as _;

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = match &command {
        Command::Attach(args) => command::attach::run(args),
        Command::Run(args) => command::run::run(args),
        Command::Capture(args) => command::capture::run(args),
        Command::Check(args) => command::check::run(args),
        Command::Convert(args) => command::convert::run(args),
        Command::Dump(args) => command::dump::run(args),
        Command::Symbolize => command::symbolize::run(),
        Command::Report(args) => command::report::run(args),
    };
    let code = result.unwrap_or_else(|error| {
        stderr::say(format_args!("dial9-bpf: {error:#}"));
        exit::of_failure(&error)
    });
    code.into()
}
