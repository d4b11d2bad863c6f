//! The target's listening sockets: which there are, and how full their queues get.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id,
        generated::{bpf_get_socket_cookie, bpf_sock_from_file},
    },
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use core::{
    ffi::c_void,
    intrinsics::{AtomicOrdering, atomic_xadd},
};
use dial9_bpf_abi::{
    limits::NO_TARGET,
    listener::{Listener, ListenerKey, MAX_SHARING, port_index},
    record::{AcceptQueue, FLAG_ARRIVAL, FLAG_CLOSED, FLAG_UNRESOLVED, RecordKind},
};

use crate::{
    emit::Hit,
    maps::{KEYS, LISTENED, LISTENERS, sched_tgid, target},
    sched::tgid,
    sock::{LISTEN, Sock, socket_sock_offset},
};

/// `TCP_ESTABLISHED`, `TCP_SYN_RECV` and `TCP_CLOSE` (`include/net/tcp_states.h`).
const ESTABLISHED: u32 = 1;
const SYN_RECV: u32 = 3;
const CLOSE: u32 = 7;

/// A socket of anybody's changes its state; three comparisons for all changes but a
/// listener's begin and end and a connection that has been queued.
///
/// Hook: BTF tracepoint `inet_sock_set_state(sk, oldstate, newstate)`. A connection is
/// in its listener's queue, and counted there, before it gets established
/// (net/ipv4/tcp_minisocks.c, `tcp_child_process`); a socket listens in the context of
/// who calls `listen` (net/ipv4/inet_connection_sock.c, `inet_csk_listen_start`)
/// · Emits: [`AcceptQueue`], 72 bytes
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn inet_sock_set_state(ctx: BtfTracePointContext) -> i32 {
    let (old, new): (u32, u32) = (ctx.arg(1), ctx.arg(2));
    let sock: *const c_void = ctx.arg(0);
    if old == SYN_RECV && new == ESTABLISHED {
        arrive(Sock(sock as u64));
    } else if new == LISTEN {
        if (bpf_get_current_pid_tgid() >> 32) as u32 == sched_tgid() {
            // SAFETY: a trusted `struct sock`.
            let cookie = unsafe { bpf_get_socket_cookie(sock.cast_mut()) };
            keep(Sock(sock as u64), cookie);
        }
    } else if old == LISTEN && new == CLOSE {
        forget(Sock(sock as u64));
    }
    0
}

/// What the iterator over files is called with (kernel/bpf/task_iter.c,
/// `struct bpf_iter__task_file`); pointers that are null at its end.
#[repr(C)]
pub struct TaskFile {
    meta: *const c_void,
    task: *const u8,
    fd: u64,
    file: *mut c_void,
}

/// A file of the target: a listener is kept from now on, and its queue is told.
///
/// Hook: iterator `task_file`, which whoever reads from it runs · Emits:
/// [`AcceptQueue`], 72 bytes
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn accept_queues(ctx: *const TaskFile) -> i32 {
    // SAFETY: the kernel's context.
    let (task, file) = unsafe { ((*ctx).task, (*ctx).file) };
    if task.is_null() || file.is_null() || tgid(task) != sched_tgid() {
        return 0;
    }
    // SAFETY: a file that the iterator holds.
    let socket = unsafe { bpf_sock_from_file(file.cast()) };
    if socket.is_null() {
        return 0;
    }
    // SAFETY: a `struct socket`, and this kernel's offset.
    let sock = unsafe {
        *socket
            .cast::<u8>()
            .add(socket_sock_offset())
            .cast::<*mut c_void>()
    };
    if sock.is_null() || !Sock(sock as u64).listens() {
        return 0;
    }
    // SAFETY: a `struct sock` that the file holds.
    let cookie = unsafe { bpf_get_socket_cookie(sock) };
    if let Some((key, listener)) = keep(Sock(sock as u64), cookie) {
        tell(listener, key.port, 0);
    }
    0
}

/// A connection has been queued by the listener that it belongs to.
#[inline(always)]
fn arrive(connection: Sock) {
    let port = connection.port();
    let used = used(port);
    if used == 0 || !connection.is_tcp() {
        return;
    }
    let namespace = connection.namespace();
    let mut key = ListenerKey {
        namespace,
        port,
        index: 0,
    };
    let mut flags = 0;
    for index in 0..MAX_SHARING {
        if index >= used {
            break;
        }
        let candidate = ListenerKey {
            namespace,
            port,
            index,
        };
        if let Some(listener) = listener(candidate)
            && takes(listener, connection)
        {
            let sock = Sock(listener.sock);
            if sock.cookie() != listener.cookie {
                continue;
            }
            key.index = index;
            if sock.is_alone() || sock.newest() == connection.0 {
                flags = FLAG_ARRIVAL;
                break;
            }
            // Another one's; or the next is queued, or this one accepted already.
            flags = FLAG_UNRESOLVED;
        }
    }
    if flags == 0 {
        return;
    }
    if let Some(listener) = listener(key) {
        if flags == FLAG_ARRIVAL {
            count(listener);
        }
        tell(listener, port, flags);
    }
}

