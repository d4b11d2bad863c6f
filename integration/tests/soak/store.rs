//! A store that fails at random, and at times is not there.
//!
//! In: a seed. Out: a server, and a proxy before it that can be closed. Never: a
//! fault once it is calm.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Write as _,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
};

use dial9_bpf_integration::Attach;
use fastrand::Rng;
use tokio::{runtime::Runtime, task::AbortHandle};

use crate::{
    proxy::{Fault, Proxy},
    server::{BUCKET, KEY_ID, SECRET, Server},
};

/// More requests than there are.
const REQUESTS: usize = 20_000;
/// Less than a segment's size, bytes.
const PART_OF_A_BODY: usize = 500_000;
/// Bytes every 2 ms: a segment takes about a second.
const SLOW_BYTES: u64 = 4096;

pub(crate) struct Store {
    runtime: Runtime,
    server: Server,
    proxy: Proxy,
    faults: Vec<Fault>,
    address: SocketAddr,
    open: RefCell<Option<AbortHandle>>,
}

impl Store {
    pub(crate) fn start(seed: u64) -> Self {
        let runtime = Runtime::new().expect("there are threads");
        let server = runtime.block_on(Server::start());
        let mut rng = Rng::with_seed(seed);
        let faults: Vec<Fault> = std::iter::repeat_with(|| fault(&mut rng))
            .take(REQUESTS)
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let store = Self {
            runtime,
            server,
            proxy: Proxy::planned(faults.iter().cloned(), Fault::Pass),
            faults,
            address: listener.local_addr().expect("it is bound"),
            open: RefCell::default(),
        };
        store.listen(listener);
        store
    }

    fn listen(&self, listener: TcpListener) {
        listener.set_nonblocking(true).expect("it is a socket");
        let _runtime = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).expect("it listens");
        let handle = self.proxy.serve(listener, self.server.address);
        *self.open.borrow_mut() = Some(handle);
    }

    /// Connections are refused until [`Store::open`].
    pub(crate) fn close(&self) {
        if let Some(handle) = self.open.borrow_mut().take() {
            handle.abort();
        }
    }

    pub(crate) fn open(&self) {
        if self.open.borrow().is_none() {
            self.listen(TcpListener::bind(self.address).expect("nobody has it"));
        }
    }

    /// Is there, and answers.
    pub(crate) fn calm(&self) {
        self.proxy.then(&Fault::Pass);
        self.open();
    }

    /// The command, with an upload to here.
    pub(crate) fn uploading(&self, attach: Attach) -> Attach {
        attach.uploading(self.address, [BUCKET, "soak"], [KEY_ID, SECRET])
    }

    /// The file of every object, by key.
    pub(crate) fn files(&self) -> BTreeMap<String, PathBuf> {
        self.server.files()
    }

    /// What became of the requests.
    pub(crate) fn report(&self) -> String {
        let seen = self.proxy.seen();
        let mut counts = BTreeMap::new();
        for fault in self.faults.iter().take(seen) {
            *counts.entry(name(fault)).or_insert(0) += 1;
        }
        let mut text = format!("{seen} requests");
        for (name, count) in counts {
            let _ = write!(text, ", {name} {count}");
        }
        text
    }
}

/// A quarter of all requests fail, or are slow.
fn fault(rng: &mut Rng) -> Fault {
    match rng.u8(0..100) {
        0..4 => Fault::Reset,
        4..8 => Fault::ResetMidBody(rng.usize(..PART_OF_A_BODY)),
        8..12 => Fault::Answer("500 Internal Server Error", ""),
        12..16 => Fault::Answer(
            "503 Slow Down",
            "<Error><Code>SlowDown</Code><Message>later</Message></Error>",
        ),
        16..20 => Fault::Slow(SLOW_BYTES),
        20..23 => Fault::LoseAnswer,
        23 => Fault::Hang,
        _ => Fault::Pass,
    }
}

fn name(fault: &Fault) -> &str {
    match fault {
        Fault::Pass => "passed",
        Fault::Reset => "reset",
        Fault::ResetMidBody(_) => "reset in the body",
        Fault::Hang => "hung",
        Fault::Answer(status, _) => status,
        Fault::Slow(_) => "slow",
        Fault::LoseAnswer => "answer lost",
    }
}
