//! How long the names of a segment take, and how much memory.
//!
//! `cargo xtask bench --only symbols` builds what is looked at and runs this, as root. A
//! segment calls addresses all over a program; the helper is the command's own. Time is
//! from the sealed segment to what goes behind it, memory the most that a helper had
//! resident, with what it had mapped of the program.
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use dial9_bpf_integration::{
    called::{RANGE_NS, segment},
    output_dir, require_root,
    target_dir::tracer_binary,
};
use dial9_bpf_symbolize::{CodeFile, DebugInfo, Helper, Placed, Symbolizer};
use dial9_bpf_trace::mapping::Mapping;

/// Where the programs are said to be loaded.
const BASE: u64 = 0x5555_0000_0000;
/// Addresses in a segment: about those of a minute of a busy service.
const ADDRESSES: u64 = 10_000;
/// Limits on the time, ms, and on the helper's memory, MiB.
const LIMITS: [u64; 2] = [1_000, 200];

fn main() {
    require_root();
    let programs: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    println!(
        "\n{ADDRESSES} addresses (limits {} ms, {} MiB)\n",
        LIMITS[0], LIMITS[1]
    );
    println!("program, MB             debug info   named    ms   again, ms   helper, MiB");
    for program in programs.iter().filter(|path| path.is_file()) {
        for debug_info in [DebugInfo::Never, DebugInfo::Auto] {
            row(program, debug_info);
        }
    }
}

fn row(program: &Path, debug_info: DebugInfo) {
    let bytes = fs::metadata(program).expect("it is there").len();
    let file = CodeFile::new(File::open(program).expect("it is there"));
    let mapping = Mapping {
        start: BASE,
        end: BASE + bytes,
        inode: 1,
        device: "00:00".to_owned(),
        path: program.display().to_string(),
        ..Mapping::default()
    };
    let addresses: Vec<u64> = {
        let mut code = file.as_ref().expect("a program").code();
        let (offset, length) = code.next().expect("it has code");
        let step = (length / ADDRESSES).max(1);
        (0..ADDRESSES).map(|at| BASE + offset + at * step).collect()
    };
    let placed = [Placed {
        mapping: mapping.clone(),
        file: file.map(Arc::new),
    }];
    let dir = output_dir();
    let path = segment(dir.path(), &addresses, &[mapping]);
    let helper = Helper {
        program: tracer_binary().expect("it is built"),
        args: vec!["symbolize".into()],
    };
    let mut symbolizer = Symbolizer::new(helper, debug_info);
    let mut once = || {
        let began = Instant::now();
        let tail = symbolizer.tail(&path, &placed, RANGE_NS[0]);
        (tail.expect("it is whole"), began.elapsed().as_millis())
    };
    let (tail, first_ms) = once();
    let (_, again_ms) = once();
    let name = program
        .file_name()
        .unwrap_or_default()
        .display()
        .to_string();
    let (size, named) = (bytes / 1_000_000, tail.naming.named);
    let peak_mib = tail.helper_kib >> 10;
    let debug_info = format!("{debug_info:?}").to_lowercase();
    println!(
        "{name:<18} {size:>4}   {debug_info:<10} {named:>7} {first_ms:>5} {again_ms:>11} {peak_mib:>13}"
    );
}
