//! How a text travels: in pieces, since a record is small and of fixed size.
//!
//! What is not in the piece's bytes is in the flags of its header:
//!
//! | bits | of the flags |
//! |---|---|
//! | 0..5 | how many of the bytes count |
//! | 5 | the text is a panic's message; otherwise its file |
//! | 6..8 | whether this is the last piece, as an [`End`] |
//! | 8..16 | index of the piece |

/// Bytes of a piece.
pub const PIECE_BYTES: usize = 24;
/// Pieces of the longest text that is copied.
pub const MAX_PIECES: usize = 21;
/// Length of the longest text that is copied, bytes.
pub const MAX_TEXT_BYTES: usize = MAX_PIECES * PIECE_BYTES;

/// Whether a text ends with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum End {
    /// Another piece follows.
    Open = 0,
    /// The text ends here.
    Whole = 1,
    /// The text goes on, and is not copied any further.
    Cut = 2,
    /// There is no text: what the thread panicked with is none.
    NoText = 3,
}

/// What the flags of a piece say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// How many of its bytes count, at most [`PIECE_BYTES`].
    pub bytes: u8,
    /// Whether the text is a message rather than a file.
    pub is_message: bool,
    /// Whether the text ends here.
    pub end: End,
    /// Its place in the text, from 0.
    pub index: u8,
}

impl Piece {
    /// The flags.
    pub const fn pack(&self) -> u16 {
        self.bytes as u16
            | (self.is_message as u16) << 5
            | (self.end as u16) << 6
            | (self.index as u16) << 8
    }

    /// How many bytes the flags claim, without the rest.
    pub const fn bytes_in(flags: u16) -> u8 {
        (flags & 0x1f) as u8
    }

    /// What the flags say; `None` where they claim more bytes than there are.
    pub const fn unpack(flags: u16) -> Option<Self> {
        let bytes = Self::bytes_in(flags);
        if bytes as usize > PIECE_BYTES {
            return None;
        }
        Some(Self {
            bytes,
            is_message: flags >> 5 & 1 == 1,
            end: match flags >> 6 & 3 {
                0 => End::Open,
                1 => End::Whole,
                2 => End::Cut,
                _ => End::NoText,
            },
            index: (flags >> 8) as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_flags_say_something_or_too_much() {
        for flags in 0..=u16::MAX {
            match Piece::unpack(flags) {
                Some(piece) => assert_eq!(piece.pack(), flags),
                None => assert!(flags & 0x1f > 24, "{flags:#x}"),
            }
        }
    }
}
