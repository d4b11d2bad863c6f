//! An ordinary Tokio server that knows nothing of dial9-bpf, and the load for
//! it.
//!
//! `demo serve` listens on a free loopback port, prints `listening ADDR pid N`
//! and serves until it is told to stop or its time is over. `demo load ADDR` sends it requests at a
//! bounded rate for a bounded time.

mod background;
mod load;
mod server;
mod work;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

const USAGE: &str = "usage: demo serve [--workers N] [--seconds N]
       demo load ADDR [--seconds N] [--connections N] [--rate REQUESTS_PER_SECOND]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["serve", options @ ..] => serve(options),
        ["load", address, options @ ..] => load(address, options),
        _ => None,
    };
    match result {
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
        Some(Err(error)) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
        Some(Ok(())) => ExitCode::SUCCESS,
    }
}

fn serve(options: &[&str]) -> Option<io::Result<()>> {
    let workers = number(options, "--workers", 2)?;
    let seconds = number(options, "--seconds", u32::MAX)?;
    let lifetime = Duration::from_secs(u64::from(seconds));
    Some(runtime(workers).and_then(|runtime| runtime.block_on(server::run(lifetime))))
}

fn load(address: &str, options: &[&str]) -> Option<io::Result<()>> {
    let plan = load::Plan {
        address: SocketAddr::from_str(address).ok()?,
        seconds: number(options, "--seconds", 10)?,
        connections: number(options, "--connections", 16)?,
        rate: number(options, "--rate", 10_000)?,
    };
    Some(runtime(1).and_then(|runtime| runtime.block_on(load::run(plan))))
}

fn runtime(workers: u32) -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers as usize)
        .enable_all()
        .build()
}

/// The value of an option; `None` where it is no positive number.
fn number(options: &[&str], name: &str, default: u32) -> Option<u32> {
    let Some(at) = options.iter().position(|option| *option == name) else {
        return Some(default);
    };
    options.get(at + 1)?.parse().ok().filter(|value| *value > 0)
}
