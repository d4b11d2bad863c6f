//! Uprobes on panics: where, and with which message.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::uprobe, programs::ProbeContext};
use dial9_bpf_abi::{
    loss::LossCause,
    record::{Panic, RecordKind, Text},
    text::{End, MAX_PIECES, PIECE_BYTES, Piece},
};

use crate::{
    emit::Hit,
    filter::traced,
    known::{read_user, read_user_piece},
    task::{attach_cookie, register},
};

/// Class of a Rust panic's exception (Rust, library/panic_unwind/src/gcc.rs).
const RUST_CLASS: u64 = u64::from_ne_bytes(*b"MOZ\0RUST");
/// The same in Rust 1.81 and before, where it was written as a number.
const RUST_CLASS_BEFORE: u64 = u64::from_be_bytes(*b"MOZ\0RUST");
/// Offset of the payload's data pointer in the exception, bytes (the same file,
/// `Exception`; the payload is a `Box<dyn Any + Send>`).
const PAYLOAD: u64 = 40;
/// A text of more bytes is taken for something else than a text.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;

/// A thread panics; its hook has not run yet.
///
/// Hook: uprobe on std's function that runs the hook · Reads: the `Location`, and
/// its file's name · Emits: [`Panic`], 24 bytes, and pieces of the name
#[uprobe(sleepable)]
pub fn panic_location(ctx: ProbeContext) -> u32 {
    let Some(hit) = traced(RecordKind::PANIC) else {
        return 0;
    };
    let location = register(&ctx, attach_cookie(&ctx));
    let (Some(file), Some(bytes), Some(place)) = (
        read_user(location),
        read_user(location + 8),
        read_user(location + 16),
    ) else {
        hit.lose(LossCause::UserFault);
        return 0;
    };
    // SAFETY: the helper has no precondition.
    let ts_ns = unsafe { bpf_ktime_get_ns() };
    hit.emit_at::<Panic>(ts_ns, 0, |record| {
        // SAFETY: `emit_at` hands out a record that is ours to write.
        unsafe {
            (&raw mut (*record).line).write(place as u32);
            (&raw mut (*record).column).write((place >> 32) as u32);
        }
    });
    text(&hit, ts_ns, false, Some((file, bytes)));
    0
}

/// A thread begins to unwind.
///
/// Hook: uprobe on the unwinder's `_Unwind_RaiseException` · Reads: the exception,
/// the payload's vtable, the payload where it is a text · Emits: pieces of the text
#[uprobe(sleepable)]
pub fn panic_message(ctx: ProbeContext) -> u32 {
    let Some(hit) = traced(RecordKind::TEXT) else {
        return 0;
    };
    let exception = register(&ctx, attach_cookie(&ctx));
    if !matches!(read_user(exception), Some(RUST_CLASS | RUST_CLASS_BEFORE)) {
        return 0;
    }
    // SAFETY: the helper has no precondition.
    let ts_ns = unsafe { bpf_ktime_get_ns() };
    text(&hit, ts_ns, true, message(exception));
    0
}

/// Address and length of the payload, where it has the form of a `&str` or of a
/// `String`. A vtable begins with drop, size and align.
#[inline(always)]
fn message(exception: u64) -> Option<(u64, u64)> {
    let data = read_user(exception + PAYLOAD)?;
    let vtable = read_user(exception + PAYLOAD + 8)?;
    if read_user(vtable + 16)? != 8 {
        return None;
    }
    let (address, bytes) = match read_user(vtable + 8)? {
        16 => (read_user(data)?, read_user(data + 8)?),
        24 => {
            let (capacity, bytes) = (read_user(data)?, read_user(data + 16)?);
            if bytes > capacity {
                return None;
            }
            (read_user(data + 8)?, bytes)
        }
        _ => return None,
    };
    (bytes <= MAX_MESSAGE_BYTES).then_some((address, bytes))
}

/// Emits the pieces of a text, given by its address and length.
#[inline(always)]
fn text(hit: &Hit, ts_ns: u64, is_message: bool, of: Option<(u64, u64)>) {
    let who = u64::from(hit.cpu) << 32 | u64::from(hit.tid);
    let Some((address, bytes)) = of else {
        let piece = Piece {
            bytes: 0,
            is_message,
            end: End::NoText,
            index: 0,
        };
        piece_of(who, ts_ns, piece.pack(), 0);
        return;
    };
    for index in 0..MAX_PIECES {
        let at = (index * PIECE_BYTES) as u64;
        let left = bytes - at;
        let here = if left > PIECE_BYTES as u64 {
            PIECE_BYTES as u64
        } else {
            left
        };
        let end = if left <= PIECE_BYTES as u64 {
            End::Whole
        } else if index == MAX_PIECES - 1 {
            End::Cut
        } else {
            End::Open
        };
        let piece = Piece {
            bytes: here as u8,
            is_message,
            end,
            index: index as u8,
        };
        let is_read = piece_of(who, ts_ns, piece.pack(), address + at);
        if !is_read || left <= PIECE_BYTES as u64 {
            return;
        }
    }
}

/// Emits the piece with these flags, for the CPU and the thread in `who`; false when
/// it cannot be read. Not inlined, as `emit::lose`.
#[inline(never)]
fn piece_of(who: u64, ts_ns: u64, flags: u16, address: u64) -> bool {
    let hit = Hit {
        kind: RecordKind::TEXT,
        cpu: (who >> 32) as u32,
        tid: who as u32,
    };
    let Some(words) = read_user_piece(address, u64::from(Piece::bytes_in(flags))) else {
        hit.lose(LossCause::UserFault);
        return false;
    };
    hit.emit_at::<Text>(ts_ns, flags, |record| {
        // SAFETY: `emit_at` hands out a record that is ours to write, and its
        // bytes are aligned to a word. Volatile, since three zeros would become a
        // `memset`.
        unsafe {
            let to = (&raw mut (*record).bytes).cast::<u64>();
            to.write_volatile(words[0]);
            to.add(1).write_volatile(words[1]);
            to.add(2).write_volatile(words[2]);
        }
    });
    true
}
