//! Tasks that are there before anybody looks, at rest.
//!
//! In: nothing. Out: the ends by which the work reaches them. Never: anything
//! that wakes them by itself.

use std::{
    future::{self, poll_fn},
    net::SocketAddr,
    sync::{Arc, mpsc as std_mpsc},
    task::{Poll, Waker},
    time::Duration,
};

use testprogs::count::{self, Counted, Task};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{Notify, Semaphore, broadcast, mpsc, oneshot, watch},
    task::{AbortHandle, JoinHandle},
    time,
};

/// Requests of [`Alive::asked`]: answered with the number plus one.
pub type Question = (u64, oneshot::Sender<u64>);

/// What the work needs of the tasks that were there before it.
pub struct Alive {
    pub echo: SocketAddr,
    pub sink: mpsc::Sender<u64>,
    pub asked: mpsc::UnboundedSender<Question>,
    pub notify: Arc<Notify>,
    pub permits: Arc<Semaphore>,
    pub watched: watch::Sender<u64>,
    pub broadcast: broadcast::Sender<u64>,
    /// End when their channels are dropped.
    pub readers: Vec<JoinHandle<u64>>,
    /// Ends the blocking closure that is running, and so the task behind it.
    pub unblock: std_mpsc::Sender<()>,
    pub unblocked: JoinHandle<()>,
    /// At rest for good until aborted.
    pub idle: Vec<AbortHandle>,
    /// Wakers of a task that is over.
    pub over: (Arc<Task>, Waker),
}

/// Starts them all.
pub async fn start() -> Alive {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback is there");
    let echo = listener.local_addr().expect("it is bound");
    count::spawn("accept", accept(listener));

    let (sink, items) = mpsc::channel(16);
    let (asked, questions) = mpsc::unbounded_channel();
    let notify = Arc::new(Notify::new());
    let permits = Arc::new(Semaphore::new(0));
    let (watched, versions) = watch::channel(0);
    let (broadcast, heard) = broadcast::channel(1 << 14);
    let readers = vec![
        count::spawn("sink", drain(items)),
        count::spawn("answer", answer(questions)),
        count::spawn("watch", follow(versions)),
        count::spawn("broadcast", listen(heard)),
    ];
    count::spawn("notified", heed(Arc::clone(&notify), Arc::clone(&permits)));

    let (unblock, until) = std_mpsc::channel();
    let running = count::spawn_blocking("blocking-before", move || {
        until.recv().expect("the work says when");
    });
    let unblocked = count::spawn("behind-blocking", async move {
        running.await.expect("it does not panic");
    });

    count::spawn("pending", future::pending::<()>());
    count::spawn("far-timer", time::sleep(Duration::from_secs(24 * 3600)));
    let idle = (0..20)
        .map(|_| count::spawn("idle-before", idle()).abort_handle())
        .collect();

    Alive {
        echo,
        sink,
        asked,
        notify,
        permits,
        watched,
        broadcast,
        readers,
        unblock,
        unblocked,
        idle,
        over: ended().await,
    }
}

/// A task that has ended, and a waker of it that outlives it.
async fn ended() -> (Arc<Task>, Waker) {
    let (send, waker) = oneshot::channel();
    let mut send = Some(send);
    let (joined, task) = count::spawn_metered(&Handle::current(), "over-before", |task| {
        // Past the counting waker: the wakes of this one are counted by hand.
        let mut meter = testprogs::count::Meter::new(task);
        poll_fn(move |cx| {
            meter.enter();
            if let Some(send) = send.take() {
                let _ = send.send(cx.waker().clone());
            }
            meter.leave(Poll::Ready(()))
        })
    });
    joined.await.expect("it does not panic");
    (task, waker.await.expect("it was polled"))
}

async fn idle() {
    future::pending::<()>().await;
}

async fn accept(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        count::spawn("echo-server", echo(stream));
    }
}

async fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 64];
    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
        if stream.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

async fn drain(mut items: mpsc::Receiver<u64>) -> u64 {
    let mut sum = 0;
    while let Some(item) = items.recv().await {
        sum += item;
    }
    sum
}

async fn answer(mut questions: mpsc::UnboundedReceiver<Question>) -> u64 {
    let mut answered = 0;
    while let Some((number, reply)) = questions.recv().await {
        let _ = reply.send(number + 1);
        answered += 1;
    }
    answered
}

async fn follow(mut versions: watch::Receiver<u64>) -> u64 {
    while versions.changed().await.is_ok() {}
    *versions.borrow()
}

async fn listen(mut heard: broadcast::Receiver<u64>) -> u64 {
    let mut count = 0;
    while heard.recv().await.is_ok() {
        count += 1;
    }
    count
}

/// For each notification one permit, so that none is missed.
async fn heed(notify: Arc<Notify>, permits: Arc<Semaphore>) {
    loop {
        notify.notified().await;
        permits.add_permits(1);
    }
}

/// Counts for a future that is built from its task.
pub fn spawn_knowing<F>(
    kind: &'static str,
    make: impl FnOnce(Arc<Task>) -> F,
) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    count::spawn_metered(&Handle::current(), kind, |task| {
        Counted::new(Arc::clone(&task), make(task))
    })
    .0
}
