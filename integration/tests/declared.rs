//! Probes that files declare: what the program says it has done, and nothing else.
//!
//! In: a program that logs its calls, with their arguments and results. Out: the same
//! calls, in order, thread by thread. Never: a tolerance.

use std::{collections::BTreeMap, fs, path::Path};

use dial9_bpf_integration::{
    Attach, Build, Outcome, TestProgram,
    declared::{HitFacts, Told, hits},
    output_dir, require_root,
};

/// Calls of each of the program's two threads.
const CALLS: usize = 3000;

const PROBES: &str = r#"
provider store {
    # Of one tenant alone.
    probe get_page {
        at "testprogs::pages::get_page";
        on call uretprobe;
        let tenant: u32 = arg0;
        read tid: u32 = tid;
        read key: bytes[16] = arg1 + 8;
        read depth: i32 = *(arg1 + 24);
        read page: u64 = result;
        where tenant == 8;
    }
    # Every text, with its returns at `ret`.
    probe describe {
        at "testprogs::pages::describe";
        on call;
        read tid: u32 = tid;
        read text: str[32] = arg0, arg1;
        read length: u64 = result unit bytes;
    }
    # Those that begin so, and are not short.
    probe some {
        at "testprogs::pages::describe";
        read text: str[64] = arg0, arg1;
        let bytes: u64 = arg1;
        where text starts "page/1" && (bytes > 40 || bytes == 8);
    }
    probe depth {
        at "testprogs::pages::depth";
        on call;
        read left: u32 = arg0;
        read out: u32 = result;
    }
    probe returned {
        at "testprogs::pages::describe";
        on return;
        read length: u64 = result;
        where length >= 50;
    }
}"#;

/// A call as the program logs it.
#[derive(Debug)]
struct Call {
    tid: u64,
    words: Vec<String>,
}

/// Runs the program with these probes; returns its calls by what they are of.
fn recorded(dir: &Path, probes: &Path, more: &[&str]) -> (BTreeMap<String, Vec<Call>>, Outcome) {
    require_root();
    let log = dir.join("log");
    let mut program = TestProgram::start_with("pages", Build::Plain, |command| {
        command.arg(&log).arg(CALLS.to_string());
    });
    let mut tracer = Attach::to(program.pid(), dir)
        .arg("--signals")
        .arg("res")
        .arg("--probes")
        .arg(probes);
    for arg in more {
        tracer = tracer.arg(arg);
    }
    let tracer = tracer.attached();
    program.ask("go", "done");
    let outcome = tracer.interrupt();
    assert!(program.exit().success());
    let mut calls = BTreeMap::<String, Vec<Call>>::new();
    for line in fs::read_to_string(&log).expect("it is written").lines() {
        let mut words = line.split(' ').map(str::to_owned);
        let of = words.next().expect("a word");
        let tid = words.next().and_then(|word| word.parse().ok());
        calls.entry(of).or_default().push(Call {
            tid: tid.expect("a thread"),
            words: words.collect(),
        });
    }
    (calls, outcome)
}

fn written(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).expect("the directory is ours");
    path
}

/// What of each thread's hits is told by these fields, in order.
fn by_thread(hits: &[HitFacts], fields: &[&str]) -> BTreeMap<u64, Vec<Vec<Told>>> {
    let mut threads = BTreeMap::<_, Vec<_>>::new();
    for hit in hits {
        let told = fields.iter().map(|field| hit.fields[*field].clone());
        let tid = hit.fields["tid"].number();
        threads.entry(tid).or_default().push(told.collect());
    }
    threads
}

/// Fails at the first difference.
fn assert_same(told: &BTreeMap<u64, Vec<Vec<Told>>>, expected: &BTreeMap<u64, Vec<Vec<Told>>>) {
    assert!(told.keys().eq(expected.keys()));
    for (tid, expected) in expected {
        let told = &told[tid];
        assert_eq!(told.len(), expected.len());
        for (number, (told, expected)) in told.iter().zip(expected).enumerate() {
            assert_eq!(told, expected, "call {number} of thread {tid}");
        }
    }
}

/// The longest begin of a text of whole characters.
fn cut(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}

#[test]
fn every_call_with_its_arguments_and_its_result() {
    let dir = output_dir();
    let probes = written(dir.path(), "store.uprobes", PROBES);
    let (calls, outcome) = recorded(dir.path(), &probes, &[]);
    outcome.expect(0);
    let mut pages = BTreeMap::<u64, Vec<Vec<Told>>>::new();
    for (number, call) in calls["page"].iter().enumerate() {
        let [tenant, key, page] = &call.words[..] else {
            panic!("{call:?}")
        };
        if tenant != "8" {
            continue;
        }
        let byte = |at: usize| u8::from_str_radix(&key[at..at + 2], 16).expect("hexadecimal");
        let depth = i64::try_from(number % CALLS % 1000).expect("it is small");
        pages.entry(call.tid).or_default().push(vec![
            Told::Bytes((0..32).step_by(2).map(byte).collect()),
            Told::Signed(-depth),
            Told::Number(page.parse().expect("a number")),
        ]);
    }
    let told = hits(dir.path(), "store:get_page");
    assert_same(&by_thread(&told, &["key", "depth", "page"]), &pages);
    let mut texts = BTreeMap::<u64, Vec<Vec<Told>>>::new();
    for call in &calls["text"] {
        texts.entry(call.tid).or_default().push(vec![
            Told::Text(cut(&call.words[1], 32)),
            Told::Number(call.words[0].parse().expect("a number")),
        ]);
    }
    let told = hits(dir.path(), "store:describe");
    assert_same(&by_thread(&told, &["text", "length"]), &texts);
    let lengths = told.iter().map(|hit| hit.fields["duration_ns"].number());
    assert!(lengths.min() > Some(0));
}

