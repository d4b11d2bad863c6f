//! A spool, a courier, a proxy and a server.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dial9_bpf_ship::convert::{Encoding, head_of_archive};
use dial9_bpf_ship::courier::{
    Courier, Left, Parcel, Report, Settings, Snapshot, Spool, Status, Upload,
};
use dial9_bpf_ship::identity::Identity;
use dial9_bpf_ship::retry::RetryPolicy;
use dial9_bpf_ship::sink::{StoreOptions, StoreSink};
use dial9_bpf_trace::clock::Anchor;
use dial9_bpf_trace::metadata::Metadata;
use dial9_bpf_trace::segment::{
    ActiveSegment, CompressedSegment, Owner, Seal, SealedSegment, SegmentError,
};
use dial9_bpf_trace::spool::{self, Segment};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::proxy::Proxy;
use crate::server::{BUCKET, KEY_ID, SECRET, Server};

/// Longer than anything here takes.
pub(crate) const TIME: Duration = Duration::from_secs(30);

/// The spool of the recorder, for the courier.
struct Recorded {
    spool: spool::Spool,
    identity: Arc<Identity>,
}

impl Spool for Recorded {
    type Offer = SealedSegment;

    fn admit(&mut self, offer: SealedSegment) -> Result<(), SegmentError> {
        self.spool.admit(offer)
    }

    fn claim(&mut self, is_wanted: &dyn Fn(&Segment) -> bool) -> Option<Parcel> {
        let found = self.spool.claim(is_wanted);
        found.map(|segment| Parcel {
            segment,
            identity: Arc::clone(&self.identity),
        })
    }

    fn compressed(&mut self, segment: CompressedSegment) -> Result<(), SegmentError> {
        self.spool.compressed(segment);
        Ok(())
    }

    fn begin_put(&mut self, index: u64) -> Result<(), SegmentError> {
        self.spool.begin_put(index)
    }

    fn deliver(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.spool.deliver(&segment)
    }

    fn put_back(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.spool.put_back(segment)
    }

    fn refuse(&mut self, segment: Segment) -> Result<(), SegmentError> {
        self.spool.refuse(segment)
    }

    fn release_refused(&mut self) {
        self.spool.release_refused();
    }

    fn left(&self) -> Left {
        Left {
            segments: self.spool.len() as u64,
            bytes: self.spool.bytes(),
        }
    }
}

/// A server that a rig can have.
pub(crate) trait Served {
    fn start(runtime: &Runtime) -> Self;
    fn address(&self) -> SocketAddr;
    /// Content of every object of the bucket, by key.
    fn objects(&self) -> BTreeMap<String, Vec<u8>>;
    /// What is kept of each object beside its bytes.
    fn attributes(&self) -> Vec<String>;
}

impl Served for Server {
    fn start(runtime: &Runtime) -> Self {
        runtime.block_on(Self::start())
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.objects()
    }

    fn attributes(&self) -> Vec<String> {
        self.attributes()
    }
}

/// What a test has.
pub(crate) struct Rig<S = Server> {
    runtime: Runtime,
    pub(crate) server: S,
    pub(crate) proxy: Proxy,
    dir: TempDir,
    /// Content of the sealed segments by index.
    sealed: BTreeMap<u64, Vec<u8>>,
    address: SocketAddr,
    secret: &'static str,
}

impl<S: Served> Rig<S> {
    pub(crate) fn new(proxy: Proxy) -> Self {
        let (rig, listener) = Self::with_address(proxy);
        rig.serve(listener);
        rig
    }

    /// Nobody listens at the proxy's address until [`Rig::listen`].
    pub(crate) fn without_listener(proxy: Proxy) -> Self {
        Self::with_address(proxy).0
    }

    pub(crate) fn listen(&self) {
        self.serve(std::net::TcpListener::bind(self.address).unwrap());
    }

    fn serve(&self, listener: std::net::TcpListener) {
        listener.set_nonblocking(true).unwrap();
        let _runtime = self.runtime.enter();
        let listener = TcpListener::from_std(listener).unwrap();
        self.proxy.serve(listener, self.server.address());
    }

