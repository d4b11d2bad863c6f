//! What declared probes tell: the schema of each, and the values of a hit.
//!
//! In: the shapes of their events, and what a hit read. Out: values by field. Never: a
//! value that was not read: it is absent.

use dial9_bpf_abi::declared::MAX_FIELDS;
use dial9_trace_format::encoder::Schema;
use dial9_trace_format::schema::{FieldAnnotation, FieldDef, SchemaEntry};
use dial9_trace_format::types::FieldType;

/// What a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// An unsigned integer, or an address.
    Unsigned,
    /// A signed integer.
    Signed,
    /// A truth value.
    Bool,
    /// Bytes.
    Bytes,
    /// A text; absent where it is no UTF-8.
    Text,
    /// The thread.
    Thread,
}

/// A field of a declared event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: FieldKind,
    /// Its unit, as `bytes`.
    pub unit: Option<String>,
    /// `counter` or `gauge`.
    pub measures: Option<String>,
    /// Whether reading it can fail, so that it may be absent.
    pub is_optional: bool,
}

/// The event of a declared probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name of its schema.
    pub name: String,
    /// Whether it is a span.
    pub is_span: bool,
    /// Fields that are read at the hit; of a span, at its begin.
    pub first: Vec<Field>,
    /// Of a span, those that are read at its end.
    pub second: Vec<Field>,
}

/// Which definition is of which event.
#[derive(Clone, Debug, Default)]
pub struct Declarations {
    /// By the definition's index: the event's, and whether it is a span's end.
    definitions: Vec<(usize, Moment)>,
    events: Vec<Declaration>,
}

/// A moment of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Hit,
    Begin,
    End,
}

/// An event and its schema.
#[derive(Clone, Debug)]
pub(crate) struct Declaration {
    pub(crate) shape: Shape,
    pub(crate) schema: Schema,
}

impl Declarations {
    /// These events, and which of them each program makes, in the order of the programs: a
    /// span's has two definitions, every other one.
    ///
    /// # Panics
    ///
    /// When a program is of no event.
    pub fn new(shapes: impl IntoIterator<Item = Shape>, programs: &[usize]) -> Self {
        let with_schema = |shape| Declaration {
            schema: schema(&shape),
            shape,
        };
        let events: Vec<Declaration> = shapes.into_iter().map(with_schema).collect();
        let definitions = programs.iter().flat_map(|event| {
            let moments: &[Moment] = if events[*event].shape.is_span {
                &[Moment::Begin, Moment::End]
            } else {
                &[Moment::Hit]
            };
            moments.iter().map(|moment| (*event, *moment))
        });
        Self {
            definitions: definitions.collect(),
            events,
        }
    }

    /// The event of a definition, and which moment it is.
    pub(crate) fn of(&self, definition: u16) -> Option<(usize, Moment)> {
        self.definitions.get(usize::from(definition)).copied()
    }

    pub(crate) fn event(&self, event: usize) -> Option<&Declaration> {
        self.events.get(event)
    }
}

fn schema(shape: &Shape) -> Schema {
    let mut fields = Vec::new();
    let mut annotations = Vec::new();
    let mut annotate = |fields: &[FieldDef], key: &str, value: &str| {
        let index = u16::try_from(fields.len()).expect("fewer than 2^16 fields");
        annotations.push(FieldAnnotation::new(index, key, value));
    };
    if shape.is_span {
        annotate(&fields, "unit", "ns");
        annotate(&fields, "role", "span.duration");
        fields.push(FieldDef::new("duration_ns", FieldType::Varint));
    }
    for field in shape.first.iter().chain(&shape.second) {
        if let Some(unit) = &field.unit {
            annotate(&fields, "unit", unit);
        }
        if let Some(measures) = &field.measures {
            annotate(&fields, "kind", measures);
        }
        if field.kind == FieldKind::Thread {
            annotate(&fields, "role", "thread_id");
        }
        fields.push(FieldDef::new(&*field.name, wire_type(field)));
    }
    Schema::from_entry(SchemaEntry::with_annotations(
        &*shape.name,
        fields,
        annotations,
    ))
}

