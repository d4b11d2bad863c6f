//! The load: connections that each send their share of the rate and read the
//! replies.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, BufWriter};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;
use tokio::time::{self, Instant};

/// How much load, and where.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The server.
    pub(crate) address: SocketAddr,
    /// For how long.
    pub(crate) seconds: u32,
    /// Over how many connections.
    pub(crate) connections: u32,
    /// Requests a second, of all connections together.
    pub(crate) rate: u32,
}

/// How often a connection sends what is due.
const TICK: Duration = Duration::from_millis(5);
/// How long replies may take once all requests are sent.
const GRACE: Duration = Duration::from_secs(2);

/// Sends the load and prints what came back.
pub(crate) async fn run(plan: Plan) -> io::Result<()> {
    let mut connections = JoinSet::new();
    for number in 0..plan.connections {
        connections.spawn(connection(plan, number));
    }
    let (mut sent, mut answered) = (0, 0);
    while let Some(result) = connections.join_next().await {
        let (requests, replies) = result.map_err(io::Error::other)??;
        sent += requests;
        answered += replies;
    }
    println!(
        "load: {sent} requests in {} s, {answered} answered",
        plan.seconds
    );
    Ok(())
}

async fn connection(plan: Plan, number: u32) -> io::Result<(u64, u64)> {
    let stream = TcpStream::connect(plan.address).await?;
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let reader = tokio::spawn(count_replies(read));
    let sent = send_requests(plan, number, write).await?;
    let answered = time::timeout(GRACE, reader)
        .await
        .map_or(Ok(0), |joined| joined.map_err(io::Error::other))?;
    Ok((sent, answered))
}

/// Sends until the time is over. A server that does not keep up slows it: what
/// is due is written before the next is.
async fn send_requests(plan: Plan, number: u32, write: OwnedWriteHalf) -> io::Result<u64> {
    let mut write = BufWriter::new(write);
    let start = Instant::now();
    let end = start + Duration::from_secs(u64::from(plan.seconds));
    let mut ticks = time::interval(TICK);
    let mut sent = 0_u64;
    while ticks.tick().await < end {
        while sent < due(plan, start.elapsed()) {
            let line = format!("{number}.{sent} {}\n", kind(u64::from(number) * 131 + sent));
            write.write_all(line.as_bytes()).await?;
            sent += 1;
        }
        write.flush().await?;
    }
    write.shutdown().await?;
    Ok(sent)
}

/// How many requests a connection should have sent by now.
fn due(plan: Plan, elapsed: Duration) -> u64 {
    let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    micros.saturating_mul(u64::from(plan.rate)) / (u64::from(plan.connections) * 1_000_000)
}

async fn count_replies(read: OwnedReadHalf) -> u64 {
    let mut lines = BufReader::new(read).lines();
    let mut replies = 0;
    while let Ok(Some(_)) = lines.next_line().await {
        replies += 1;
    }
    replies
}

/// The mix of requests: mostly cheap ones, one stall in four thousand.
fn kind(turn: u64) -> &'static str {
    match turn {
        turn if turn % 4000 == 777 => "stall",
        turn if turn % 100 == 5 => "file",
        turn if turn % 100 == 15 => "cancel",
        turn if turn % 40 == 11 => "hash",
        turn if turn % 10 == 3 => "fan",
        turn if turn % 10 == 6 => "chunks",
        turn if turn % 10 == 8 => "sleep",
        turn if turn % 5 == 2 => "queue",
        _ => "echo",
    }
}
