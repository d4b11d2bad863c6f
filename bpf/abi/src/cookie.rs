//! The attach cookie: what is static about a site, so that a hit need not look
//! it up.
//!
//! | bits | field |
//! |---|---|
//! | 0..24 | index of the task vtable in the plan |
//! | 24..32 | number of the object: of the file that the plan is of |
//! | 32..40 | offset of the task id from the header, in 8-byte words |
//! | 40..48 | bytes pushed between function entry and the site, in 8-byte words |
//! | 48..52 | register that holds the task header at the site; at a park `rsi`, where that holds the worker's core |
//! | 52 | several vtables share this function: read the vtable from the header |
//! | 53 | the site is a conditional branch, and only one direction is a hit |
//! | 54 | that direction is: taken |
//! | 55..59 | x86 condition code of the branch |
//! | 59 | the site is a poll of a blocking-pool closure |
//! | 60 | the end of every task is seen in time: task ids may be remembered |

/// A general-purpose register, by its number in x86-64 instruction encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Register(pub u8);

impl Register {
    /// `rdi`, the first argument.
    pub const RDI: Self = Self(7);
    /// `rsi`, the second argument.
    pub const RSI: Self = Self(6);
}

/// A conditional branch of which one direction counts as a hit. At a site
/// inside a compare-exchange loop this tells the last round from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// x86 condition code, 0 to 15 (`0x70 | code` is the short jump).
    pub code: u8,
    /// Whether the taken branch is the hit; otherwise the fall-through is.
    pub taken: bool,
}

/// [`Cookie::id_offset`] where the tasks that hit the site differ: the offset is
/// read from the task's vtable. The header is never at its own id.
pub const BY_VTABLE: u16 = 0;

/// Bits of [`Cookie::vtable`].
const VTABLE_BITS: u32 = 24;

/// The unpacked cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Number of the object that has the site.
    pub object: u8,
    /// Index of the task vtable in the object's plan, below 2^24.
    pub vtable: u32,
    /// Offset of the task id from the task header, bytes; a multiple of 8, at
    /// most 2040; or [`BY_VTABLE`].
    pub id_offset: u16,
    /// Bytes the function has pushed when the site is reached; a multiple of 8,
    /// at most 2040.
    pub pushed: u16,
    /// Register that holds the task header at the site. At a park of a multi-thread
    /// worker [`Register::RSI`], which holds its core: `Context::park_internal`
    /// (`park_timeout` before 1.49) has it as its second argument (Tokio 1.24 to 1.54,
    /// `src/runtime/scheduler/multi_thread/worker.rs`).
    pub header: Register,
    /// Several vtables share the function.
    pub shared: bool,
    /// The branch direction that counts, where the site is one.
    pub branch: Option<Branch>,
    /// The function polls closures of the blocking pool.
    pub blocking: bool,
    /// The end of every task passes a site, so that the kernel side may remember
    /// which task a header is (see [`crate::known`]).
    pub remembers: bool,
}

impl Cookie {
    /// A cookie with nothing static to say: the header is in `rdi`.
    pub const EMPTY: Self = Self {
        object: 0,
        vtable: 0,
        id_offset: 0,
        pushed: 0,
        header: Register::RDI,
        shared: false,
        branch: None,
        blocking: false,
        remembers: false,
    };

    /// Whether every field fits its bits; a site whose cookie does not is not
    /// usable.
    pub const fn fits(&self) -> bool {
        let code = match self.branch {
            Some(branch) => branch.code,
            None => 0,
        };
        self.vtable >> VTABLE_BITS == 0
            && self.id_offset.is_multiple_of(8)
            && self.id_offset <= 2040
            && self.pushed.is_multiple_of(8)
            && self.pushed <= 2040
            && self.header.0 < 16
            && code < 16
    }

    /// The cookie as the kernel hands it to the program.
    pub const fn pack(&self) -> u64 {
        let mut word = self.vtable as u64
            | (self.object as u64) << VTABLE_BITS
            | (self.id_offset as u64 / 8) << 32
            | (self.pushed as u64 / 8) << 40
            | (self.header.0 as u64) << 48
            | (self.shared as u64) << 52
            | (self.blocking as u64) << 59
            | (self.remembers as u64) << 60;
        if let Some(branch) = self.branch {
            word |= 1 << 53 | (branch.taken as u64) << 54 | (branch.code as u64) << 55;
        }
        word
    }

    /// The fields of a packed cookie.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field is masked to its bits"
    )]
    pub const fn unpack(word: u64) -> Self {
        Self {
            object: object(word) as u8,
            vtable: vtable(word) as u32,
            id_offset: id_offset(word) as u16,
            pushed: pushed(word) as u16,
            header: Register(header(word)),
            shared: is_shared(word),
            branch: if has_branch(word) {
                Some(Branch {
                    code: branch_code(word),
                    taken: word >> 54 & 1 == 1,
                })
            } else {
                None
            },
            blocking: is_blocking(word),
            remembers: remembers(word),
        }
    }
}

