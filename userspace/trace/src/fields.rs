//! Fields of events that were written, by name.
//!
//! In: a decoded event. Out: a value of its. Never: a panic over an event that lacks it.

use dial9_trace_format::decoder::RawEvent;
use dial9_trace_format::types::FieldValueRef;

/// The field of that name, where the event has it.
pub(crate) fn field<'e, 'a>(
    event: &'e RawEvent<'a, '_>,
    name: &str,
) -> Option<&'e FieldValueRef<'a>> {
    let at = event
        .schema
        .fields()
        .iter()
        .position(|field| field.name() == name)?;
    event.fields.get(at)
}

/// The entries of a segment's metadata; none of another event.
pub(crate) fn metadata_of(event: &RawEvent<'_, '_>) -> Vec<(String, String)> {
    match (event.name, event.fields.first()) {
        ("SegmentMetadataEvent", Some(FieldValueRef::StringMap(entries))) => {
            let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
            entries.iter().map(owned).collect()
        }
        _ => Vec::new(),
    }
}

/// A number; 0 where it is absent.
pub(crate) fn number(event: &RawEvent<'_, '_>, name: &str) -> u64 {
    match field(event, name) {
        Some(FieldValueRef::Varint(value)) => *value,
        _ => 0,
    }
}

/// A text of the batch's pool; nothing where it is absent.
pub(crate) fn text<'f>(event: &RawEvent<'_, 'f>, name: &str) -> Option<&'f str> {
    match field(event, name)? {
        FieldValueRef::PooledString(id) => event.string_pool.get(*id),
        _ => None,
    }
}
