//! Listeners that connections come to, a known number of them.
//!
//! `listens FILE [EACH]`: says `ready PID` with one listener open; on `go` it works and says
//! `done`; on `exit` it ends. EACH is how often each of four clients connects to one that
//! accepts. FILE has a line for each listener, `KIND INODE ADDRESS PORT
//! ARRIVED PEAK DROPS`, separated by tabs: connections established, the most that waited,
//! and connection requests dropped.
//!
//! `full` and `full-6` do not accept while 500 connections are tried, `fast` accepts as fast
//! as it can, `uring` and `uring-multi` the same by `io_uring`, and the listeners of `shared`
//! have one port. Drops are those of the network namespace: somebody else's are among them.

use std::{
    env, fs,
    io::{self, Read as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::PathBuf,
    ptr, thread,
    time::Duration,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::{
    io::Errno,
    net::{self, AddressFamily, SocketFlags, SocketType, sockopt},
};
use testprogs::script;

/// Where it gets full, and where not.
const BACKLOGS: [i32; 2] = [128, 1_024];
/// Connections that are tried where the queue gets full.
const TRIED: usize = 500;
/// The first retry of a connection request is after a second.
const PATIENCE: Duration = Duration::from_millis(200);
/// Long enough for a few readings.
const REST: Duration = Duration::from_secs(1);
const CLIENTS: usize = 4;
/// Connections of each client, where all are accepted at once.
const EACH: usize = 25_000;
/// The same where the kernel chooses the listener.
const EACH_OF_SHARED: usize = 1_000;
const SHARING: usize = 4;

fn main() {
    let usage = "usage: listens FILE [EACH]";
    let path = PathBuf::from(env::args_os().nth(1).expect(usage));
    let each = env::args().nth(2);
    let each = each.map_or(EACH, |each| each.parse().expect(usage));
    let early = listener((Ipv4Addr::LOCALHOST, 0).into(), BACKLOGS[0], false);
    script::say_ready();
    script::expect("go");
    let mut lines = vec![fill("full", early)];
    lines.push(fill(
        "full-6",
        listener((Ipv6Addr::LOCALHOST, 0).into(), BACKLOGS[0], false),
    ));
    lines.push(fast("fast", each, accept));
    lines.push(fast("uring", each, |listener, most| {
        accept_by_ring(listener, most, false)
    }));
    lines.push(fast("uring-multi", each, |listener, most| {
        accept_by_ring(listener, most, true)
    }));
    lines.extend(shared());
    fs::write(path, lines.concat()).expect("FILE can be written");
    script::say("done");
    script::expect("exit");
}

fn listener(address: SocketAddr, backlog: i32, is_shared: bool) -> TcpListener {
    let socket = net::socket(family(&address), SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_reuseport(&socket, is_shared).expect("an option");
    net::bind(&socket, &address).expect("an address of ours");
    net::listen(&socket, backlog).expect("a port");
    socket.into()
}

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    }
}

/// More connect than may wait; then all are accepted.
fn fill(kind: &str, listener: TcpListener) -> String {
    let address = listener.local_addr().expect("it is bound");
    let before = drops();
    let tries: Vec<OwnedFd> = (0..TRIED).map(|_| begin_to_connect(&address)).collect();
    thread::sleep(PATIENCE);
    let connected: Vec<OwnedFd> = tries
        .into_iter()
        .filter(|socket| net::getpeername(socket).is_ok())
        .collect();
    let waiting = waiting(address.port());
    let dropped = drops() - before;
    thread::sleep(REST);
    for _ in &connected {
        listener.accept().expect("one waits");
    }
    thread::sleep(REST);
    line(kind, &listener, [connected.len() as u64, waiting, dropped])
}

fn begin_to_connect(address: &SocketAddr) -> OwnedFd {
    let (kind, flags) = (SocketType::STREAM, SocketFlags::NONBLOCK);
    let socket = net::socket_with(family(address), kind, flags, None).expect("a socket");
    let begun = net::connect(&socket, address);
    assert!(
        matches!(begun, Ok(()) | Err(Errno::INPROGRESS)),
        "{begun:?}"
    );
    socket
}

/// As many come as can.
fn fast(kind: &str, each: usize, accept: impl FnOnce(&TcpListener, usize) -> u64) -> String {
    let listener = listener((Ipv4Addr::UNSPECIFIED, 0).into(), BACKLOGS[1], false);
    let port = listener.local_addr().expect("it is bound").port();
    let accepted = thread::scope(|scope| {
        connect_all(scope, port, each);
        accept(&listener, CLIENTS * each)
    });
    line(kind, &listener, [accepted, 0, 0])
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
        thread::scope(|scope| connect_all(scope, address.port(), EACH_OF_SHARED));
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

fn connect_all<'scope>(scope: &'scope thread::Scope<'scope, '_>, port: u16, each: usize) {
    for _ in 0..CLIENTS {
        scope.spawn(move || (0..each).for_each(|_| connect(port)));
    }
}

/// Connects, and is gone once it has been accepted and closed: so none is retried. The reset
/// leaves no port in `TIME_WAIT`.
fn connect(port: u16) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it is accepted");
    let ended = stream.read(&mut [0]);
    assert!(matches!(ended, Ok(0)), "{ended:?}");
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("an option");
}

/// How many were accepted, at most so many.
fn accept(listener: &TcpListener, most: usize) -> u64 {
    listener
        .incoming()
        .take(most)
        .take_while(Result::is_ok)
        .count() as u64
}

/// The same by `io_uring`, with a request for each or with one for all.
fn accept_by_ring(listener: &TcpListener, most: usize, is_multi: bool) -> u64 {
    let mut ring = IoUring::new(8).expect("the kernel has it");
    let fd = types::Fd(listener.as_raw_fd());
    let request = if is_multi {
        opcode::AcceptMulti::new(fd).build()
    } else {
        opcode::Accept::new(fd, ptr::null_mut(), ptr::null_mut()).build()
    };
    let (mut accepted, mut is_asked) = (0, false);
    while accepted < most {
        if !is_asked {
            push(&mut ring, &request);
        }
        ring.submit_and_wait(1).expect("one comes");
        for completion in ring.completion() {
            take(completion.result());
            accepted += 1;
            is_asked = is_multi && cqueue::more(completion.flags());
        }
    }
    accepted as u64
}

#[expect(unsafe_code, reason = "a request may refer to memory")]
fn push(ring: &mut IoUring, request: &squeue::Entry) {
    // SAFETY: it refers to none, and the listener is open.
    unsafe { ring.submission().push(request) }.expect("there is room");
}

#[expect(unsafe_code, reason = "a completion is a number")]
fn take(accepted: i32) {
    assert!(accepted >= 0, "{}", io::Error::from_raw_os_error(-accepted));
    // SAFETY: the kernel has just given it to us.
    drop(unsafe { OwnedFd::from_raw_fd(accepted) });
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

/// `ListenOverflows` of the network namespace.
fn drops() -> u64 {
    let table = fs::read_to_string("/proc/self/net/netstat").expect("it is there");
    let mut rows = table.lines().filter(|row| row.starts_with("TcpExt:"));
    let (names, values) = (rows.next().expect("names"), rows.next().expect("values"));
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = columns
        .find(|(name, _)| *name == "ListenOverflows")
        .expect("it is counted");
    value.parse().expect("a number")
}
