//! What a segment says of declared probes: their events, whatever their fields are.
//!
//! In: sealed segments. Out: the events of one name, with their fields by name. Never: an
//! event of dial9's or ours.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use dial9_trace_format::{decoder::RawEvent, types::FieldValueRef};

use crate::segment::{each_event, sealed_segments};

/// A field's value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// It was not read.
    Absent,
    /// An unsigned number.
    Number(u64),
    /// A signed one.
    Signed(i64),
    /// A truth value.
    Bool(bool),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A text.
    Text(String),
}

impl Told {
    /// The number.
    ///
    /// # Panics
    ///
    /// When it is none.
    pub fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            other => panic!("{other:?} is no number"),
        }
    }
}

/// A hit of a declared probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitFacts {
    /// When; of a span, its end, ns.
    pub at_ns: u64,
    /// Its fields.
    pub fields: BTreeMap<String, Told>,
}

/// The events of this name in all segments of a directory, in the order of the trace.
///
/// # Panics
///
/// When a segment does not decode.
pub fn hits(dir: &Path, name: &str) -> Vec<HitFacts> {
    hits_of(&sealed_segments(dir), name)
}

/// The same of these files.
///
/// # Panics
///
/// When one does not decode.
pub fn hits_of(files: &[PathBuf], name: &str) -> Vec<HitFacts> {
    let mut hits = Vec::new();
    for path in files {
        let each = |event: &RawEvent<'_, '_>| {
            if event.name == name {
                let fields = event.field_names().zip(event.fields);
                hits.push(HitFacts {
                    at_ns: event.timestamp_ns,
                    fields: fields
                        .map(|(name, value)| (name.to_owned(), told(value)))
                        .collect(),
                });
            }
        };
        each_event(path, each).unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
    }
    hits
}

fn told(value: &FieldValueRef<'_>) -> Told {
    match value {
        FieldValueRef::None => Told::Absent,
        FieldValueRef::Varint(number) => Told::Number(*number),
        FieldValueRef::I64(number) => Told::Signed(*number),
        FieldValueRef::Bool(is_true) => Told::Bool(*is_true),
        FieldValueRef::Bytes(bytes) => Told::Bytes(bytes.to_vec()),
        FieldValueRef::String(text) => Told::Text((*text).to_owned()),
        other => panic!("{other:?} is of no declared probe"),
    }
}
