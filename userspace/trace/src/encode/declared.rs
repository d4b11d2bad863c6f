//! Hits of declared probes, each in the schema of its probe.

use dial9_trace_format::types::FieldValue;

use super::Encoder;
use crate::declared::{Field, FieldKind, Read};
use crate::event::DeclaredHit;
use crate::location::Locations;

impl Encoder {
    /// Appends a hit with the values that are in place.
    pub(super) fn declared(&mut self, hit: &DeclaredHit, locations: &Locations) {
        let Some(declaration) = locations.declarations().event(hit.event) else {
            return;
        };
        let (first, second) = locations.values();
        let shape = &declaration.shape;
        let duration = hit.duration_ns.map(FieldValue::Varint);
        let begin = first.each(&shape.first);
        let end = second.each(&shape.second);
        let fields = begin.chain(end).map(|(field, read)| value(field, read));
        self.fields.clear();
        self.fields.extend(duration.into_iter().chain(fields));
        self.wire
            .write_event(&declaration.schema, hit.ts_ns, &self.fields)
            .expect("a Vec takes every byte, and the fields are the schema's");
    }
}

fn value(field: &Field, read: Option<Read<'_>>) -> FieldValue {
    let number = |read| match read {
        Read::Number(number) => number,
        Read::Bytes(_) => 0,
    };
    match (field.kind, read) {
        (_, None) if field.is_optional => FieldValue::None,
        (FieldKind::Bytes, Some(Read::Bytes(bytes))) => FieldValue::Bytes(bytes.to_vec()),
        (FieldKind::Text, Some(Read::Bytes(bytes))) => {
            text(bytes).map_or(FieldValue::None, FieldValue::string)
        }
        (FieldKind::Bytes, _) => FieldValue::Bytes(Vec::new()),
        (FieldKind::Text, _) => FieldValue::None,
        (FieldKind::Unsigned | FieldKind::Thread, read) => {
            FieldValue::Varint(read.map_or(0, number))
        }
        (FieldKind::Signed, read) => FieldValue::I64(read.map_or(0, number).cast_signed()),
        (FieldKind::Bool, read) => FieldValue::Bool(read.map_or(0, number) != 0),
    }
}

/// The text; without a character that was cut at its end, and `None` for what is no UTF-8.
fn text(bytes: &[u8]) -> Option<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn a_text_ends_with_a_whole_character() {
        assert_eq!(text("grün".as_bytes()), Some("grün"));
        assert_eq!(text(&"grü".as_bytes()[..3]), Some("gr"));
        assert_eq!(text(&[0xff, b'a']), None);
    }
}
