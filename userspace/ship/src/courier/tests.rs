//! The loop on a paused clock, against a sink that does as it is told.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use dial9_bpf_trace::clock::Anchor;
use dial9_bpf_trace::metadata::Metadata;
use dial9_bpf_trace::segment::{ActiveSegment, Owner, Seal, SealedSegment};
use tempfile::TempDir;

use super::*;
use crate::convert::Encoding;
use crate::sink::{Object, PutError};
use shelved::shelved;

mod ends;
mod failures;
mod shelved;

/// What a put is answered.
#[derive(Clone, Copy, Debug)]
enum Act {
    Take,
    Answer(u16),
    NoReply,
    Hang,
    Die,
}

#[derive(Default)]
struct Script {
    acts: Mutex<VecDeque<Act>>,
    /// What follows the acts; taken when `None`.
    then: Mutex<Option<Act>>,
    /// A key that is always answered 500.
    poison: Mutex<Option<String>>,
    objects: Mutex<BTreeMap<String, Bytes>>,
    puts: AtomicUsize,
    running: AtomicUsize,
    widest: AtomicUsize,
    credentials: AtomicU64,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Script>);

impl Scripted {
    fn acting(acts: impl IntoIterator<Item = Act>) -> Self {
        let sink = Self::default();
        sink.0.acts.lock().unwrap().extend(acts);
        sink
    }

    fn always(act: Act) -> Self {
        let sink = Self::default();
        *sink.0.then.lock().unwrap() = Some(act);
        sink
    }

    /// From now on.
    fn then(&self, act: Act) {
        *self.0.then.lock().unwrap() = Some(act);
    }

    fn puts(&self) -> usize {
        self.0.puts.load(Ordering::Relaxed)
    }

    fn keys(&self) -> Vec<String> {
        self.0.objects.lock().unwrap().keys().cloned().collect()
    }
}

fn failure(status: Option<u16>) -> PutError {
    PutError {
        retryable: status.is_none_or(|status| status >= 500),
        status,
        code: None,
        source: "as told".into(),
    }
}

impl Sink for Scripted {
    async fn put(&self, object: Object) -> Result<(), PutError> {
        let script = &self.0;
        script.puts.fetch_add(1, Ordering::Relaxed);
        let running = script.running.fetch_add(1, Ordering::Relaxed) + 1;
        script.widest.fetch_max(running, Ordering::Relaxed);
        // Others get a chance to run beside.
        tokio::time::sleep(Duration::from_millis(10)).await;
        script.running.fetch_sub(1, Ordering::Relaxed);
        if script.poison.lock().unwrap().as_ref() == Some(&object.key) {
            return Err(failure(Some(500)));
        }
        let act = script.acts.lock().unwrap().pop_front();
        let act = act.or(*script.then.lock().unwrap()).unwrap_or(Act::Take);
        match act {
            Act::Take => {
                script
                    .objects
                    .lock()
                    .unwrap()
                    .insert(object.key, object.bytes);
                Ok(())
            }
            Act::Answer(status) => Err(failure(Some(status))),
            Act::NoReply => Err(failure(None)),
            Act::Hang => std::future::pending().await,
            Act::Die => panic!("as told"),
        }
    }

    async fn credentials(&self) -> Option<u64> {
        Some(self.0.credentials.load(Ordering::Relaxed))
    }
}

fn identity() -> Arc<Identity> {
    Arc::new(Identity {
        service: "s".into(),
        instance: "i".into(),
        boot_id: "abcd-1".into(),
    })
}

fn key(index: usize) -> String {
    format!(
        "p/version=1/date=1970-01-01/service=s/time=0000/instance=i/boot=abcd-1/0-{index}.bin.gz"
    )
}

fn file(dir: &TempDir, index: usize) -> PathBuf {
    dir.path().join(format!("trace.{index}.bin.gz"))
}

/// A spool with so many compressed segments of 1000 bytes.
fn spool(segments: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for index in 0..segments {
        std::fs::write(
            file(&dir, index),
            vec![u8::try_from(index % 256).unwrap(); 1000],
        )
        .unwrap();
    }
    dir
}

fn sealed(dir: &TempDir) -> SealedSegment {
    let metadata = Metadata::default();
    let active = ActiveSegment::create(
        &dir.path().into(),
        Owner::default(),
        &metadata,
        Anchor::read(),
    )
    .unwrap();
    active
        .seal(Seal {
            metadata: &metadata,
            runtimes: &[],
            losses: &[],
            undecoded: 0,
            is_complete: true,
            anchor: Anchor::read(),
        })
        .unwrap()
}

/// A loop that runs on the test's own runtime.
struct Running {
    offers: mpsc::Sender<SealedSegment>,
    stop: watch::Sender<Option<Instant>>,
    status: Status,
    is_broken: Arc<AtomicBool>,
    end: tokio::task::JoinHandle<Left>,
}

