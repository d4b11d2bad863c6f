//! Whose a segment says it is.
//!
//! In: flags, the environment, a process. Out: the segment's metadata. Never: an
//! identity that changes while the process runs.

use std::{collections::BTreeMap, path::Path};

use dial9_bpf_integration::{Attach, Build, Facts, TestProgram, output_dir, require_root};

fn metadata(program: &TestProgram, output: &Path, flags: &[&str]) -> BTreeMap<String, String> {
    let attach = Attach::to(program.pid(), output)
        .arg("--duration")
        .arg("1s");
    let attach = flags.iter().fold(attach, |attach, flag| attach.arg(*flag));
    let named = attach.under(&["env", "DIAL9_SERVICE_NAME=shop"]);
    named.outcome().expect(0);
    Facts::of_dir(output).metadata
}

#[test]
fn flags_go_before_the_environment_and_the_boot_is_the_process_and_the_spool() {
    require_root();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let (one, other) = (output_dir(), output_dir());
    let first = metadata(&program, one.path(), &[]);
    assert_eq!(first["service"], "shop");
    assert_eq!(first["instance"], first["host"]);
    let boot = first["boot_id"].split_once('-').expect("letters and a pid");
    assert!(boot.0.len() == 4 && boot.0.bytes().all(|byte| byte.is_ascii_lowercase()));
    assert_eq!(boot.1, program.pid().to_string());

    let again = metadata(&program, one.path(), &[]);
    assert_eq!(again["boot_id"], first["boot_id"]);

    let flags = ["--service", "cart", "--instance", "blue"];
    let second = metadata(&program, other.path(), &flags);
    assert_eq!(second["service"], "cart");
    assert_eq!(second["instance"], "blue");
    assert_eq!(second["host"], first["host"]);
    // Into another directory: both may have the same index at the same time.
    assert_ne!(second["boot_id"], first["boot_id"]);
    assert!(program.exit().success());
}

#[test]
fn a_process_of_no_unit_is_named_after_its_executable() {
    require_root();
    let program = TestProgram::start("serve", Build::Plain);
    let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", program.pid()));
    let is_in_unit = cgroup.expect("it runs").contains(".service");
    let output = output_dir();
    let named = Attach::to(program.pid(), output.path())
        .arg("--duration")
        .arg("1s");
    named.outcome().expect(0);
    let service = &Facts::of_dir(output.path()).metadata["service"];
    let name = Path::new(program.path())
        .file_name()
        .and_then(|name| name.to_str());
    assert!(is_in_unit || Some(service.as_str()) == name, "{service}");
    assert!(program.exit().success());
}
