//! A proxy that fails as it is told, one request a connection.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// What becomes of a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is answered by the server.
    Pass,
    /// The connection is reset before a byte of it is read.
    Reset,
    /// Some bytes of the body go to the server, then both sides are reset.
    ResetMidBody(usize),
    /// It is never answered.
    Hang,
    /// It is answered here: status line and body.
    Answer(&'static str, &'static str),
    /// Its body goes to the server in pieces of so many bytes, one every 2 ms.
    Slow(u64),
    /// The server answers, and the answer is lost.
    LoseAnswer,
}

/// The requests to come.
#[derive(Debug)]
pub(crate) struct Plan {
    faults: VecDeque<Fault>,
    after: Fault,
    seen: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    plan: Arc<Mutex<Plan>>,
}

impl Proxy {
    /// The faults, one a request, and what becomes of all after them.
    pub(crate) fn planned(faults: impl IntoIterator<Item = Fault>, after: Fault) -> Self {
        let plan = Plan {
            faults: faults.into_iter().collect(),
            after,
            seen: 0,
        };
        Self {
            plan: Arc::new(Mutex::new(plan)),
        }
    }

    pub(crate) fn then(&self, after: &Fault) {
        let mut plan = self.plan.lock().unwrap();
        plan.faults.clear();
        plan.after = after.clone();
    }

    /// Requests so far.
    pub(crate) fn seen(&self) -> usize {
        self.plan.lock().unwrap().seen
    }

    /// Serves until the listener is dropped by the handle; requests in progress
    /// go on then.
    pub(crate) fn serve(&self, listener: TcpListener, upstream: SocketAddr) -> AbortHandle {
        let plan = Arc::clone(&self.plan);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let fault = {
                    let mut plan = plan.lock().unwrap();
                    plan.seen += 1;
                    let next = plan.faults.pop_front();
                    next.unwrap_or_else(|| plan.after.clone())
                };
                // Both sides go away at will.
                tokio::spawn(async move { request(client, upstream, fault).await.ok() });
            }
        })
        .abort_handle()
    }
}

async fn request(mut client: TcpStream, upstream: SocketAddr, fault: Fault) -> io::Result<()> {
    if matches!(fault, Fault::Reset) {
        return reset(client);
    }
    let (head, body) = read_head(&mut client).await?;
    match fault {
        Fault::Hang => {
            copy(&mut client, &mut sink()).await?;
        }
        Fault::Answer(status, text) => {
            copy(&mut (&mut client).take(body), &mut sink()).await?;
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
                text.len()
            );
            client.write_all(answer.as_bytes()).await?;
        }
        Fault::ResetMidBody(bytes) => {
            let mut server = TcpStream::connect(upstream).await?;
            server.write_all(&head).await?;
            copy(&mut (&mut client).take(bytes as u64), &mut server).await?;
            reset(server)?;
            reset(client)?;
        }
        Fault::Pass | Fault::Slow(_) | Fault::LoseAnswer | Fault::Reset => {
            let mut server = TcpStream::connect(upstream).await?;
            server.write_all(&head).await?;
            let mut left = body;
            while left > 0 {
                let piece = if let Fault::Slow(piece) = fault {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    left.min(piece)
                } else {
                    left
                };
                copy(&mut (&mut client).take(piece), &mut server).await?;
                left -= piece;
            }
            if matches!(fault, Fault::LoseAnswer) {
                copy(&mut server, &mut sink()).await?;
                return reset(client);
            }
            copy(&mut server, &mut client).await?;
        }
    }
    Ok(())
}

/// The head of a request, changed so that the server closes after its answer,
/// and the size of the body.
async fn read_head(client: &mut TcpStream) -> io::Result<(Vec<u8>, u64)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head).to_lowercase();
    let body = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .map_or(0, |length| length.trim().parse().unwrap());
    head.truncate(head.len() - 2);
    head.extend_from_slice(b"connection: close\r\n\r\n");
    Ok((head, body))
}

/// Closes so that the other side gets an error, not an end.
fn reset(stream: TcpStream) -> io::Result<()> {
    let stream = stream.into_std()?;
    let linger = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    drop(stream);
    linger.map_err(io::Error::from)
}
