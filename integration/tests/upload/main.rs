//! From a process under load to the objects of an S3 server.
//!
//! In: recordings of one-second epochs, a server in this process that is down at
//! times, tracers that are ended and killed. Out: every sealed segment once in
//! the bucket, or in the spool and said to be. Everything is on loopback.

#[path = "../../../userspace/ship/tests/s3/proxy.rs"]
#[expect(dead_code, reason = "has more than is used here")]
#[expect(clippy::unwrap_used, reason = "a test")]
mod proxy;
#[path = "../../../userspace/ship/tests/s3/server.rs"]
#[expect(dead_code, reason = "has more than is used here")]
#[expect(clippy::unwrap_used, reason = "a test")]
mod server;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
};

use dial9_bpf_integration::{
    Attach, Build, Facts, Outcome, TestProgram, output_dir, require_root,
    segment::{files, sealed_segments},
    wait,
};
use proxy::{Fault, Proxy};
use rustix::process::Signal;
use server::{BUCKET, KEY_ID, SECRET, Server};
use tokio::runtime::Runtime;

const BY_ENV: &str = "by-env";
const BY_FLAG: &str = "by-flag";

/// A server, and the address of a proxy before it.
struct Store {
    runtime: Runtime,
    server: Server,
    proxy: Proxy,
    address: SocketAddr,
}

impl Store {
    /// A store whose address refuses connections until [`Store::open`]. Then the
    /// first requests meet these faults, and the others pass.
    fn down(faults: &[Fault]) -> Self {
        let runtime = Runtime::new().expect("there are threads");
        let server = runtime.block_on(Server::start());
        let free = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = free.local_addr().expect("it is bound");
        Self {
            runtime,
            server,
            proxy: Proxy::planned(faults.iter().cloned(), Fault::Pass),
            address,
        }
    }

    fn open(&self) {
        let listener = TcpListener::bind(self.address).expect("nobody has it");
        listener.set_nonblocking(true).expect("it is a socket");
        let _runtime = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).expect("it listens");
        self.proxy.serve(listener, self.server.address);
    }

    /// Content of the objects by the segment's index; all have the prefix.
    fn segments(&self, prefix: &str) -> BTreeMap<u64, Vec<u8>> {
        let mut segments = BTreeMap::new();
        for (key, content) in self.server.objects() {
            let index = index_in(&key, prefix);
            assert!(segments.insert(index, content).is_none(), "twice: {key}");
        }
        segments
    }

    /// With the store as dial9's environment names it.
    fn attach(&self, program: &TestProgram, output: &Path) -> Attach {
        let words = ["--rotate", "1s", "--service", "shop"];
        words
            .iter()
            .fold(Attach::to(program.pid(), output), |attach, word| {
                attach.arg(*word)
            })
            .uploading(self.address, [BUCKET, BY_ENV], [KEY_ID, SECRET])
    }
}

fn index_in(key: &str, prefix: &str) -> u64 {
    let begin = format!("{prefix}/version=1/date=");
    assert!(key.starts_with(&begin), "{key}");
    assert!(key.contains("/service=shop/"), "{key}");
    let name = key
        .strip_suffix(".bin.gz")
        .and_then(|key| key.rsplit_once('-'));
    let index = name.and_then(|(_, index)| index.parse().ok());
    index.unwrap_or_else(|| panic!("{key}"))
}

fn serving() -> TestProgram {
    let mut program = TestProgram::start("serve", Build::Plain);
    program.ask("load", "loaded");
    program
}

/// Content of the compressed segments of a spool, by index.
fn compressed(spool: &Path) -> BTreeMap<u64, Vec<u8>> {
    let segment = |path: &std::path::PathBuf| {
        let name = path.file_name()?.to_str()?;
        let index = name.strip_prefix("trace.")?.strip_suffix(".bin.gz")?;
        Some((index.parse().ok()?, fs::read(path).ok()?))
    };
    files(spool).iter().filter_map(segment).collect()
}

fn wait_for_compressed(spool: &Path, count: usize) -> BTreeMap<u64, Vec<u8>> {
    wait::until("segments are compressed", || {
        Some(compressed(spool)).filter(|found| found.len() >= count)
    })
}