impl Running {
    fn new(
        dir: &TempDir,
        sink: &Scripted,
        change: impl FnOnce(&mut Settings, &mut Upload<Scripted>),
    ) -> Self {
        let mut settings = Settings::default();
        let mut upload = Upload::to(sink.clone(), "p", 7);
        change(&mut settings, &mut upload);
        let (offers, incoming) = mpsc::channel(settings.queue);
        let (stop, stopped) = watch::channel(None);
        let (writer, status) = status::channel();
        let inlets = line::Inlets {
            offers: incoming,
            stopped,
        };
        let spool = shelved(dir);
        let is_broken = Arc::clone(&spool.is_broken);
        let line = Line::new(settings, spool, Some(upload), writer, inlets);
        Self {
            offers,
            stop,
            status,
            is_broken,
            end: tokio::spawn(line.run()),
        }
    }

    fn plain(dir: &TempDir, sink: &Scripted) -> Self {
        Self::new(dir, sink, |_, _| {})
    }

    /// Waits for numbers, for an hour of the paused clock at most.
    async fn until(&self, is_wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
        self.status
            .wait_for(Duration::from_hours(1), is_wanted)
            .await
            .unwrap_or_else(|last| panic!("not in an hour: {last:?}"))
    }

    async fn stop(self, within: Duration) -> (Snapshot, Left) {
        self.stop.send_replace(Some(Instant::now() + within));
        drop(self.offers);
        let left = self.end.await.unwrap();
        (self.status.snapshot(), left)
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_predecessor_left_is_put_and_unlinked() {
    let (dir, sink) = (spool(5), Scripted::default());
    let running = Running::plain(&dir, &sink);
    let done = running.until(|status| status.uploaded == 5).await;
    assert_eq!(done.uploaded_bytes, 5000);
    assert_eq!(sink.keys(), (0..5).map(key).collect::<Vec<_>>());
    assert_eq!(sink.puts(), 5);
    let (_, left) = running.stop(Duration::from_secs(20)).await;
    assert_eq!(left, Left::default());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn sealed_segments_are_compressed_first() {
    let (dir, sink) = (spool(0), Scripted::default());
    let running = Running::plain(&dir, &sink);
    let segment = sealed(&dir);
    let raw = std::fs::read(&segment.path).unwrap();
    assert!(running.offers.try_send(segment).is_ok());
    running.until(|status| status.uploaded == 1).await;
    let objects = sink.0.objects.lock().unwrap().clone();
    let (key, content) = objects.first_key_value().unwrap();
    assert!(key.ends_with("-0.bin.gz"), "{key}");
    let mut unpacked = Vec::new();
    io::Read::read_to_end(
        &mut flate2::read::GzDecoder::new(&content[..]),
        &mut unpacked,
    )
    .unwrap();
    assert_eq!(unpacked, raw);
}

#[tokio::test(start_paused = true)]
async fn archives_are_of_zstd() {
    let (dir, sink) = (spool(0), Scripted::default());
    let running = Running::new(&dir, &sink, |settings, _| {
        settings.compression = Compression::Zstd;
    });
    let segment = sealed(&dir);
    let raw = std::fs::read(&segment.path).unwrap();
    assert!(running.offers.try_send(segment).is_ok());
    running.until(|status| status.uploaded == 1).await;
    let objects = sink.0.objects.lock().unwrap().clone();
    let (key, content) = objects.first_key_value().unwrap();
    assert!(key.ends_with("-0.bin.zst"), "{key}");
    assert_eq!(Encoding::of_content(content), Some(Encoding::Zstd));
    assert_eq!(zstd::decode_all(&content[..]).unwrap(), raw);
}

#[tokio::test(start_paused = true)]
async fn a_few_are_put_at_once_and_no_more() {
    let (dir, sink) = (spool(20), Scripted::default());
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 3);
    running.until(|status| status.uploaded == 20).await;
    assert_eq!(sink.0.widest.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn the_rate_holds() {
    let (dir, sink) = (spool(10), Scripted::default());
    let start = Instant::now();
    let running = Running::new(&dir, &sink, |_, upload| {
        upload.rate = NonZeroU64::new(500).map(Rate::new);
    });
    running.until(|status| status.uploaded == 10).await;
    // The last one starts when those before it have had their time.
    let taken = start.elapsed();
    assert!(taken >= Duration::from_secs(18), "{taken:?}");
    assert!(taken < Duration::from_secs(19), "{taken:?}");
}

#[test]
fn without_an_upload_it_compresses_only() {
    let dir = spool(0);
    let spool = shelved(&dir);
    let courier = Courier::start::<Scripted>(Settings::default(), spool, None).unwrap();
    for _ in 0..3 {
        assert!(courier.offer(sealed(&dir)).is_ok());
    }
    let report = courier.stop(Duration::from_secs(20));
    assert_eq!(report.status.compressed, 3);
    assert_eq!(report.left.map(|left| left.segments), Some(3));
    let kept = (0..3).filter(|&index| file(&dir, index).exists()).count();
    assert_eq!(kept, 3);
}
