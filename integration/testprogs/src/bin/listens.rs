//! Listeners that connections come to, a known number of them.
//!
//! `listens FILE`: says `ready PID` with one listener open; on `go` it works and says
//! `done`; on `exit` it ends. FILE has a line for each listener, `KIND INODE ADDRESS PORT
//! ARRIVED PEAK DROPS`, separated by tabs: connections established, the most that waited,
//! and connection requests dropped.
//!
//! `full` and `full-6` stop accepting until connections are refused, `fast` accepts as fast
//! as it can, and the listeners of `shared` have one port. Drops are those of the network
//! namespace: nobody else may be in it.

use std::{
    env, fs,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::PathBuf,
    thread,
    time::Duration,
};

use rustix::net::{self, AddressFamily, SocketType, sockopt};
use testprogs::script;

/// Where it gets full, and where not.
const BACKLOGS: [i32; 2] = [16, 1_024];
/// Connections that are tried where the queue gets full.
const TRIED: usize = 20;
/// The first retry of a connection request is after a second.
const PATIENCE: Duration = Duration::from_millis(200);
/// Long enough for a few readings.
const REST: Duration = Duration::from_secs(1);
const CLIENTS: usize = 4;
const EACH: usize = 1_000;
const SHARING: usize = 4;

fn main() {
    let path = PathBuf::from(env::args_os().nth(1).expect("usage: listens FILE"));
    let early = listener((Ipv4Addr::LOCALHOST, 0).into(), BACKLOGS[0], false);
    script::say_ready();
    script::expect("go");
    let mut lines = vec![fill("full", early)];
    lines.push(fill(
        "full-6",
        listener((Ipv6Addr::LOCALHOST, 0).into(), BACKLOGS[0], false),
    ));
    lines.push(fast());
    lines.extend(shared());
    fs::write(path, lines.concat()).expect("FILE can be written");
    script::say("done");
    script::expect("exit");
}

fn listener(address: SocketAddr, backlog: i32, is_shared: bool) -> TcpListener {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = net::socket(family, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_reuseport(&socket, is_shared).expect("an option");
    net::bind(&socket, &address).expect("an address of ours");
    net::listen(&socket, backlog).expect("a port");
    socket.into()
}

/// More connect than may wait; then all are accepted.
fn fill(kind: &str, listener: TcpListener) -> String {
    let address = listener.local_addr().expect("it is bound");
    let dropped = drops();
    let tries = (0..TRIED).map(|_| TcpStream::connect_timeout(&address, PATIENCE));
    let connected: Vec<TcpStream> = tries.filter_map(Result::ok).collect();
    let waiting = waiting(address.port());
    let dropped = drops() - dropped;
    thread::sleep(REST);
    for _ in &connected {
        listener.accept().expect("one waits");
    }
    thread::sleep(REST);
    line(kind, &listener, [connected.len() as u64, waiting, dropped])
}

/// As many come as can.
fn fast() -> String {
    let listener = listener((Ipv4Addr::UNSPECIFIED, 0).into(), BACKLOGS[1], false);
    let port = listener.local_addr().expect("it is bound").port();
    let accepted = thread::scope(|scope| {
        connect_all(scope, port);
        accept(&listener, CLIENTS * EACH)
    });
    line("fast", &listener, [accepted, 0, 0])
}

/// The kernel chooses who gets what.
fn shared() -> Vec<String> {
    let first = listener((Ipv4Addr::LOCALHOST, 0).into(), BACKLOGS[1], true);
    let address = first.local_addr().expect("it is bound");
    let mut all = vec![first];
    all.extend((1..SHARING).map(|_| listener(address, BACKLOGS[1], true)));
    let taken = thread::scope(|scope| {
        let ends: Vec<_> = all
            .iter()
            .map(|listener| scope.spawn(move || accept(listener, usize::MAX)))
            .collect();
        thread::scope(|scope| connect_all(scope, address.port()));
        // A blocked accept ends when the listener is shut down.
        thread::sleep(REST);
        for listener in &all {
            let _ = net::shutdown(listener, net::Shutdown::Both);
        }
        let ends = ends.into_iter().map(|end| end.join().expect("no panic"));
        ends.collect::<Vec<u64>>()
    });
    let lines = all.iter().zip(taken);
    lines
        .map(|(listener, taken)| {
            let inode = inode(listener);
            format!(
                "shared\t{inode}\t{}\t{}\t{taken}\t0\t0\n",
                address.ip(),
                address.port()
            )
        })
        .collect()
}

fn connect_all<'scope>(scope: &'scope thread::Scope<'scope, '_>, port: u16) {
    for _ in 0..CLIENTS {
        scope.spawn(move || {
            for _ in 0..EACH {
                TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it is accepted");
            }
        });
    }
}

/// How many were accepted, at most so many.
fn accept(listener: &TcpListener, most: usize) -> u64 {
    listener
        .incoming()
        .take(most)
        .take_while(Result::is_ok)
        .count() as u64
}

fn line(kind: &str, listener: &TcpListener, [arrived, peak, drops]: [u64; 3]) -> String {
    let address = listener.local_addr().expect("it is bound");
    let (inode, ip, port) = (inode(listener), address.ip(), address.port());
    format!("{kind}\t{inode}\t{ip}\t{port}\t{arrived}\t{peak}\t{drops}\n")
}

fn inode(listener: &TcpListener) -> u64 {
    let path = format!("/proc/self/fd/{}", listener.as_raw_fd());
    fs::metadata(path).expect("it is open").ino()
}

/// `sk_ack_backlog` of the port's listener: the second half of the fifth column
/// (net/ipv4/tcp_ipv4.c, `get_tcp4_sock`).
fn waiting(port: u16) -> u64 {
    const LISTEN: &str = "0A";
    let of_port = format!(":{port:04X}");
    let table = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    let mut rows = table.iter().flat_map(|table| table.lines());
    rows.find_map(|row| {
        let columns: Vec<&str> = row.split_whitespace().collect();
        let is_it = columns.get(1)?.ends_with(&of_port) && columns[3] == LISTEN;
        let (_, waiting) = columns.get(4)?.split_once(':')?;
        is_it.then(|| u64::from_str_radix(waiting, 16).expect("a number"))
    })
    .expect("it listens")
}

/// `ListenDrops` of the network namespace.
fn drops() -> u64 {
    let table = fs::read_to_string("/proc/self/net/netstat").expect("it is there");
    let mut rows = table.lines().filter(|row| row.starts_with("TcpExt:"));
    let (names, values) = (rows.next().expect("names"), rows.next().expect("values"));
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = columns
        .find(|(name, _)| *name == "ListenDrops")
        .expect("it is counted");
    value.parse().expect("a number")
}
