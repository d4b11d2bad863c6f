//! Hits of declared probes.

use dial9_bpf_abi::declared::{Declared, MAX_FIELDS};

use super::header;

/// Bytes of the record without what is behind it.
const FIXED: usize = size_of::<Declared>();

/// A record, and what is behind it; `None` where it is shorter than it says.
pub(super) fn declared(bytes: &[u8]) -> Option<Declared> {
    let (words, _) = bytes.get(..FIXED)?.as_chunks::<8>();
    let words: &[[u8; 8]; FIXED / 8] = words.try_into().ok()?;
    let [w, ts, sp, facts, fields @ ..] = words.map(u64::from_ne_bytes);
    let fields: [u64; MAX_FIELDS] = fields;
    let [d0, d1, p0, p1, c0, c1, b0, b1] = facts.to_ne_bytes();
    let record = Declared {
        header: header(w, ts),
        sp,
        definition: u16::from_ne_bytes([d0, d1]),
        present: u16::from_ne_bytes([p0, p1]),
        field_count: u16::from_ne_bytes([c0, c1]),
        bytes: u16::from_ne_bytes([b0, b1]),
        fields,
    };
    let behind = bytes.len() - FIXED;
    (behind == usize::from(record.bytes).next_multiple_of(8)).then_some(record)
}

/// What is behind the record: the bytes of its fields.
pub(crate) fn bytes_of<'a>(record: &Declared, bytes: &'a [u8]) -> &'a [u8] {
    let behind = bytes.get(FIXED..).unwrap_or_default();
    behind.get(..record.bytes.into()).unwrap_or_default()
}

pub(super) fn put_declared(record: &Declared, mut put: impl FnMut(u64)) {
    let Declared {
        header: _,
        sp,
        definition,
        present,
        field_count,
        bytes,
        fields,
    } = *record;
    put(sp);
    let [d0, d1] = definition.to_ne_bytes();
    let [p0, p1] = present.to_ne_bytes();
    let [c0, c1] = field_count.to_ne_bytes();
    let [b0, b1] = bytes.to_ne_bytes();
    put(u64::from_ne_bytes([d0, d1, p0, p1, c0, c1, b0, b1]));
    fields.into_iter().for_each(put);
}
