//! Assembles the padding: what the compiler would need minutes and gigabytes for.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    let object = Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).join("padding.o");
    let mut assemble = Command::new("cc");
    assemble.args(["-c", "src/padding.s", "-o"]).arg(&object);
    let status = assemble
        .status()
        .expect("there is a C compiler to link with");
    assert!(status.success(), "{assemble:?}");
    println!("cargo::rerun-if-changed=src/padding.s");
    println!("cargo::rustc-link-arg-bins={}", object.display());
}
