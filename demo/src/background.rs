//! What the server does beside requests: a queue with its worker, periodic
//! tasks, and tasks that talk to each other through Tokio's channels.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::time;

use crate::work::digest;

/// A job for the queue's worker.
pub(crate) struct Job {
    /// What to compute on.
    pub(crate) input: Vec<u8>,
    /// Where the result goes.
    pub(crate) done: oneshot::Sender<u64>,
}

/// What connections and background tasks have in common.
pub(crate) struct Shared {
    requests: AtomicU64,
    jobs: mpsc::UnboundedSender<Job>,
    cache: Mutex<HashMap<u64, Instant>>,
    pages: Semaphore,
}

impl Shared {
    /// Counts one request.
    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Hands a job to the worker; a job that finds no worker is dropped, and its
    /// sender with it.
    pub(crate) fn submit(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}

/// Starts the background tasks, which run as long as the runtime does.
pub(crate) fn start() -> Arc<Shared> {
    let (jobs, queue) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        requests: AtomicU64::new(0),
        jobs,
        cache: Mutex::new(HashMap::new()),
        pages: Semaphore::new(2),
    });
    let (events, _) = broadcast::channel(16);
    let (rate, rates) = watch::channel(0);
    let signals = Arc::new((Notify::new(), Notify::new()));

    tokio::spawn(worker(queue, Arc::clone(&shared)));
    tokio::spawn(measure_rate(Arc::clone(&shared), rate));
    tokio::spawn(watch_rate(rates));
    tokio::spawn(expire_cache(Arc::clone(&shared)));
    tokio::spawn(subscribe(events.subscribe()));
    tokio::spawn(publish(events));
    tokio::spawn(ping(Arc::clone(&signals)));
    tokio::spawn(pong(signals));
    tokio::spawn(flush(Arc::clone(&shared)));
    shared
}

async fn worker(mut queue: mpsc::UnboundedReceiver<Job>, shared: Arc<Shared>) {
    while let Some(Job { input, done }) = queue.recv().await {
        let result = digest(&input, 20);
        shared.cache.lock().await.insert(result, Instant::now());
        // The request may have timed out.
        let _ = done.send(result);
    }
}

async fn measure_rate(shared: Arc<Shared>, rate: watch::Sender<u64>) {
    let mut ticks = time::interval(Duration::from_millis(50));
    let mut before = 0;
    loop {
        ticks.tick().await;
        let now = shared.requests.load(Ordering::Relaxed);
        if rate.send((now - before) * 20).is_err() {
            return;
        }
        before = now;
    }
}

async fn watch_rate(mut rates: watch::Receiver<u64>) {
    let mut highest = 0;
    while rates.changed().await.is_ok() {
        highest = highest.max(*rates.borrow_and_update());
    }
}

async fn expire_cache(shared: Arc<Shared>) {
    let mut ticks = time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        let mut cache = shared.cache.lock().await;
        cache.retain(|_, added| added.elapsed() < Duration::from_secs(1));
    }
}

async fn publish(events: broadcast::Sender<u64>) {
    let mut ticks = time::interval(Duration::from_millis(10));
    for number in 0.. {
        ticks.tick().await;
        if events.send(number).is_err() {
            return;
        }
    }
}

async fn subscribe(mut events: broadcast::Receiver<u64>) {
    while !matches!(
        events.recv().await,
        Err(broadcast::error::RecvError::Closed)
    ) {}
}

async fn ping(signals: Arc<(Notify, Notify)>) {
    loop {
        time::sleep(Duration::from_millis(5)).await;
        signals.0.notify_one();
        signals.1.notified().await;
    }
}

async fn pong(signals: Arc<(Notify, Notify)>) {
    loop {
        signals.0.notified().await;
        signals.1.notify_one();
    }
}

/// Writes pages, at most two at a time.
async fn flush(shared: Arc<Shared>) {
    let mut ticks = time::interval(Duration::from_millis(25));
    loop {
        ticks.tick().await;
        for _ in 0..3 {
            tokio::spawn(flush_page(Arc::clone(&shared)));
        }
    }
}

async fn flush_page(shared: Arc<Shared>) {
    if let Ok(_permit) = shared.pages.acquire().await {
        time::sleep(Duration::from_millis(3)).await;
    }
}
