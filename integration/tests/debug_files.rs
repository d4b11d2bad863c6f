//! A stripped program and its debug file.
//!
//! In: programs that `objcopy` has taken the symbols out of, and theirs. Out: what is found
//! is what the whole program gives, wherever the file lies. Never: a file of another
//! program that is taken for it (README: exit code 2).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use dial9_bpf_attach::{DebugFile, scan};
use dial9_bpf_integration::{
    Attach, Build, TestProgram, driven::scanned, output_dir, require_root, target_dir::test_program,
};
use dial9_bpf_probes::plan::Plan;
use tempfile::TempDir;

/// A program without symbols, and its debug file elsewhere.
struct Parted {
    dir: TempDir,
    program: PathBuf,
    debug_file: PathBuf,
}

impl Parted {
    /// `serve`, parted.
    fn of(build: Build) -> Self {
        let whole = test_program("serve", build).expect("it can be built");
        let dir = output_dir();
        let program = dir.path().join("serve");
        let debug_file = dir.path().join("elsewhere").join("serve.dbg");
        fs::create_dir(dir.path().join("elsewhere")).expect("there is room");
        objcopy(&["--only-keep-debug"], &[&whole, &debug_file]);
        objcopy(&["--strip-all"], &[&whole, &program]);
        Self {
            dir,
            program,
            debug_file,
        }
    }

    /// Says in the program what its debug file is called, and removes what says its build.
    fn link(&self) {
        let link = format!("--add-gnu-debuglink={}", self.debug_file.display());
        let options = ["--remove-section=.note.gnu.build-id", &link];
        objcopy(&options, &[&self.program]);
    }

    fn start(&self) -> TestProgram {
        TestProgram::start_at(&self.program, |_| ())
    }
}

fn objcopy(options: &[&str], files: &[&Path]) {
    let mut objcopy = Command::new("objcopy");
    let status = objcopy.args(options).args(files).status();
    assert!(status.expect("there is objcopy").success(), "{objcopy:?}");
}

/// What is found of a program by itself, and with its debug file.
fn plans(program: &TestProgram) -> (Plan, Option<Plan>) {
    let (target, [alone]) = scanned(program.pid());
    let parts = target.read_executable().expect("readable");
    let debug_file = DebugFile::find(&target, &parts);
    let plan = debug_file.map(|file| scan(&parts, Some(&file)).expect("it is Tokio's"));
    (alone.plan().clone(), plan)
}

#[test]
fn a_linked_file_beside_the_program_gives_what_the_whole_program_gives() {
    require_root();
    let whole = TestProgram::start("serve", Build::Plain);
    let (expected, _) = plans(&whole);
    assert!(expected.has_symbols);
    let parted = Parted::of(Build::Plain);
    parted.link();
    let (alone, without) = plans(&parted.start());
    assert!(!alone.has_symbols && without.is_none());
    assert_ne!(alone.sites, expected.sites);
    let name = parted.debug_file.file_name().expect("it has a name");
    for folder in [".debug", "."] {
        let folder = parted.dir.path().join(folder);
        fs::create_dir_all(&folder).expect("there is room");
        fs::copy(&parted.debug_file, folder.join(name)).expect("there is room");
        let (_, found) = plans(&parted.start());
        let found = found.expect("it is beside the program");
        assert_eq!(found.sites, expected.sites);
        assert_eq!(found.vtables, expected.vtables);
        assert_eq!(found.misses, expected.misses);
        fs::remove_file(folder.join(name)).expect("it is ours");
    }
}

#[test]
fn a_linked_file_with_another_checksum_is_not_taken() {
    require_root();
    let parted = Parted::of(Build::Plain);
    parted.link();
    let beside = parted.dir.path().join(".debug");
    fs::create_dir(&beside).expect("there is room");
    let mut bytes = fs::read(&parted.debug_file).expect("readable");
    bytes.push(0);
    fs::write(beside.join("serve.dbg"), bytes).expect("there is room");
    let (_, found) = plans(&parted.start());
    assert_eq!(found, None);
}

#[test]
fn a_file_that_is_asked_for_has_to_be_the_programs() {
    require_root();
    let parted = Parted::of(Build::Plain);
    let program = parted.start();
    let output = output_dir();
    let with = |path: &Path| {
        let attach = Attach::to(program.pid(), output.path()).arg("--dry-run");
        attach.arg("--debug-file").arg(path).outcome()
    };
    let other = test_program("truth", Build::Plain).expect("it can be built");
    with(&other).expect_failure(2, &["truth", "its build id is", "the program's"]);
    let absent = output.path().join("absent");
    with(&absent).expect_failure(2, &["absent", "No such file"]);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    with(&manifest).expect_failure(2, &["neither symbols nor debug information"]);
    let right = with(&parted.debug_file);
    right.expect(0);
    assert!(right.stdout.contains("with symbols"), "{right:#?}");
    assert!(program.exit().success());
}

/// Without optimization cargo leaves the debug information in.
#[test]
fn a_debug_file_names_every_task_type() {
    require_root();
    let parted = Parted::of(Build::Unoptimized);
    let program = parted.start();
    let output = output_dir();
    let attach = || Attach::to(program.pid(), output.path()).arg("--dry-run");
    let alone = attach().outcome();
    alone.expect(0);
    assert!(alone.stdout.contains("task-types"), "{alone:#?}");
    let found = attach()
        .arg("--debug-file")
        .arg(&parted.debug_file)
        .outcome();
    found.expect(0);
    assert!(found.stdout.contains("with symbols"), "{found:#?}");
    assert!(!found.stdout.contains("task-types"), "{found:#?}");
    assert!(program.exit().success());
}
