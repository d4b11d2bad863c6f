//! What requests do. Each function is the future of one task type.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time;

use crate::background::{Job, Shared};

/// Where a request's reply goes; a reader that is gone is no concern of ours.
type Replies = mpsc::Sender<String>;

/// Replies at once.
pub(crate) async fn echo(id: String, replies: Replies) {
    let _ = replies.send(format!("{id} echo")).await;
}

/// Waits for a timer.
pub(crate) async fn sleep(id: String, replies: Replies) {
    time::sleep(Duration::from_millis(2)).await;
    let _ = replies.send(format!("{id} slept")).await;
}

/// The bug to find: blocks its worker for 20 to 80 ms inside a poll.
pub(crate) async fn stall(id: String, replies: Replies) {
    let millis = 20 + digest(id.as_bytes(), 1) % 61;
    std::thread::sleep(Duration::from_millis(millis));
    let _ = replies.send(format!("{id} stalled {millis} ms")).await;
}

/// Computes on the blocking pool.
pub(crate) async fn hash(id: String, replies: Replies) {
    let bytes = id.clone().into_bytes();
    let sum = tokio::task::spawn_blocking(move || digest(&bytes, 2000)).await;
    let _ = replies
        .send(format!("{id} hash {:x}", sum.unwrap_or_default()))
        .await;
}

/// Reads a small file through the blocking pool.
pub(crate) async fn file(id: String, replies: Replies) {
    let bytes = tokio::fs::read("/proc/self/stat").await.unwrap_or_default();
    let _ = replies
        .send(format!("{id} file {} bytes", bytes.len()))
        .await;
}

/// Divides its work among tasks and collects their results.
pub(crate) async fn fan_out(id: String, replies: Replies) {
    let mut parts = JoinSet::new();
    for part in 0..4 {
        parts.spawn(fan_out_part(part));
    }
    let mut sum = 0_u64;
    while let Some(result) = parts.join_next().await {
        sum = sum.wrapping_add(result.unwrap_or_default());
    }
    let _ = replies.send(format!("{id} fan {sum:x}")).await;
}

async fn fan_out_part(part: u8) -> u64 {
    tokio::task::yield_now().await;
    digest(&[part], 50)
}

/// A long computation that yields between its parts.
pub(crate) async fn chunks(id: String, replies: Replies) {
    let mut sum = 0_u64;
    for chunk in 0..5 {
        sum = sum.wrapping_add(digest(&[chunk], 200));
        tokio::task::yield_now().await;
    }
    let _ = replies.send(format!("{id} chunks {sum:x}")).await;
}

/// Starts a task that never ends and aborts it.
pub(crate) async fn cancel(id: String, replies: Replies) {
    let endless = tokio::spawn(std::future::pending::<()>());
    tokio::task::yield_now().await;
    endless.abort();
    let cancelled = endless.await.is_err_and(|error| error.is_cancelled());
    let _ = replies.send(format!("{id} cancelled {cancelled}")).await;
}

/// Hands a job to a worker task and waits for its answer.
pub(crate) async fn queue(id: String, replies: Replies, shared: Arc<Shared>) {
    let (done, answer) = oneshot::channel();
    shared.submit(Job {
        input: id.clone().into_bytes(),
        done,
    });
    let answer = time::timeout(Duration::from_secs(1), answer).await;
    let result = answer.ok().and_then(Result::ok).unwrap_or_default();
    let _ = replies.send(format!("{id} queue {result:x}")).await;
}

/// A number that takes `rounds` rounds to find.
pub(crate) fn digest(bytes: &[u8], rounds: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    for round in 0..rounds {
        hasher.write_u32(round);
        hasher.write(bytes);
    }
    hasher.finish()
}
