//! How many connections wait at each listener.
//!
//! In: a record for each connection that was queued, and for each reading. Out: of one
//! listener in each [`INTERVAL_NS`] at most three events: the first, the one with the most
//! connections, and the last; of readings without a change one a second. Never: a number
//! that was not read, nor an interval without its maximum.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dial9_bpf_abi::record::{self, FLAG_ARRIVAL, FLAG_CLOSED, FLAG_UNRESOLVED};

use super::Interpreter;
use super::lane::Out;
use crate::event::Event;
use crate::location::Locations;

/// Time in which a listener has at most three events, ns.
const INTERVAL_NS: u64 = 10_000_000;
/// Time between two events where nothing changes, ns.
const UNCHANGED_NS: u64 = 1_000_000_000;
/// Listeners that are remembered.
const MAX_LISTENERS: usize = 1 << 10;
/// `AF_INET` (include/linux/socket.h).
const V4: u16 = 2;

/// A listener's queue at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptQueue {
    /// When.
    pub ts_ns: u64,
    /// The listener's cookie.
    pub cookie: u64,
    /// Number of its inode.
    pub inode: u64,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Connections that wait.
    pub pending: u32,
    /// The queue is full when it has more.
    pub limit: u32,
    /// What the listener has dropped since it exists.
    pub drops: u32,
    /// Connections queued since it is known.
    pub arrivals: u64,
    /// Why it was read.
    pub why: Why,
}

/// Why a queue was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A connection was queued.
    Arrival,
    /// It was time.
    Reading,
    /// The listener closes, with what waits.
    Closed,
}

impl Why {
    /// Its name in the trace.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arrival => "arrival",
            Self::Reading => "reading",
            Self::Closed => "closed",
        }
    }
}

impl AcceptQueue {
    fn of(record: &record::AcceptQueue) -> Self {
        let flags = record.header.flags;
        let why = if flags & FLAG_CLOSED != 0 {
            Why::Closed
        } else if flags & FLAG_ARRIVAL != 0 {
            Why::Arrival
        } else {
            Why::Reading
        };
        Self {
            ts_ns: record.header.ts_ns,
            cookie: record.cookie,
            inode: record.inode,
            address: address(record),
            port: record.port,
            pending: record.depth,
            limit: record.limit,
            drops: record.drops,
            arrivals: record.arrivals,
            why,
        }
    }

    fn differs(&self, other: &Self) -> bool {
        let of = |queue: &Self| (queue.pending, queue.limit, queue.drops, queue.arrivals);
        of(self) != of(other)
    }
}

fn address(record: &record::AcceptQueue) -> IpAddr {
    let [first, second] = record.address.map(u64::to_ne_bytes);
    if record.family == V4 {
        let [a, b, c, d, ..] = first;
        return Ipv4Addr::new(a, b, c, d).into();
    }
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first);
    bytes[8..].copy_from_slice(&second);
    Ipv6Addr::from(bytes).into()
}

/// The listeners of which there were records, by cookie.
#[derive(Debug, Default)]
pub(super) struct Listeners(HashMap<u64, Listener>);

#[derive(Debug)]
struct Listener {
    /// The last event.
    told: AcceptQueue,
    /// When the interval began; 0 once a segment has ended since.
    since_ns: u64,
    /// The fullest since then, and the last.
    held: Option<[AcceptQueue; 2]>,
}

impl Listener {
    fn newest(&self) -> &AcceptQueue {
        self.held.as_ref().map_or(&self.told, |[_, last]| last)
    }

    fn hold(&mut self, queue: AcceptQueue) {
        self.held = Some(match self.held {
            Some([fullest, _]) if fullest.pending >= queue.pending => [fullest, queue],
            _ => [queue, queue],
        });
    }

    /// Says what is held: the fullest only if neither side of it was as full.
    fn release(&mut self, say: &mut impl FnMut(&Event)) {
        let Some([fullest, last]) = self.held.take() else {
            return;
        };
        if fullest.pending > last.pending.max(self.told.pending) {
            say(&Event::AcceptQueue(fullest));
        }
        say(&Event::AcceptQueue(last));
        self.told = last;
    }

    fn see(&mut self, mut queue: AcceptQueue, say: &mut impl FnMut(&Event)) {
        let is_within = queue.ts_ns < self.since_ns + INTERVAL_NS;
        if !is_within {
            self.release(say);
        }
        let newest = self.newest();
        // Two CPUs count at once, and either may be the first to write.
        queue.arrivals = queue.arrivals.max(newest.arrivals);
        let is_old = queue.ts_ns >= self.since_ns + UNCHANGED_NS;
        if queue.why == Why::Reading && !queue.differs(newest) && !is_old {
            return;
        }
        if is_within && queue.why != Why::Closed {
            self.hold(queue);
            return;
        }
        self.release(say);
        self.since_ns = queue.ts_ns;
        self.told = queue;
        say(&Event::AcceptQueue(queue));
    }
}

impl Listeners {
    fn see(&mut self, queue: AcceptQueue, say: &mut impl FnMut(&Event)) {
        if let Some(listener) = self.0.get_mut(&queue.cookie) {
            listener.see(queue, say);
        } else {
            if self.0.len() >= MAX_LISTENERS {
                self.rotate(say);
                self.0.clear();
            }
            say(&Event::AcceptQueue(queue));
            let new = Listener {
                told: queue,
                since_ns: queue.ts_ns,
                held: None,
            };
            self.0.insert(queue.cookie, new);
        }
        if queue.why == Why::Closed {
            self.0.remove(&queue.cookie);
        }
    }

    /// A segment ends: the next has each listener's next record.
    fn rotate(&mut self, say: &mut impl FnMut(&Event)) {
        for listener in self.0.values_mut() {
            listener.release(say);
            listener.since_ns = 0;
        }
    }
}

impl Interpreter {
    pub(super) fn accept_queue(
        &mut self,
        record: &record::AcceptQueue,
        out: &mut impl FnMut(&Event, &Locations),
    ) {
        if record.header.flags & FLAG_UNRESOLVED != 0 {
            self.stats.unresolved_arrivals += 1;
        }
        let mut out = Out::new(&mut self.stats, &self.locations, out);
        let queue = AcceptQueue::of(record);
        self.listeners.see(queue, &mut |event| out.event(event));
    }

    pub(super) fn rotate_listeners(&mut self, out: &mut impl FnMut(&Event, &Locations)) {
        let mut out = Out::new(&mut self.stats, &self.locations, out);
        self.listeners.rotate(&mut |event| out.event(event));
    }
}
