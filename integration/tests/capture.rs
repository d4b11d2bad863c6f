//! Captures: the calls of one tenant, for a while, within a budget, and nothing else.
//!
//! In: a program that logs its calls. Out: the same calls, in order, thread by thread.
//! Never: more bytes than were asked for; a trace of us in the program before or after.

use std::{
    fs,
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use dial9_bpf_integration::{
    Attach, Build, Outcome, TestProgram, Tracer,
    declared::{HitFacts, Told, hits_of},
    output_dir, require_root,
};

/// Calls of each of the program's two threads.
const CALLS: usize = 30_000;
/// Of three tenants.
const OF_ONE: usize = 2 * CALLS / 3;

const PROBES: &str = r#"
provider store {
    probe get_page {
        at "testprogs::pages::get_page";
        on call uretprobe;
        let tenant: u32 = arg0;
        read tid: u32 = tid;
        read key: bytes[16] = arg1 + 8;
    }
    probe key_only {
        at "testprogs::pages::get_page";
        on call uretprobe;
        let tenant: u32 = arg0;
        read key: bytes[16] = arg1 + 8;
        where tenant == 7;
    }
}"#;

struct Captured {
    program: TestProgram,
    dir: tempfile::TempDir,
}

impl Captured {
    fn begin() -> Self {
        require_root();
        let dir = output_dir();
        fs::write(dir.path().join("p.uprobes"), PROBES).expect("the directory is ours");
        let program = TestProgram::start_with("pages", Build::Plain, |command| {
            command.arg(dir.path().join("log")).arg(CALLS.to_string());
        });
        Self { program, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn capture(&self, file: &str, options: &[&str]) -> Attach {
        let pid = self.program.pid().to_string();
        let mut capture = Attach::command(&["capture", "--pid", &pid, "--probes"])
            .arg(self.path("p.uprobes"))
            .arg("-o")
            .arg(self.path(file));
        for option in options {
            capture = capture.arg(option);
        }
        capture
    }

    /// Has the program make its calls meanwhile.
    fn record(&mut self, file: &str, options: &[&str]) -> Outcome {
        let tracer: Tracer = self.capture(file, options).attached();
        self.program.ask("go", "done");
        tracer.interrupt()
    }

    /// Keys that the log has of a tenant, by thread, in order.
    fn keys(&self, tenant: &str) -> Vec<(u64, String)> {
        let log = fs::read_to_string(self.path("log")).expect("it is written");
        let pages = log.lines().filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let is_its = words[0] == "page" && words[2] == tenant;
            is_its.then(|| (words[1].parse().expect("a thread"), words[3].to_owned()))
        });
        pages.collect()
    }
}

fn key_of(hit: &HitFacts) -> String {
    match &hit.fields["key"] {
        Told::Bytes(bytes) => bytes
            .iter()
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}")),
        other => panic!("{other:?}"),
    }
}

/// The code of the program, as it is in its memory.
fn code(pid: u32) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let line = maps
        .lines()
        .find(|line| line.contains(" r-xp "))
        .expect("it has code");
    let (start, end) = line
        .split(' ')
        .next()
        .and_then(|range| range.split_once('-'))
        .expect("a range");
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).expect("hexadecimal"));
    let mut code = vec![0; usize::try_from(end - start).expect("it is small")];
    let memory = File::open(format!("/proc/{pid}/mem")).expect("we are root");
    memory
        .read_exact_at(&mut code, start)
        .expect("it is mapped");
    code
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).expect("it is written").len()
}

#[test]
fn exactly_the_calls_of_one_tenant_in_order() {
    let mut captured = Captured::begin();
    let before = code(captured.program.pid());
    let outcome = captured.record("all.bin", &["--seconds=60", "--where", "tenant == 8"]);
    let said = outcome.expect(0).stdout.clone();
    assert!(
        code(captured.program.pid()) == before,
        "the code is as it was"
    );
    let file = captured.path("all.bin");
    let told: Vec<HitFacts> = hits_of(std::slice::from_ref(&file), "store:get_page");
    let mut by_thread: Vec<(u64, String)> = Vec::new();
    for hit in &told {
        by_thread.push((hit.fields["tid"].number(), key_of(hit)));
    }
    let mut expected = captured.keys("8");
    // Each thread's own order is kept by both.
    by_thread.sort_by_key(|(tid, _)| *tid);
    expected.sort_by_key(|(tid, _)| *tid);
    assert_eq!(expected.len(), OF_ONE);
    assert!(
        by_thread == expected,
        "{} of {}",
        by_thread.len(),
        expected.len()
    );
    // The second probe has a filter of its own besides: no tenant is both.
    assert!(hits_of(&[file], "store:key_only").is_empty());
    assert!(said.contains("store:get_page: 60,000 hits"), "{said}");
}

#[test]
fn a_key_a_time_and_a_duration_take_32_bytes() {
    let mut captured = Captured::begin();
    captured
        .record("keys.bin", &["--seconds=60", "--where", "tenant == 7"])
        .expect(0);
    let file = captured.path("keys.bin");
    let hits = hits_of(std::slice::from_ref(&file), "store:key_only").len()
        + hits_of(&[file], "store:get_page").len();
    assert_eq!(hits, 2 * OF_ONE);
    // With those of the other probe, which have a thread besides.
    let a_hit = size(&captured.path("keys.bin")) / hits as u64;
    assert!(a_hit <= 32, "{a_hit} bytes");
}

#[test]
fn a_budget_is_kept_and_what_is_left_out_is_said() {
    const BUDGET: u64 = 200 << 10;
    for keep in ["oldest", "newest"] {
        let mut captured = Captured::begin();
        let keep_option = format!("--keep={keep}");
        let options = [
            "--seconds=60",
            "--max-bytes=200KiB",
            &keep_option,
            "--where=tenant == 9",
        ];
        let outcome = captured.record("some.bin", &options);
        let said = outcome.expect(0).stdout.clone();
        let file = captured.path("some.bin");
        assert!(size(&file) <= BUDGET, "{keep}: {}", size(&file));
        let told = hits_of(&[file], "store:get_page");
        let expected = captured.keys("9");
        assert!(
            told.len() < expected.len() && told.len() > 1000,
            "{keep}: {}",
            told.len()
        );
        assert!(
            said.contains("left out to keep 200.0 KiB"),
            "{keep}: {said}"
        );
        // Of each thread it is the first calls, or the last.
        let tids = |tid: &u64| {
            let of = |keys: &[(u64, String)]| -> Vec<String> {
                let of = keys.iter().filter(|(of, _)| of == tid);
                of.map(|(_, key)| key.clone()).collect()
            };
            let all: Vec<_> = told
                .iter()
                .map(|hit| (hit.fields["tid"].number(), key_of(hit)))
                .collect();
            let (told, expected) = (of(&all), of(&expected));
            let is_part = if keep == "oldest" {
                expected.starts_with(&told)
            } else {
                expected.ends_with(&told)
            };
            assert!(is_part, "{keep}: {} of {}", told.len(), expected.len());
        };
        let mut threads: Vec<u64> = expected.iter().map(|(tid, _)| *tid).collect();
        threads.sort_unstable();
        threads.dedup();
        threads.iter().for_each(tids);
    }
}

#[test]
fn what_is_wrong_is_said() {
    let captured = Captured::begin();
    let refused = captured
        .capture("x.bin", &["--seconds=1", "--where=tenent == 8"])
        .outcome();
    refused.expect_failure(2, &["--where:1:1: no value \"tenent\""]);
    let nowhere = captured.capture("none/x.bin", &["--seconds=1"]).outcome();
    nowhere.expect_failure(1, &["none"]);
}
