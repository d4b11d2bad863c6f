//! Names the kernel object to embed. It is built beforehand, by a cargo of its
//! own: cargo never runs inside cargo here.

use std::{env, path::PathBuf, process};

const OBJECT: &str = "DIAL9_BPF_OBJECT";

fn main() {
    println!("cargo::rerun-if-env-changed={OBJECT}");
    let object = env::var_os(OBJECT).map_or_else(
        || {
            let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
            PathBuf::from(package).join("../../target/bpf/dial9.o")
        },
        PathBuf::from,
    );
    println!("cargo::rerun-if-changed={}", object.display());
    match object.canonicalize() {
        Ok(path) => println!("cargo::rustc-env={OBJECT}={}", path.display()),
        Err(error) => {
            println!(
                "cargo::error=no kernel object at {} ({error}): run `cargo xtask build-ebpf`",
                object.display()
            );
            process::exit(1);
        }
    }
}