/// Whether a connection's address is one of the listener's.
#[inline(always)]
fn takes(listener: &Listener, connection: Sock) -> bool {
    // A connection over IPv4 at a listener of both is one of IPv6, too.
    if listener.family != u64::from(connection.family()) {
        return false;
    }
    let any = listener.address[0] | listener.address[1] == 0;
    let [first, second] = connection.address();
    any || first == listener.address[0] && second == listener.address[1]
}

#[inline(always)]
fn count(listener: &mut Listener) {
    if target() != NO_TARGET {
        // SAFETY: a map value; the add is atomic.
        unsafe {
            atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(&raw mut listener.arrivals, 1);
        }
    }
}

/// Keeps a listener, unless it is kept or there is no room.
#[inline(always)]
fn keep(sock: Sock, cookie: u64) -> Option<(ListenerKey, &'static mut Listener)> {
    if let Some(key) = key_of(sock)
        && let Some(kept) = listener(key)
        && kept.cookie == cookie
    {
        kept.inode = sock.inode();
        return Some((key, kept));
    }
    let port = sock.port();
    // Without one, `listen` is about to choose it, and the iterator will see it.
    if port == 0 || !sock.is_tcp() {
        return None;
    }
    let new = Listener {
        sock: sock.0,
        cookie,
        inode: sock.inode(),
        arrivals: 0,
        address: sock.address(),
        family: u64::from(sock.family()),
    };
    let namespace = sock.namespace();
    for index in 0..MAX_SHARING {
        let key = ListenerKey {
            namespace,
            port,
            index,
        };
        if LISTENERS.insert(key, new, u64::from(BPF_NOEXIST)).is_err() {
            continue;
        }
        // It has as much room as the other.
        let _ = KEYS.insert(sock.0, key, 0);
        if let Some(used) = LISTENED.get_ptr_mut(port_index(port)) {
            // SAFETY: a map value; the add is atomic.
            unsafe {
                atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(used, 1);
            }
        }
        return listener(key).map(|kept| (key, kept));
    }
    None
}

/// A listener closes: tells its queue for the last time. Its port may be given up by now.
#[inline(always)]
fn forget(sock: Sock) {
    let Some(key) = key_of(sock) else {
        return;
    };
    if let Some(kept) = listener(key) {
        tell(kept, key.port, FLAG_CLOSED);
    }
    // Nobody else removes them.
    let _ = LISTENERS.remove(key);
    let _ = KEYS.remove(sock.0);
}

#[inline(always)]
fn key_of(sock: Sock) -> Option<ListenerKey> {
    // SAFETY: copied at once; a listener's key does not change.
    unsafe { KEYS.get(sock.0) }.copied()
}

/// How many of a port's indexes may be in use.
#[inline(always)]
fn used(port: u16) -> u16 {
    let used = LISTENED.get(port_index(port)).copied().unwrap_or(0);
    used.min(u64::from(MAX_SHARING)) as u16
}

#[inline(always)]
fn listener(key: ListenerKey) -> Option<&'static mut Listener> {
    // SAFETY: a map value, which outlives the program's run; its counter is added to
    // atomically.
    LISTENERS.get_ptr_mut(key).map(|kept| unsafe { &mut *kept })
}

#[inline(always)]
fn tell(listener: &Listener, port: u16, flags: u16) {
    if target() == NO_TARGET {
        return;
    }
    let kind = RecordKind::ACCEPT_QUEUE;
    // SAFETY: the helper has no precondition. Programs do not migrate.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let sock = Sock(listener.sock);
    Hit { kind, cpu, tid: 0 }.emit::<AcceptQueue>(flags, |record| {
        // SAFETY: `emit` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).cookie).write(listener.cookie);
            (&raw mut (*record).inode).write(listener.inode);
            (&raw mut (*record).address[0]).write(listener.address[0]);
            (&raw mut (*record).address[1]).write(listener.address[1]);
            (&raw mut (*record).arrivals).write(listener.arrivals);
            (&raw mut (*record).depth).write(sock.depth());
            (&raw mut (*record).limit).write(sock.limit());
            (&raw mut (*record).drops).write(sock.drops());
            (&raw mut (*record).port).write(port);
            (&raw mut (*record).family).write(listener.family as u16);
        }
    });
}
