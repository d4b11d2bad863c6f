//! A Tokio server on loopback with its own clients, for as long as it is told.
//!
//! Words: `load` and `rest` start and stop the clients, `count` asks how many
//! requests were answered, `hold` makes a task stay inside one poll and
//! `release` ends that poll, `exit` ends the program. Each is answered by a
//! line. Between `resting` and the next word nothing is polled.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
};

use testprogs::{quiet, script};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime, spawn,
    sync::{mpsc as async_mpsc, watch},
};

const CLIENTS: usize = 4;

fn main() -> io::Result<()> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (load, loaded) = watch::channel(false);
    let answered = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        spawn(accept(listener, Arc::clone(&answered)));
        for _ in 0..CLIENTS {
            spawn(ask(address, loaded.clone()));
        }
        io::Result::Ok(())
    })?;
    quiet::wait_until_idle();
    script::say_ready();

    let mut held = None;
    loop {
        match script::hear().as_str() {
            "load" => {
                load.send_replace(true);
                script::say("loaded");
            }
            "rest" => {
                load.send_replace(false);
                quiet::wait_until_idle();
                script::say("resting");
            }
            "count" => script::say(&format!("count {}", answered.load(SeqCst))),
            "hold" => {
                let (release, released) = mpsc::channel::<()>();
                let (tell, told) = mpsc::channel();
                let joined = runtime.spawn(hold(tell, released));
                let id = told.recv().expect("the task begins by telling");
                held = Some((release, joined));
                script::say(&format!("held {id}"));
            }
            "release" => {
                let (release, joined) = held.take().expect("`hold` comes first");
                drop(release);
                runtime.block_on(joined).expect("it does not panic");
                script::say("released");
            }
            _ => return Ok(()),
        }
    }
}

/// Stays in its first poll until `release` is dropped; has a second one.
async fn hold(tell: mpsc::Sender<tokio::task::Id>, release: mpsc::Receiver<()>) {
    let _ = tell.send(tokio::task::id());
    let _ = release.recv();
    tokio::task::yield_now().await;
}

async fn accept(listener: TcpListener, answered: Arc<AtomicU64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let (lines, written) = async_mpsc::channel(4);
        let (read, write) = stream.into_split();
        spawn(requests(read, lines));
        spawn(answers(write, written, Arc::clone(&answered)));
    }
}

async fn requests(
    mut stream: tokio::net::tcp::OwnedReadHalf,
    lines: async_mpsc::Sender<[u8; 16]>,
) -> io::Result<()> {
    let mut request = [0; 16];
    loop {
        stream.read_exact(&mut request).await?;
        if lines.send(request).await.is_err() {
            return Ok(());
        }
    }
}

async fn answers(
    mut stream: tokio::net::tcp::OwnedWriteHalf,
    mut lines: async_mpsc::Receiver<[u8; 16]>,
    answered: Arc<AtomicU64>,
) -> io::Result<()> {
    while let Some(request) = lines.recv().await {
        stream.write_all(&request).await?;
        answered.fetch_add(1, SeqCst);
    }
    Ok(())
}

/// A client: asks while there is load; now and then from a new task.
async fn ask(address: SocketAddr, mut load: watch::Receiver<bool>) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut answer = [0; 16];
    while load.wait_for(|&loaded| loaded).await.is_ok() {
        let own = load.clone();
        let asked = spawn(async move {
            for _ in 0..100 {
                if !*own.borrow() {
                    break;
                }
                stream.write_all(&[7; 16]).await?;
                stream.read_exact(&mut answer).await?;
            }
            io::Result::Ok(stream)
        });
        stream = asked.await.expect("it does not panic")?;
    }
    Ok(())
}