/// Each object is a whole segment, and they are one recording or several, each
/// without a gap or an overlap.
fn expect_whole(segments: &BTreeMap<u64, Vec<u8>>, recordings: usize) {
    let dir = output_dir();
    for (index, content) in segments {
        let path = dir.path().join(format!("trace.{index}.bin.gz"));
        fs::write(path, content).expect("there is room");
    }
    let mut seams = Vec::new();
    let mut end_ns = 0;
    for (at, segment) in sealed_segments(dir.path()).iter().enumerate() {
        assert_eq!(
            segments.keys().nth(at),
            Some(&(at as u64)),
            "one is missing"
        );
        Attach::command(&["check"]).arg(segment).outcome().expect(0);
        let facts = Facts::of(std::slice::from_ref(segment));
        if facts.first_ns != end_ns {
            seams.push(at);
        }
        end_ns = facts.last_ns;
    }
    assert_eq!(seams.len(), recordings, "{seams:?}");
}

fn expect_empty(spool: &Path) {
    let left = files(spool);
    assert!(left.is_empty(), "{left:?}");
}

#[track_caller]
fn expect_said(outcome: &Outcome, words: &[&str]) {
    let lines = outcome.stdout.lines();
    let mut lines = lines.chain(outcome.stderr.iter().map(String::as_str));
    let found = lines.any(|line| words.iter().all(|word| line.contains(word)));
    assert!(found, "no {words:?} in {outcome:#?}");
}

#[test]
fn a_store_that_is_down_at_first_has_everything_in_the_end() {
    require_root();
    // The server takes the first, and we do not hear of it.
    let (output, store) = (output_dir(), Store::down(&[Fault::LoseAnswer]));
    let program = serving();
    let destination = format!("s3://{BUCKET}/{BY_FLAG}");
    let attach = store.attach(&program, output.path()).arg("--upload");
    let tracer = attach.arg(destination).attached();
    let before = wait_for_compressed(output.path(), 2);
    assert_eq!(store.segments(BY_FLAG), BTreeMap::new());
    store.open();
    wait::until("segments are put", || {
        (store.segments(BY_FLAG).len() > before.len()).then_some(())
    });
    tracer.signal(Signal::TERM);
    let outcome = tracer.outcome();
    outcome.expect(0);
    expect_said(&outcome, &["left in the spool", "0 segments"]);
    expect_empty(output.path());
    let stored = store.segments(BY_FLAG);
    for (index, content) in &before {
        assert!(
            stored.get(index) == Some(content),
            "segment {index} differs"
        );
    }
    expect_whole(&stored, 1);
    assert!(program.exit().success());
}

#[test]
fn what_sigterm_and_kill_leave_is_put_by_the_next() {
    require_root();
    let (output, store) = (output_dir(), Store::down(&[]));
    store.proxy.then(&Fault::Hang);
    store.open();
    let program = serving();
    let ended = store.attach(&program, output.path()).attached();
    wait_for_compressed(output.path(), 1);
    ended.signal(Signal::TERM);
    let outcome = ended.outcome();
    let left = compressed(output.path()).len();
    assert!(left >= 2, "{outcome:#?}");
    outcome.expect(0);
    expect_said(
        &outcome,
        &["left in the spool", &format!("{left} segments")],
    );

    let killed = store.attach(&program, output.path()).attached();
    let waiting = wait_for_compressed(output.path(), left + 1).len();
    killed.signal(Signal::KILL);
    assert_eq!(killed.outcome().code, None);

    store.proxy.then(&Fault::Pass);
    let last = store.attach(&program, output.path()).attached();
    wait::until("segments are put", || {
        (store.segments(BY_ENV).len() > waiting).then_some(())
    });
    let outcome = last.interrupt();
    outcome.expect(0);
    expect_said(&outcome, &["spool: recovered 1", "discarded 0"]);
    expect_empty(output.path());
    expect_whole(&store.segments(BY_ENV), 3);
    assert!(program.exit().success());
}
