//! Why a hit yielded no record, and where that is counted.

/// Why a hit was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LossCause {
    /// The CPU's ring was full.
    RingFull = 0,
    /// The CPU has no ring (it came online after attach).
    NoRing = 1,
    /// The task could not be read from the target's memory.
    UserFault = 2,
    /// Another thread whose tid has the same low bits left its CPU meanwhile.
    SlotTaken = 3,
    /// There was no room to remember the begin of what would have ended.
    TableFull = 4,
    /// The end of what had begun was not seen.
    Unseen = 5,
    /// Another hit on the CPU was at it: it was interrupted half-way.
    Busy = 6,
}

impl LossCause {
    /// Every cause, in the order of its number.
    pub const ALL: [Self; 7] = [
        Self::RingFull,
        Self::NoRing,
        Self::UserFault,
        Self::SlotTaken,
        Self::TableFull,
        Self::Unseen,
        Self::Busy,
    ];

    /// The cause's name in reports and schemas.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring-full",
            Self::NoRing => "no-ring",
            Self::UserFault => "user-fault",
            Self::SlotTaken => "slot-taken",
            Self::TableFull => "table-full",
            Self::Unseen => "unseen",
            Self::Busy => "busy",
        }
    }
}

/// Counter slots reserved for each kind.
pub const CAUSES: u32 = 8;
/// Record kinds that have counters; larger than every hit's kind.
pub const KINDS: u32 = 32;
/// Entries of the per-CPU counter array.
pub const COUNTERS: u32 = KINDS * CAUSES;

/// Index of a counter: hits of `kind` lost by `cause` on the CPU.
pub const fn counter_index(kind: crate::record::RecordKind, cause: LossCause) -> u32 {
    (kind.0 as u32 % KINDS) * CAUSES + cause as u32
}
