//! Tokio that is not in the executable: in libraries that are there, come and go.
//!
//! In: programs, with a Tokio or without, that load libraries with one, each of which
//! counts for itself. Out: exact counts for each copy of Tokio, under ids of its own.
//! Never: an event of another process that has the same library; an id for two tasks.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use dial9_bpf_integration::{
    Attach, Build, Facts, TestProgram, Tracer, output_dir, require_root,
    segment::sealed_segments,
    target_dir::test_program,
    truth::{self, TrueTask},
};
use tempfile::TempDir;

/// Bits of a task's id that its Tokio counts.
const TOKIO_BITS: u32 = 45;

/// A program, its libraries, what they write and what is recorded.
struct Scene {
    dir: TempDir,
    output: TempDir,
    program: TestProgram,
}

impl Scene {
    fn of(program: &str) -> Self {
        require_root();
        Self::with(TestProgram::start(program, Build::Plain), output_dir())
    }

    fn with(program: TestProgram, dir: TempDir) -> Self {
        Self {
            dir,
            output: output_dir(),
            program,
        }
    }

    /// A file of its own with the library in it.
    fn library(&self, name: &str) -> PathBuf {
        let built = test_program("libplugin.so", Build::Plain).expect("it can be built");
        let path = self.dir.path().join(name);
        fs::copy(built, &path).expect("there is room");
        path
    }

    fn ask(&mut self, word: &str, argument: impl std::fmt::Display) {
        self.program.ask(&format!("{word} {argument}"), word);
    }

    fn load(&mut self, library: &Path) {
        self.ask("load", library.display());
    }

    fn attach(&self) -> Tracer {
        Attach::to(self.program.pid(), self.output.path()).attached()
    }

    /// What a service has counted, with the ids that it has as an object.
    fn truth(&mut self, service: usize, object: u64) -> Vec<TrueTask> {
        let path = self.dir.path().join(format!("{service}.tsv"));
        self.ask("write", format_args!("{service} {}", path.display()));
        let mut truth = truth::read(&path);
        for task in &mut truth {
            task.id |= object << TOKIO_BITS;
        }
        truth
    }

    fn facts(&self) -> Facts {
        let facts = Facts::of_dir(self.output.path());
        facts.expect_lossless().expect_at_rest();
        let segments = sealed_segments(self.output.path());
        let check = segments
            .iter()
            .fold(Attach::command(&["check"]), Attach::arg);
        check.outcome().expect(0);
        facts
    }
}

/// Paths of the objects, by number.
fn objects(facts: &Facts) -> BTreeMap<u64, PathBuf> {
    let path = |(key, value): (&String, &String)| {
        let number = key
            .strip_prefix("dial9-bpf.object.")?
            .strip_suffix(".path")?;
        Some((number.parse().expect("a number"), PathBuf::from(value)))
    };
    facts.metadata.iter().filter_map(path).collect()
}

/// Each copy of Tokio has panicked once in a work.
fn expect_panics(facts: &Facts, works: usize) {
    let texts: Vec<_> = facts.panics.iter().map(|panic| &panic.message).collect();
    assert_eq!(texts.len(), works, "{texts:?}");
    for text in texts {
        assert_eq!(text.as_deref(), Some("as it should"));
    }
}

/// With one Tokio ids are Tokio's, wherever it is.
#[test]
fn in_a_library_of_a_program_without_tokio() {
    let mut scene = Scene::of("host_std");
    let mut other = Scene::of("host_std");
    let library = scene.library("libservice.so");
    for scene in [&mut scene, &mut other] {
        scene.load(&library);
        scene.ask("begin", 0);
    }
    let tracer = scene.attach();
    scene.ask("work", 0);
    other.ask("work", 0);
    scene.ask("work", 0);
    tracer.interrupt().expect(0);
    let truth = scene.truth(0, 0);
    let facts = scene.facts();
    truth::expect_told(&truth, &facts, true);
    expect_panics(&facts, 2);
    assert_eq!(objects(&facts), BTreeMap::from([(0, library)]));
    let program = scene.program.path().display().to_string();
    assert_eq!(facts.metadata["target.exe"], program);
    assert!(facts.metadata.contains_key("tokio.version"));
    assert!(facts.metadata.contains_key("target.build_id"));
}

