//! Segments in other encodings than dial9's.
//!
//! In: recordings, `--compression zstd`, `convert`. Out: the same content
//! whatever is around it. Never: a file that is gone before the new one is
//! whole.

use std::{
    fs,
    path::{Path, PathBuf},
};

use dial9_bpf_integration::{
    Attach, Build, Outcome, TestProgram, output_dir, require_root,
    segment::{files, unpacked},
};

fn convert(to: &str, file: &Path) -> Outcome {
    Attach::command(&["convert", "--to", to])
        .arg(file)
        .outcome()
}

fn record(dir: &Path, compression: &str) {
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    let tracer = Attach::to(program.pid(), dir)
        .arg("--compression")
        .arg(compression)
        .attached();
    program.wait_for_progress(100);
    tracer.interrupt().expect(0);
    assert!(program.exit().success());
}

fn only_file(dir: &Path) -> PathBuf {
    let [file] = &files(dir)[..] else {
        panic!("not one file: {:?}", files(dir))
    };
    file.clone()
}

#[test]
fn an_archive_becomes_what_dial9_reads() {
    require_root();
    let output = output_dir();
    record(output.path(), "zstd");
    let archive = output.path().join("trace.0.bin.zst");
    assert_eq!(only_file(output.path()), archive);
    let said = convert("gzip", &archive).expect(0).stdout.clone();
    let segment = output.path().join("trace.0.bin.gz");
    assert!(said.contains(segment.to_str().expect("it is text")));
    assert_eq!(only_file(output.path()), segment);
    Attach::command(&["check"])
        .arg(&segment)
        .outcome()
        .expect(0);

    let content = unpacked(&segment).expect("it is one member");
    convert("zstd", &segment).expect(0);
    convert("none", &archive).expect(0);
    let raw = output.path().join("trace.0.bin");
    assert_eq!(only_file(output.path()), raw);
    assert!(fs::read(&raw).expect("it is there") == content);
    assert!(convert("none", &raw).expect(0).stdout.contains("unchanged"));
}

#[test]
fn what_cannot_be_converted_stays() {
    require_root();
    let output = output_dir();
    let path = |name| output.path().join(name);
    for (name, content) in [("trace.0.bin.gz", "torn"), ("notes.txt", "hello")] {
        fs::write(path(name), content).expect("there is room");
        convert("none", &path(name)).expect_failure(1, &[name]);
        assert_eq!(fs::read_to_string(path(name)).expect("it stays"), content);
    }
    fs::write(path("trace.0.bin"), "another").expect("there is room");
    convert("none", &path("trace.0.bin.gz")).expect_failure(1, &["is there already"]);
}

#[test]
fn a_spool_in_use_is_left_alone() {
    require_root();
    let output = output_dir();
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    record(output.path(), "gzip");
    let tracer = Attach::to(program.pid(), output.path()).attached();
    let pid = format!("process {}", tracer.pid());
    let segment = output.path().join("trace.0.bin.gz");
    convert("zstd", &segment).expect_failure(1, &["is the spool of", &pid]);
    tracer.interrupt().expect(0);
    assert!(segment.exists());
    assert!(program.exit().success());
}