    fn with_address(proxy: Proxy) -> (Self, std::net::TcpListener) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let server = S::start(&runtime);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let rig = Self {
            runtime,
            server,
            proxy,
            dir: tempfile::tempdir().unwrap(),
            sealed: BTreeMap::new(),
            address: listener.local_addr().unwrap(),
            secret: SECRET,
        };
        (rig, listener)
    }

    pub(crate) fn with_secret(mut self, secret: &'static str) -> Self {
        self.secret = secret;
        self
    }

    /// A sealed segment with content of its own.
    pub(crate) fn seal(&mut self) -> SealedSegment {
        let metadata = Metadata::default();
        let dir = self.dir.path();
        let mut active =
            ActiveSegment::create(&dir.into(), Owner::default(), &metadata, Anchor::read())
                .unwrap();
        let mut state = self.sealed.len() as u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_be_bytes()[0]
        })
        .take(6000)
        .collect();
        active.write_batch(&noise).unwrap();
        let sealed = active
            .seal(Seal {
                metadata: &metadata,
                runtimes: &[],
                losses: &[],
                undecoded: 0,
                is_complete: true,
                anchor: Anchor::read(),
            })
            .unwrap();
        let content = std::fs::read(&sealed.path).unwrap();
        self.sealed.insert(sealed.index, content);
        sealed
    }

    /// A courier that is quick to try again.
    pub(crate) fn start(&self) -> Courier<SealedSegment> {
        let options = StoreOptions {
            endpoint: Some(format!("http://{}", self.address)),
            attempt_timeout: Duration::from_millis(500),
            ..StoreOptions::default()
        };
        let env = [
            ("AWS_ACCESS_KEY_ID", KEY_ID),
            ("AWS_SECRET_ACCESS_KEY", self.secret),
            ("AWS_REGION", "us-east-1"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let destination = format!("s3://{BUCKET}/traces").parse().unwrap();
        let mut upload = Upload::to(
            StoreSink::open(&destination, &options, env).unwrap(),
            destination.prefix(),
            1,
        );
        upload.retry = RetryPolicy {
            first: Duration::from_millis(5),
            longest: Duration::from_millis(50),
            refused: Duration::from_millis(200),
            seed: 1,
        };
        let (spool, _) =
            spool::Spool::open(self.dir.path(), Owner::default(), u64::MAX, head_of_archive)
                .unwrap();
        let recorded = Recorded {
            spool,
            identity: Arc::new(Identity {
                service: "check out/é".to_owned(),
                instance: "node:1".to_owned(),
                boot_id: "abcd-7".to_owned(),
            }),
        };
        Courier::start(Settings::default(), recorded, Some(upload)).unwrap()
    }

    /// Seals and offers so many, to a courier that starts with the first.
    pub(crate) fn ship(&mut self, segments: usize) -> Courier<SealedSegment> {
        let courier = self.start();
        for _ in 0..segments {
            let mut offer = self.seal();
            while let Err(returned) = courier.offer(offer) {
                std::thread::yield_now();
                offer = returned;
            }
        }
        courier
    }

    /// Waits until everything is in the store.
    pub(crate) fn wait_for_all(&self, courier: &Courier<SealedSegment>) -> Snapshot {
        let all = self.sealed.len() as u64;
        wait(&courier.status(), |status| status.uploaded >= all)
    }

    /// Ends the courier, and checks that everything is where it says.
    pub(crate) fn check(&self, courier: Courier<SealedSegment>, within: Duration) -> Report {
        let report = courier.stop(within);
        let left = report.left.expect("it has died");
        let objects = self.server.objects();
        let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (key, bytes) in &objects {
            assert!(
                key.starts_with("traces/version=1/date=")
                    && key.contains("/service=check out%2Fé/"),
                "{key}"
            );
            let index = key
                .rsplit_once('-')
                .and_then(|(_, index)| index.strip_suffix(".bin.gz"))
                .and_then(|index| index.parse().ok())
                .unwrap_or_else(|| panic!("{key}"));
            let mut content = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..])
                .read_to_end(&mut content)
                .unwrap();
            assert!(found.insert(index, content).is_none(), "twice: {key}");
        }
        for (index, content) in &self.sealed {
            let is_in_spool = ["bin", "bin.gz"]
                .map(|end| self.dir.path().join(format!("trace.{index}.{end}")))
                .iter()
                .any(|path| path.exists());
            match found.get(index) {
                Some(stored) => assert!(stored == content, "segment {index} differs"),
                None => assert!(is_in_spool, "segment {index} is lost"),
            }
        }
        let in_spool = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| Encoding::of_name(name.as_ref()).is_some())
            .count();
        assert_eq!(left.segments, in_spool as u64);
        assert_eq!(
            report.status.uploaded + left.segments,
            self.sealed.len() as u64
        );
        report
    }
}

/// Waits for numbers; they are not as wanted only when the time is over.
pub(crate) fn wait(status: &Status, is_wanted: impl Fn(&Snapshot) -> bool + Copy) -> Snapshot {
    let last = status.wait(TIME, is_wanted);
    assert!(is_wanted(&last), "{last:?}");
    last
}