/// Index of the vtable in a packed cookie.
pub const fn vtable(word: u64) -> u64 {
    word & ((1 << VTABLE_BITS) - 1)
}

/// Number of the object in a packed cookie.
pub const fn object(word: u64) -> u64 {
    word >> VTABLE_BITS & 0xff
}

/// Offset of the task id in a packed cookie, bytes.
pub const fn id_offset(word: u64) -> u64 {
    (word >> 32 & 0xff) * 8
}

/// Bytes pushed, in a packed cookie.
pub const fn pushed(word: u64) -> u64 {
    (word >> 40 & 0xff) * 8
}

/// Number of the header's register in a packed cookie.
pub const fn header(word: u64) -> u8 {
    (word >> 48 & 0xf) as u8
}

/// Whether a packed cookie says that the vtable has to be read.
pub const fn is_shared(word: u64) -> bool {
    word >> 52 & 1 == 1
}

/// Whether a packed cookie is of closures of the blocking pool.
pub const fn is_blocking(word: u64) -> bool {
    word >> 59 & 1 == 1
}

/// Whether a packed cookie lets task ids be remembered.
pub const fn remembers(word: u64) -> bool {
    word >> 60 & 1 == 1
}

/// Whether a packed cookie names a branch.
pub const fn has_branch(word: u64) -> bool {
    word >> 53 & 1 == 1
}

const fn branch_code(word: u64) -> u8 {
    (word >> 55 & 0xf) as u8
}

/// Whether a hit with these flags went the way that counts: true where the
/// cookie names no branch.
///
/// `flags` is RFLAGS. Conditions in pairs, the odd one negated (Intel SDM
/// volume 1, appendix B): O, C, Z, C|Z, S, P, S!=O, Z|(S!=O).
#[inline(always)]
#[expect(clippy::inline_always, reason = "BPF programs call nothing on a hit")]
pub const fn counts(word: u64, flags: u64) -> bool {
    if !has_branch(word) {
        return true;
    }
    let carry = flags & 1;
    let parity = flags >> 2 & 1;
    let zero = flags >> 6 & 1;
    let sign = flags >> 7 & 1;
    let overflow = flags >> 11 & 1;
    let code = branch_code(word);
    let holds = match code >> 1 {
        0 => overflow,
        1 => carry,
        2 => zero,
        3 => carry | zero,
        4 => sign,
        5 => parity,
        6 => sign ^ overflow,
        _ => zero | (sign ^ overflow),
    };
    holds ^ (code as u64 & 1) == word >> 54 & 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_unpacks_every_field() {
        for (shared, taken, blocking) in [
            (false, false, true),
            (true, true, false),
            (true, false, true),
        ] {
            for code in 0..16 {
                let cookie = Cookie {
                    object: 0xde,
                    vtable: 0x00ad_beef,
                    id_offset: 2040,
                    pushed: 136,
                    header: Register(15),
                    shared,
                    branch: Some(Branch { code, taken }),
                    blocking,
                    remembers: taken,
                };
                assert!(cookie.fits());
                assert_eq!(Cookie::unpack(cookie.pack()), cookie);
            }
        }
        assert_eq!(Cookie::unpack(Cookie::EMPTY.pack()), Cookie::EMPTY);
    }

    #[test]
    fn a_field_out_of_range_does_not_fit() {
        assert!(
            !Cookie {
                id_offset: 2048,
                ..Cookie::EMPTY
            }
            .fits()
        );
        assert!(
            !Cookie {
                id_offset: 36,
                ..Cookie::EMPTY
            }
            .fits()
        );
        assert!(
            !Cookie {
                vtable: 1 << 24,
                ..Cookie::EMPTY
            }
            .fits()
        );
        assert!(
            !Cookie {
                pushed: 2048,
                ..Cookie::EMPTY
            }
            .fits()
        );
    }

    #[test]
    fn a_branch_counts_only_in_its_direction() {
        let cookie = |code, taken| {
            Cookie {
                branch: Some(Branch { code, taken }),
                ..Cookie::EMPTY
            }
            .pack()
        };
        let (zero, sign, overflow) = (1 << 6, 1 << 7, 1 << 11);
        // jne (code 5), fall-through counts: a compare-exchange that won.
        assert!(counts(cookie(5, false), zero));
        assert!(!counts(cookie(5, false), 0));
        // jne, taken counts.
        assert!(counts(cookie(5, true), 0));
        // jl (code 12): sign differs from overflow.
        assert!(counts(cookie(12, true), sign));
        assert!(!counts(cookie(12, true), sign | overflow));
        // jg (code 15): neither zero nor less.
        assert!(counts(cookie(15, true), 0));
        assert!(!counts(cookie(15, true), zero));
        assert!(counts(Cookie::EMPTY.pack(), 0));
    }
}
