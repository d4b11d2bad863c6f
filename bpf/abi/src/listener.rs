//! What the kernel keeps of the target's listening sockets.

/// Listeners that are kept at a time.
pub const MAX_LISTENERS: u32 = 1 << 10;
/// Listeners of one port in one network namespace that are kept: several share a port
/// by `SO_REUSEPORT` or by different addresses.
pub const MAX_SHARING: u16 = 64;
/// Entries of the array that says which ports have had a listener; a power of two.
pub const PORTS: u32 = 1 << 12;

/// Where a listener is kept: a connection has no pointer to the one that it came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ListenerKey {
    /// Number of the network namespace.
    pub namespace: u32,
    /// Local port.
    pub port: u16,
    /// Which of those that share the port, below [`MAX_SHARING`].
    pub index: u16,
}

/// A listening TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Listener {
    /// Address of its `struct sock`.
    pub sock: u64,
    /// Its cookie, which no other socket gets.
    pub cookie: u64,
    /// Number of its inode; 0 while it has none.
    pub inode: u64,
    /// Connections that were queued since it is kept and hits count.
    pub arrivals: u64,
    /// Its address: the first 4 bytes, or all of IPv6.
    pub address: [u64; 2],
    /// `AF_INET` or `AF_INET6`.
    pub family: u64,
}

/// Index into the array of ports.
pub const fn port_index(port: u16) -> u32 {
    port as u32 & (PORTS - 1)
}

const _: () = assert!(size_of::<ListenerKey>() == 8);
const _: () = assert!(size_of::<Listener>() == 56);
