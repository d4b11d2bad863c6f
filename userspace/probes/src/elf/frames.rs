//! Function ranges from the unwind tables, which survive stripping.
//!
//! In: `.eh_frame_hdr` with its sorted table, as every linker writes it
//! (LSB 5.0, chapter 10). Out: the range of each function. Never: the unwind
//! rules themselves.

use std::ops::Range;

use super::Image;

/// `DW_EH_PE_udata4`: the encoding of the table's length.
const UDATA4: u8 = 0x03;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`: the encoding of the table.
const DATA_RELATIVE_4: u8 = 0x3b;
/// Version, three encodings, pointer to `.eh_frame`, length of the table.
const HEADER_BYTES: usize = 12;
const ENTRY_BYTES: usize = 8;
const MAX_FUNCTIONS: usize = 1 << 22;
/// The longest common entry that is looked at.
const MAX_CIE_BYTES: usize = 64;

/// Ranges of all functions with unwind information; `None` if the table has
/// another form.
pub(super) fn read(image: &Image<'_>, address: u64) -> Option<Vec<Range<u64>>> {
    let header = image.bytes(address, HEADER_BYTES)?;
    let &[1, pointer, UDATA4, DATA_RELATIVE_4, ..] = header else {
        return None;
    };
    if pointer_bytes(pointer)? != 4 {
        return None;
    }
    let count = u32_at(header, 8)? as usize;
    let table = image.bytes(
        address.checked_add(HEADER_BYTES as u64)?,
        count.min(MAX_FUNCTIONS).checked_mul(ENTRY_BYTES)?,
    )?;
    let mut known = None;
    let mut functions = Vec::with_capacity(table.len() / ENTRY_BYTES);
    for entry in table.chunks_exact(ENTRY_BYTES) {
        let start = address.wrapping_add_signed(i64::from(i32_at(entry, 0)?));
        let description = address.wrapping_add_signed(i64::from(i32_at(entry, 4)?));
        if let Some(length) = function_bytes(image, description, &mut known)
            && let Some(end) = start.checked_add(length)
        {
            functions.push(start..end);
        }
    }
    Some(functions)
}

/// Length of the function that the frame description at `address` covers.
/// `known` is the last common entry and its pointers' size.
fn function_bytes(
    image: &Image<'_>,
    address: u64,
    known: &mut Option<(u64, usize)>,
) -> Option<u64> {
    let description = image.bytes(address, 24)?;
    if matches!(u32_at(description, 0)?, 0 | u32::MAX) {
        return None;
    }
    let common = address
        .checked_add(4)?
        .checked_sub(u64::from(u32_at(description, 4)?))?;
    let size = match *known {
        Some((address, size)) if address == common => size,
        _ => {
            let size = pointer_bytes(pointer_encoding(image.bytes(common, MAX_CIE_BYTES)?)?)?;
            *known = Some((common, size));
            size
        }
    };
    match size {
        4 => u32_at(description, 12).map(u64::from),
        _ => Some(u64::from_le_bytes(
            description.get(16..24)?.try_into().ok()?,
        )),
    }
}

/// How a common entry says that its functions' addresses are written.
fn pointer_encoding(entry: &[u8]) -> Option<u8> {
    const ABSOLUTE: u8 = 0;
    let version = *entry.get(8)?;
    let rest = entry.get(9..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    let (augmentation, mut rest) = (&rest[..end], &rest[end + 1..]);
    if augmentation.first() != Some(&b'z') {
        return Some(ABSOLUTE);
    }
    skip_leb128(&mut rest)?; // code alignment
    skip_leb128(&mut rest)?; // data alignment
    if version == 1 {
        rest = rest.get(1..)?;
    } else {
        skip_leb128(&mut rest)?; // return address register
    }
    skip_leb128(&mut rest)?; // length of what follows
    for letter in &augmentation[1..] {
        match letter {
            b'R' => return rest.first().copied(),
            b'L' => rest = rest.get(1..)?,
            b'P' => rest = rest.get(1 + pointer_bytes(*rest.first()?)?..)?,
            b'S' | b'B' => {}
            _ => return None,
        }
    }
    Some(ABSOLUTE)
}

/// Size of a pointer in one of the fixed-size encodings.
fn pointer_bytes(encoding: u8) -> Option<usize> {
    match encoding & 0x0f {
        0x03 | 0x0b => Some(4),
        0x00 | 0x04 | 0x0c => Some(8),
        _ => None,
    }
}

fn skip_leb128(bytes: &mut &[u8]) -> Option<()> {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    *bytes = &bytes[end + 1..];
    Some(())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    u32_at(bytes, at).map(u32::cast_signed)
}