#[test]
fn of_a_program_and_of_two_libraries() {
    let mut scene = Scene::of("host");
    let libraries = ["libone.so", "libother.so"].map(|name| scene.library(name));
    for library in &libraries {
        scene.load(library);
    }
    for service in 0..3 {
        scene.ask("begin", service);
    }
    let tracer = scene.attach();
    for service in [0, 1, 2, 1, 0] {
        scene.ask("work", service);
    }
    tracer.interrupt().expect(0);
    let facts = scene.facts();
    let objects = objects(&facts);
    assert_eq!(objects[&0], scene.program.path());
    assert_eq!(objects.len(), 3);
    let number = |library| {
        let mut found = objects.iter().filter(|(_, path)| *path == library);
        *found.next().expect("it is an object").0
    };
    let mut truth = scene.truth(0, 0);
    for (service, library) in (1..).zip(&libraries) {
        truth.extend(scene.truth(service, number(library)));
    }
    truth::expect_told(&truth, &facts, true);
    expect_panics(&facts, 5);
    let runtimes = facts
        .metadata
        .keys()
        .filter(|key| key.starts_with("runtime."));
    assert_eq!(runtimes.count(), 3, "{:?}", facts.metadata);
}

/// Unloaded and loaded again it is another copy, which counts from 1 again.
#[test]
fn in_a_library_that_comes_goes_and_comes_again() {
    let mut scene = Scene::of("host");
    let library = scene.library("libservice.so");
    scene.ask("begin", 0);
    let mut tracer = scene.attach();
    let attached = format!("attached to {}", library.display());
    let mut truth = Vec::new();
    for object in 1..=2 {
        scene.ask("work", 0);
        scene.load(&library);
        let said = tracer.wait_until_said(&attached);
        said.unwrap_or_else(|outcome| panic!("{outcome:#?}"));
        let service = usize::try_from(object).expect("small");
        for word in ["begin", "work", "stop"] {
            scene.ask(word, service);
        }
        truth.extend(scene.truth(service, object));
        scene.ask("unload", service);
        let said = tracer.wait_until_said(&format!("unloaded: {}", library.display()));
        said.unwrap_or_else(|outcome| panic!("{outcome:#?}"));
    }
    scene.ask("work", 0);
    let outcome = tracer.interrupt();
    outcome.expect(0);
    truth.extend(scene.truth(0, 0));
    let facts = scene.facts();
    truth::expect_told(&truth, &facts, true);
    expect_panics(&facts, 5);
    let program = scene.program.path().to_owned();
    let expected = [(0, program), (1, library.clone()), (2, library.clone())];
    assert_eq!(objects(&facts), BTreeMap::from(expected));
    let rows = outcome
        .stdout
        .matches(&library.display().to_string())
        .count();
    assert_eq!(rows, 2, "{}", outcome.stdout);
}

/// What runs is recorded, and not what has taken its place on the disk.
#[test]
fn of_files_that_were_replaced() {
    require_root();
    let dir = output_dir();
    let built = test_program("host", Build::Plain).expect("it can be built");
    let service = dir.path().join("shop");
    fs::copy(built, &service).expect("there is room");
    let program = TestProgram::start_at(&service, |_| ());
    let mut scene = Scene::with(program, dir);
    let library = scene.library("libservice.so");
    scene.load(&library);
    for file in [&library, &service] {
        let new = scene.dir.path().join("new");
        fs::copy("/bin/true", &new).expect("there is room");
        fs::rename(new, file).expect("it is ours");
    }
    for service in 0..2 {
        scene.ask("begin", service);
    }
    let tracer = scene.attach();
    for service in 0..2 {
        scene.ask("work", service);
    }
    tracer.interrupt().expect(0);
    let mut truth = scene.truth(0, 0);
    truth.extend(scene.truth(1, 1));
    let facts = scene.facts();
    truth::expect_told(&truth, &facts, true);
    let expected = [(0, service.clone()), (1, library)];
    assert_eq!(objects(&facts), BTreeMap::from(expected));
    assert_eq!(facts.metadata["target.exe"], service.display().to_string());
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", scene.program.pid()));
    let is_in_unit = cgroup.expect("it runs").contains(".service");
    assert!(is_in_unit || facts.metadata["service"] == "shop");
}
