//! Prints the plan for a binary: `cargo run --example sites -- FILE`.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::error::Error;
use std::time::Instant;

use dial9_bpf_probes::plan::{Plan, Site};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: sites FILE")?;
    let elf = std::fs::read(path)?;
    let start = Instant::now();
    let plan = dial9_bpf_probes::scan(&elf)?;
    let elapsed = start.elapsed();
    let Plan {
        sites,
        vtables,
        misses,
        tokio_version,
        build_id,
        has_symbols,
        untyped,
    } = &plan;
    println!("tokio {tokio_version:?}, build id {build_id:?}, symbols {has_symbols}, {elapsed:?}");
    println!("untyped: {untyped:?}");
    for (index, vtable) in vtables.iter().enumerate() {
        println!("vtable {index}: {vtable:x?}");
    }
    for Site {
        probe,
        binary: _,
        file_offset,
        address,
        class,
        instruction,
        cookie,
        function,
        scheduler,
    } in sites
    {
        let probe = probe.name();
        println!(
            "{probe} {address:#x} @{file_offset:#x} {class:?} `{instruction}` {cookie:?} {function:?} {scheduler:?}"
        );
    }
    for miss in misses {
        println!("no {}: {}", miss.probe.name(), miss.reason);
    }
    Ok(())
}
