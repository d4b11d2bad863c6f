//! The server: an accept loop, and for each connection a reader, a writer and a
//! task for each request.
//!
//! Requests and replies are lines: `ID KIND` and `ID RESULT`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time;

use crate::background::{self, Shared};
use crate::work;

/// Serves until SIGINT or SIGTERM, and no longer than `lifetime`.
pub(crate) async fn run(lifetime: Duration) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let shared = background::start();
    let accepting = tokio::spawn(accept(listener, shared));
    println!("listening {address} pid {}", std::process::id());

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = time::sleep(lifetime) => {}
    }
    accepting.abort();
    Ok(())
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(stream, Arc::clone(&shared)));
    }
}

/// Reads requests and starts a task for each.
async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    // A connection that ends in an error is one that ends.
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let (replies, queue) = mpsc::channel(64);
    let writer = tokio::spawn(write_replies(write, queue));
    let _ = read_requests(read, &replies, &shared).await;
    drop(replies);
    let _ = writer.await;
}

async fn read_requests(
    read: OwnedReadHalf,
    replies: &mpsc::Sender<String>,
    shared: &Arc<Shared>,
) -> io::Result<()> {
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        shared.count_request();
        start(&line, replies.clone(), shared);
    }
    Ok(())
}

async fn write_replies(mut write: OwnedWriteHalf, mut queue: mpsc::Receiver<String>) {
    while let Some(mut reply) = queue.recv().await {
        reply.push('\n');
        if write.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Every kind of request is a task type of its own.
fn start(line: &str, replies: mpsc::Sender<String>, shared: &Arc<Shared>) {
    let (id, kind) = line.split_once(' ').unwrap_or((line, "echo"));
    let id = id.to_owned();
    match kind {
        "sleep" => drop(tokio::spawn(work::sleep(id, replies))),
        "stall" => drop(tokio::spawn(work::stall(id, replies))),
        "hash" => drop(tokio::spawn(work::hash(id, replies))),
        "file" => drop(tokio::spawn(work::file(id, replies))),
        "fan" => drop(tokio::spawn(work::fan_out(id, replies))),
        "chunks" => drop(tokio::spawn(work::chunks(id, replies))),
        "cancel" => drop(tokio::spawn(work::cancel(id, replies))),
        "queue" => drop(tokio::spawn(work::queue(id, replies, Arc::clone(shared)))),
        _ => drop(tokio::spawn(work::echo(id, replies))),
    }
}