#[test]
fn filters_on_texts_and_lengths_and_results() {
    let dir = output_dir();
    let probes = written(dir.path(), "store.uprobes", PROBES);
    let (calls, outcome) = recorded(dir.path(), &probes, &[]);
    outcome.expect(0);
    let counts = |text: &str| {
        let bytes = text.len();
        text.starts_with("page/1") && (bytes > 40 || bytes == 8)
    };
    let texts = calls["text"].iter().map(|call| call.words[1].clone());
    let mut expected: Vec<_> = texts
        .filter(|text| counts(text))
        .map(|text| cut(&text, 64))
        .collect();
    let told = hits(dir.path(), "store:some");
    let text = |hit: &HitFacts| match &hit.fields["text"] {
        Told::Text(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    let mut told: Vec<String> = told.iter().map(text).collect();
    expected.sort_unstable();
    told.sort_unstable();
    assert!(expected.len() > 5);
    assert_eq!(told, expected);
    let lengths = calls["text"]
        .iter()
        .map(|call| call.words[0].parse().expect("a number"));
    let mut expected: Vec<u64> = lengths.filter(|length| *length >= 50).collect();
    let told = hits(dir.path(), "store:returned");
    let mut told: Vec<u64> = told
        .iter()
        .map(|hit| hit.fields["length"].number())
        .collect();
    expected.sort_unstable();
    told.sort_unstable();
    assert!(expected.len() > 5);
    assert_eq!(told, expected);
}

#[test]
fn calls_within_calls() {
    let dir = output_dir();
    let probes = written(dir.path(), "store.uprobes", PROBES);
    let (_, outcome) = recorded(dir.path(), &probes, &[]);
    outcome.expect(0);
    let told = hits(dir.path(), "store:depth");
    let mut pairs = BTreeMap::new();
    for hit in &told {
        let pair = (hit.fields["left"].number(), hit.fields["out"].number());
        *pairs.entry(pair).or_insert(0) += 1;
    }
    let each = 2 * CALLS.div_ceil(1000);
    let expected: BTreeMap<_, _> = (0..=5).map(|left| ((left, left), each)).collect();
    assert_eq!(pairs, expected);
}

#[test]
fn functions_that_a_library_exports() {
    let dir = output_dir();
    let text = "provider libc { probe write {
        at \"write\" in \"libc.so*\";
        let fd: i32 = arg0;
        read text: str[16] = arg1, arg2;
        read length: u64 = arg2 unit bytes;
        where fd == 1;
    } }";
    let probes = written(dir.path(), "libc.uprobes", text);
    let (_, outcome) = recorded(dir.path(), &probes, &[]);
    outcome.expect(0);
    let told = hits(dir.path(), "libc:write");
    let texts: Vec<_> = told
        .iter()
        .map(|hit| (&hit.fields["text"], &hit.fields["length"]))
        .collect();
    let done = Told::Text("done\n".to_owned());
    assert_eq!(texts, [(&done, &Told::Number(5))]);
}

#[test]
fn what_is_wrong_in_a_file_is_told_where_it_stands() {
    require_root();
    let dir = output_dir();
    let file = |text: &str| written(dir.path(), "wrong.uprobes", text);
    let refused = |path: &Path, words: &[&str]| {
        let outcome = Attach::to(std::process::id(), dir.path())
            .arg("--probes")
            .arg(path)
            .outcome();
        outcome.expect_failure(2, words);
    };
    let path = file("provider p {\n    probe q { at \"f\"; read x: u63 = arg0; }\n}");
    refused(
        &path,
        &["wrong.uprobes:2:31: expected a type", "found \"u63\""],
    );
    let path = file("provider p { probe q { at \"f\"; emit alloc; } }");
    refused(&path, &["wrong.uprobes:1: p:q is to `emit alloc`"]);
    let path = file("provider p { probe q { at \"f\"; emit event \"PollStartEvent\"; } }");
    refused(&path, &["is an event of the trace itself"]);
    refused(
        &dir.path().join("none.uprobes"),
        &["none.uprobes: No such file"],
    );
    let path = written(dir.path(), "probes.txt", "");
    refused(&path, &["a probe file is called *.uprobes"]);
    let path = written(
        dir.path(),
        "notes.usdt",
        "provider p { probe q { read a: u64 = arg7; } }",
    );
    refused(&path, &["notes.usdt: a probe file is called *.uprobes"]);
}

#[test]
fn a_probe_that_is_nowhere_is_said_and_ends_nothing_unless_it_is_to() {
    let dir = output_dir();
    let text = "provider p { probe here { at \"testprogs::pages::get_page\"; } \
        probe gone { at \"pages::put_page\"; } }";
    let probes = written(dir.path(), "p.uprobes", text);
    let (calls, outcome) = recorded(dir.path(), &probes, &[]);
    let said = outcome.expect(0).stderr.join("\n");
    assert!(
        said.contains("p:gone: 0 sites; missing: \"pages::put_page\": not in"),
        "{said}"
    );
    assert_eq!(hits(dir.path(), "p:here").len(), calls["page"].len());
    let mut program = TestProgram::start_with("pages", Build::Plain, |command| {
        command.arg(dir.path().join("log"));
    });
    let strict = Attach::to(program.pid(), dir.path())
        .arg("--probes")
        .arg(&probes)
        .arg("--strict")
        .arg("--signals")
        .arg("res")
        .outcome();
    strict.expect_failure(6, &["p:gone", "pages::put_page"]);
    program.say("exit");
    assert!(program.wait().success());
}