fn wire_type(field: &Field) -> FieldType {
    let (plain, optional) = match field.kind {
        FieldKind::Unsigned | FieldKind::Thread => (FieldType::Varint, FieldType::OptionalVarint),
        FieldKind::Signed => (FieldType::I64, FieldType::OptionalI64),
        FieldKind::Bool => (FieldType::Bool, FieldType::OptionalBool),
        FieldKind::Bytes => (FieldType::Bytes, FieldType::OptionalBytes),
        FieldKind::Text => (FieldType::String, FieldType::OptionalString),
    };
    if field.is_optional { optional } else { plain }
}

/// What one hit has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    /// Bit 0: the first field was read.
    pub(crate) present: u16,
    /// Numbers, and lengths of bytes.
    pub(crate) numbers: [u64; MAX_FIELDS],
    /// All bytes, one after the other.
    pub(crate) bytes: Vec<u8>,
}

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Values {
    /// Takes a hit's values in place of those before.
    pub(crate) fn set(&mut self, present: u16, numbers: &[u64; MAX_FIELDS], bytes: &[u8]) {
        self.present = present;
        self.numbers = *numbers;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// Each field with its value, where it was read.
    pub(crate) fn each<'a>(
        &'a self,
        fields: &'a [Field],
    ) -> impl Iterator<Item = (&'a Field, Option<Read<'a>>)> {
        let mut rest = self.bytes.as_slice();
        fields.iter().enumerate().map(move |(at, field)| {
            let is_present = self.present >> at & 1 == 1;
            let number = self.numbers.get(at).copied().unwrap_or_default();
            let read = match field.kind {
                FieldKind::Bytes | FieldKind::Text if is_present => {
                    let length = usize::try_from(number).unwrap_or(usize::MAX);
                    let (bytes, behind) = rest.split_at_checked(length).unwrap_or_default();
                    rest = behind;
                    Read::Bytes(bytes)
                }
                _ => Read::Number(number),
            };
            (field, is_present.then_some(read))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, kind: FieldKind) -> Field {
        Field {
            name: name.to_owned(),
            kind,
            unit: None,
            measures: None,
            is_optional: true,
        }
    }

    #[test]
    fn bytes_are_told_apart_by_their_lengths() {
        let fields = [
            field("a", FieldKind::Bytes),
            field("b", FieldKind::Unsigned),
            field("c", FieldKind::Text),
            field("d", FieldKind::Bytes),
        ];
        let mut values = Values::default();
        values.set(0b1011, &[2, 9, 0, 3, 0, 0, 0, 0], b"xyabc");
        let read: Vec<_> = values.each(&fields).map(|(_, read)| read).collect();
        let expected = [
            Some(Read::Bytes(b"xy")),
            Some(Read::Number(9)),
            None,
            Some(Read::Bytes(b"abc")),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn a_span_has_two_definitions() {
        let shape = |name: &str, is_span| Shape {
            name: name.to_owned(),
            is_span,
            first: vec![field("x", FieldKind::Thread)],
            second: Vec::new(),
        };
        let declarations = Declarations::new([shape("a", true), shape("b", false)], &[0, 1, 0]);
        assert_eq!(declarations.of(0), Some((0, Moment::Begin)));
        assert_eq!(declarations.of(1), Some((0, Moment::End)));
        assert_eq!(declarations.of(2), Some((1, Moment::Hit)));
        assert_eq!(declarations.of(4), Some((0, Moment::End)));
        assert_eq!(declarations.of(5), None);
        let schema = &declarations.event(0).expect("there").schema;
        let names: Vec<_> = schema.fields().iter().map(FieldDef::name).collect();
        assert_eq!(names, ["duration_ns", "x"]);
    }
}
