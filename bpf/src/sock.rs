//! What the kernel's structures say of a socket.
//!
//! Addresses are numbers here: every read is checked by the helper, and says 0 where
//! there is nothing to read.

use aya_ebpf::helpers::bpf_probe_read_kernel;

use crate::maps::global;

/// `AF_INET` and `AF_INET6` (include/linux/socket.h).
const V4: u16 = 2;
const V6: u16 = 10;
/// `IPPROTO_TCP` (include/uapi/linux/in.h).
const TCP: u16 = 6;
/// `TCP_LISTEN` (`include/net/tcp_states.h`).
pub const LISTEN: u32 = 10;

/// Offset of `__sk_common.skc_state` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_STATE: u32 = 0;
/// Offset of `__sk_common.skc_family` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_FAMILY: u32 = 0;
/// Offset of `__sk_common.skc_num` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_PORT: u32 = 0;
/// Offset of `__sk_common.skc_net` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_NET: u32 = 0;
/// Offset of `__sk_common.skc_rcv_saddr` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_ADDRESS: u32 = 0;
/// Offset of `__sk_common.skc_v6_rcv_saddr` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_ADDRESS_V6: u32 = 0;
/// Offset of `sk_protocol` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_PROTOCOL: u32 = 0;
/// Offset of `sk_ack_backlog` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_DEPTH: u32 = 0;
/// Offset of `sk_max_ack_backlog` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_LIMIT: u32 = 0;
/// Offset of `sk_drops` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_DROPS: u32 = 0;
/// Offset of `sk_reuseport_cb` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_GROUP: u32 = 0;
/// Offset of `__sk_common.skc_cookie` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_COOKIE: u32 = 0;
/// Offset of `__sk_common.skc_bound_dev_if` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_DEVICE: u32 = 0;
/// Offset of `sk_socket` in `struct sock`, bytes.
#[unsafe(no_mangle)]
static SOCK_SOCKET: u32 = 0;
/// Offset of `sk` in `struct socket`, bytes.
#[unsafe(no_mangle)]
static SOCKET_SOCK: u32 = 0;
/// Offset of `icsk_accept_queue.rskq_accept_tail` in `struct inet_connection_sock`, bytes.
#[unsafe(no_mangle)]
static QUEUE_TAIL: u32 = 0;
/// Offset of `sk` in `struct request_sock`, bytes.
#[unsafe(no_mangle)]
static REQUEST_SOCK: u32 = 0;
/// Offset of `ns.inum` in `struct net`, bytes.
#[unsafe(no_mangle)]
static NET_NUMBER: u32 = 0;
/// Offset of `vfs_inode.i_ino` from `socket` in `struct socket_alloc`, bytes.
#[unsafe(no_mangle)]
static SOCKET_INODE: u32 = 0;

/// A `struct sock`.
#[derive(Clone, Copy)]
pub struct Sock(pub u64);

impl Sock {
    /// Whether it is of TCP, over IP.
    #[inline(always)]
    pub fn is_tcp(self) -> bool {
        let family = self.family();
        self.read::<u16>(&SOCK_PROTOCOL) == TCP && (family == V4 || family == V6)
    }

    #[inline(always)]
    pub fn listens(self) -> bool {
        u32::from(self.read::<u8>(&SOCK_STATE)) == LISTEN
    }

    #[inline(always)]
    pub fn family(self) -> u16 {
        self.read(&SOCK_FAMILY)
    }

    /// What no other socket has, not even a later one at the same address.
    #[inline(always)]
    pub fn cookie(self) -> u64 {
        self.read(&SOCK_COOKIE)
    }

    /// Its local port, in the machine's order.
    #[inline(always)]
    pub fn port(self) -> u16 {
        self.read(&SOCK_PORT)
    }

    /// Number of its network namespace.
    #[inline(always)]
    pub fn namespace(self) -> u32 {
        let net: u64 = self.read(&SOCK_NET);
        read(net, &NET_NUMBER)
    }

    /// Its local address: the first 4 bytes, or all of IPv6.
    #[inline(always)]
    pub fn address(self) -> [u64; 2] {
        if self.family() == V6 {
            self.read(&SOCK_ADDRESS_V6)
        } else {
            [u64::from(self.read::<u32>(&SOCK_ADDRESS)), 0]
        }
    }

    /// Number of its inode; 0 while no file has it.
    #[inline(always)]
    pub fn inode(self) -> u64 {
        match self.read::<u64>(&SOCK_SOCKET) {
            0 => 0,
            socket => read(socket, &SOCKET_INODE),
        }
    }

    /// Connections that a listener has not accepted.
    #[inline(always)]
    pub fn depth(self) -> u32 {
        self.read(&SOCK_DEPTH)
    }

    /// The `backlog` of `listen(2)`, as the kernel has bounded it.
    #[inline(always)]
    pub fn limit(self) -> u32 {
        self.read(&SOCK_LIMIT)
    }

    /// What it has dropped.
    #[inline(always)]
    pub fn drops(self) -> u32 {
        self.read(&SOCK_DROPS)
    }

    /// Whether no other listener can have its port at any of its addresses: without
    /// `SO_REUSEPORT` and `SO_BINDTODEVICE` the kernel refuses that
    /// (net/ipv4/inet_connection_sock.c, `inet_csk_get_port`).
    #[inline(always)]
    pub fn is_alone(self) -> bool {
        self.read::<u64>(&SOCK_GROUP) == 0 && self.read::<u32>(&SOCK_DEVICE) == 0
    }

    /// The connection that a listener's queue ends with.
    #[inline(always)]
    pub fn newest(self) -> u64 {
        match self.read::<u64>(&QUEUE_TAIL) {
            0 => 0,
            request => read(request, &REQUEST_SOCK),
        }
    }

    #[inline(always)]
    fn read<T: Default>(self, offset: &'static u32) -> T {
        read(self.0, offset)
    }
}

/// Offset of `sk` in `struct socket`, bytes.
#[inline(always)]
pub fn socket_sock_offset() -> usize {
    global(&SOCKET_SOCK) as usize
}

#[inline(always)]
pub fn read<T: Default>(base: u64, offset: &'static u32) -> T {
    let at = base.wrapping_add(u64::from(global(offset)));
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(at as *const T) }.unwrap_or_default()
}
