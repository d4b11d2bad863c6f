//! Hits of declared probes out of segments.
//!
//! In: a sealed or active file. Out: each such event and its fields, and what the file says
//! of itself. Never: an event of dial9's or ours; memory beyond that of a window.

use std::collections::BTreeMap;
use std::path::Path;

use dial9_bpf_abi::record::RecordKind;
use dial9_trace_format::decoder::RawEvent;
use dial9_trace_format::types::FieldValueRef;

use crate::check::CheckError;
use crate::fields::{metadata_of, number, text};
use crate::stored;

/// A hit.
#[derive(Debug)]
pub struct StoredHit<'e> {
    /// The event's name.
    pub event: &'e str,
    /// When, `CLOCK_MONOTONIC` ns; of a span, its end.
    pub ts_ns: u64,
    /// Its fields, in their order, without those that were not read.
    pub fields: Vec<(&'e str, StoredValue<'e>)>,
}

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredValue<'e> {
    /// An unsigned number.
    Number(u64),
    /// A signed one.
    Signed(i64),
    /// A truth value.
    Bool(bool),
    /// Bytes.
    Bytes(&'e [u8]),
    /// A text.
    Text(&'e str),
}

/// What a file says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The metadata; later values win.
    pub metadata: BTreeMap<String, String>,
    /// Hits of declared probes that were lost in it.
    pub lost: u64,
    /// Why its end could not be read.
    pub torn: Option<String>,
}

/// Whether an event of this name is dial9's or ours, and of no declared probe.
pub fn is_own(name: &str) -> bool {
    name == "SymbolTableEntry" || name.ends_with("Event")
}

/// Takes each hit of a file.
///
/// # Errors
/// [`CheckError`] when it cannot be read or is no trace.
pub fn read(path: &Path, mut each: impl FnMut(&StoredHit<'_>)) -> Result<Told, CheckError> {
    let mut told = Told::default();
    let torn = stored::each_event(path, |event| match event.name {
        "LossEvent" if text(event, "kind") == RecordKind::DECLARED.name() => {
            told.lost += number(event, "lost");
        }
        "SegmentMetadataEvent" => told.metadata.extend(metadata_of(event)),
        name if is_own(name) => {}
        _ => each(&hit(event)),
    });
    told.torn = torn.map_err(|source| CheckError {
        path: path.to_owned(),
        source,
    })?;
    Ok(told)
}

fn hit<'e>(event: &'e RawEvent<'_, '_>) -> StoredHit<'e> {
    let fields = event.schema.fields().iter().zip(event.fields.iter());
    let fields = fields.filter_map(|(field, read)| Some((field.name(), value(read)?)));
    StoredHit {
        event: event.name,
        ts_ns: event.timestamp_ns,
        fields: fields.collect(),
    }
}

fn value<'e>(read: &'e FieldValueRef<'_>) -> Option<StoredValue<'e>> {
    Some(match read {
        FieldValueRef::Varint(number) => StoredValue::Number(*number),
        FieldValueRef::I64(number) => StoredValue::Signed(*number),
        FieldValueRef::Bool(is_true) => StoredValue::Bool(*is_true),
        FieldValueRef::Bytes(bytes) => StoredValue::Bytes(bytes),
        FieldValueRef::String(text) => StoredValue::Text(text),
        _ => return None,
    })
}
