//! What the event of a probe looks like.

use dial9_bpf_spec::{Base, Emit, Moment, Probe, Type, Value};
use dial9_bpf_trace::declared::{Field, FieldKind, Shape};

/// The event of a probe.
pub(super) fn of(probe: &Probe) -> Shape {
    let is_call = matches!(probe.moment, Moment::Call(_));
    let is_late = |value: &&Value| is_call && value.source.base == Base::Result;
    let fields = || probe.values.iter().filter(|value| value.is_field);
    Shape {
        name: probe.event().to_owned(),
        is_span: matches!(probe.emit, Emit::Span(_)),
        first: fields()
            .filter(|value| !is_late(value))
            .map(field)
            .collect(),
        second: fields().filter(is_late).map(field).collect(),
    }
}

fn field(value: &Value) -> Field {
    let kind = match value.ty {
        _ if value.source.base == Base::Thread => FieldKind::Thread,
        Type::Unsigned(_) | Type::Address => FieldKind::Unsigned,
        Type::Signed(_) => FieldKind::Signed,
        Type::Bool => FieldKind::Bool,
        Type::Bytes(_) => FieldKind::Bytes,
        Type::Text(_) | Type::CText(_) => FieldKind::Text,
    };
    Field {
        name: value.name.clone(),
        kind,
        unit: value.unit.clone(),
        measures: value.kind.clone(),
        is_optional: value.ty.max_bytes().is_some() || !value.source.steps.is_empty(),
    }
}
