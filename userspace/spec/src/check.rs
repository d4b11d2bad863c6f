//! What the grammar cannot say: whether a declaration makes sense.

use pest::Span;

use crate::filter::{Constant, Operator, Test};
use crate::syntax::SpecError;
use crate::{
    Base, Emit, MAX_CONSTANT_BYTES, MAX_TESTS, MAX_VALUES, Moment, Place, Probe, Type, Value,
};

/// Arguments in registers (System V ABI, AMD64 supplement, 3.2.3).
const REGISTER_ARGUMENTS: u8 = 6;
/// Operands of a note (systemtap's sys/sdt.h, `STAP_PROBE12`).
const OPERANDS: u8 = 12;

/// A value, beside those before it.
pub(crate) fn value(value: &Value, before: &[Value], span: Span<'_>) -> Result<(), SpecError> {
    let fail = |reason: String| Err(SpecError::at(span, reason));
    let name = &value.name;
    if before.iter().any(|other| other.name == *name) {
        return fail(format!("{name:?} is read twice"));
    }
    if before.len() == MAX_VALUES {
        return fail(format!("a probe reads at most {MAX_VALUES} values"));
    }
    match (value.ty, &value.length) {
        (Type::Bytes(_) | Type::Text(_), _) | (_, None) => {}
        (Type::CText(_), Some(_)) => {
            return fail(format!("{name:?} ends at a zero byte and has no length"));
        }
        (_, Some(_)) => return fail(format!("{name:?} is a number and has no length")),
    }
    let is_short = value.ty.max_bytes().is_none() && value.ty.size() < 8;
    if is_short && !value.source.steps.is_empty() && value.source.plus != 0 {
        return fail(format!(
            "{name:?} is read from memory, and something is added to it"
        ));
    }
    Ok(())
}

/// A comparison with a value.
pub(crate) fn test(test: &Test, value: &Value, span: Span<'_>) -> Result<(), SpecError> {
    let fail = |reason: String| Err(SpecError::at(span, reason));
    let name = &value.name;
    match (&test.constant, value.ty.max_bytes()) {
        (Constant::Bytes(_), None) => fail(format!("{name:?} is a number")),
        (Constant::Number(_), Some(_)) => fail(format!("{name:?} is no number")),
        (Constant::Bytes(bytes), Some(_)) if bytes.len() > MAX_CONSTANT_BYTES => fail(format!(
            "a value is compared with {MAX_CONSTANT_BYTES} bytes at most"
        )),
        (Constant::Bytes(_), Some(_)) => match test.operator {
            Operator::Equal | Operator::NotEqual | Operator::Starts => Ok(()),
            _ => fail(format!("{name:?} is compared by ==, != or starts")),
        },
        (Constant::Number(_), None) if test.operator == Operator::Starts => {
            fail(format!("{name:?} is a number, and `starts` is for bytes"))
        }
        (Constant::Number(number), None) if !fits(*number, value.ty) => {
            fail(format!("{name:?} never has this value"))
        }
        (Constant::Number(_), None) => Ok(()),
    }
}

/// Whether a value of the type can have these bits, extended to 64.
fn fits(bits: u64, ty: Type) -> bool {
    let spare = 64 - u32::from(ty.size()) * 8;
    match ty {
        Type::Bool => bits <= 1,
        Type::Signed(_) => {
            let number = bits.cast_signed();
            (number << spare) >> spare == number
        }
        _ => (bits << spare) >> spare == bits,
    }
}

/// A whole probe.
pub(crate) fn probe(probe: &Probe, span: Span<'_>) -> Result<(), SpecError> {
    let fail = |reason: String| Err(SpecError::at(span, reason));
    if probe.places.is_empty() {
        return fail(format!("{probe} has no `at`"));
    }
    let tests = probe.filter.as_ref().map_or(0, crate::Filter::tests);
    if tests > MAX_TESTS {
        return fail(format!(
            "{probe} has {tests} comparisons, and {MAX_TESTS} can be"
        ));
    }
    let is_span = matches!(probe.emit, Emit::Span(_));
    if is_span && !matches!(probe.moment, Moment::Call(_)) {
        return fail(format!("{probe} is a span, which needs `on call`"));
    }
    if probe.moment != Moment::Entry && probe.places.iter().any(has_no_return) {
        return fail(format!(
            "{probe} is at an address or behind a function's begin, where no return is known"
        ));
    }
    let is_note = probe.places.contains(&Place::Note);
    let expressions = probe
        .values
        .iter()
        .flat_map(|value| std::iter::once(&value.source).chain(&value.length));
    for expression in expressions {
        match (expression.base, probe.moment) {
            (Base::Argument(number), _) if is_note && number >= OPERANDS => {
                return fail(format!(
                    "arg{number}: a note has at most {OPERANDS} operands"
                ));
            }
            (Base::Argument(number), _) if !is_note && number >= REGISTER_ARGUMENTS => {
                return fail(format!(
                    "arg{number}: the first {REGISTER_ARGUMENTS} arguments are in registers, the \
                     others on the stack, from *(rsp + 8) on"
                ));
            }
            (Base::Argument(number), Moment::Return(_)) => {
                return fail(format!(
                    "arg{number} is gone at the return; `on call` keeps it"
                ));
            }
            (Base::Result, Moment::Entry) => {
                return fail("there is no `result` before the return".to_owned());
            }
            _ => {}
        }
    }
    let is_result = |value: &Value| value.source.base == Base::Result;
    let filters = |value: usize| is_result(&probe.values[value]);
    if matches!(probe.moment, Moment::Call(_)) && is_filtered(probe, filters) {
        return fail("the filter of a call is asked at its entry, without its result".to_owned());
    }
    Ok(())
}

fn has_no_return(place: &Place) -> bool {
    matches!(
        place,
        Place::Address { .. } | Place::Function { offset: 1.., .. }
    )
}

fn is_filtered(probe: &Probe, of: impl Fn(usize) -> bool + Copy) -> bool {
    fn any(filter: &crate::Filter, of: impl Fn(usize) -> bool + Copy) -> bool {
        match filter {
            crate::Filter::Test(test) => of(test.value),
            crate::Filter::All(parts) | crate::Filter::Any(parts) => {
                parts.iter().any(|part| any(part, of))
            }
        }
    }
    probe.filter.as_ref().is_some_and(|filter| any(filter, of))
}
