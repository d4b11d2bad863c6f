//! Pairs → declarations.

use pest::Span;

use crate::filter::{Constant, Filter, Operator, Test};
use crate::syntax::{Pair, Rule, SpecError, file};
use crate::{
    Base, Dialect, Emit, Exit, Expression, MAX_STEPS, MAX_VALUE_BYTES, Moment, Object, Pattern,
    Place, Probe, Spec, Type, Value, check, syntax,
};

pub(crate) fn spec(text: &str, dialect: Dialect) -> Result<Spec, SpecError> {
    let mut probes: Vec<Probe> = Vec::new();
    for provider in parts(file(text, dialect)?) {
        let mut parts = parts(provider);
        let provider = parts.next().expect("its name").as_str();
        for pair in parts {
            let span = pair.as_span();
            let probe = probe(pair, provider, dialect)?;
            if probes.iter().any(|other| is_same(other, &probe)) {
                return Err(SpecError::at(span, format!("{probe} is there already")));
            }
            probes.push(probe);
        }
    }
    Ok(Spec { probes })
}

/// The filter of a text that stands alone, for a probe with these values.
pub(crate) fn filter_of(text: &str, values: &[Value]) -> Result<Filter, SpecError> {
    let any_of = parts(syntax::filter(text)?).next().expect("one condition");
    any(any_of, values)
}

fn is_same(one: &Probe, other: &Probe) -> bool {
    (&one.provider, &one.name) == (&other.provider, &other.name)
}

/// A pair's parts without words and signs.
fn parts(pair: Pair<'_>) -> impl Iterator<Item = Pair<'_>> {
    pair.into_inner()
        .filter(|part| !syntax::is_word(part.as_rule()))
}

fn only(pair: Pair<'_>) -> Pair<'_> {
    parts(pair).next().expect("the rule has one part")
}

fn probe(pair: Pair<'_>, provider: &str, dialect: Dialect) -> Result<Probe, SpecError> {
    let span = pair.as_span();
    let line = span.start_pos().line_col().0;
    let mut parts = parts(pair);
    let name = parts.next().expect("its name").as_str();
    let mut probe = Probe {
        provider: provider.to_owned(),
        name: name.to_owned(),
        places: Vec::new(),
        moment: Moment::Entry,
        values: Vec::new(),
        filter: None,
        emit: Emit::Event(format!("{provider}:{name}")),
        line,
    };
    if dialect == Dialect::Usdt {
        probe.places.push(Place::Note);
    }
    let (mut moment, mut filter, mut emit) = (None, None, None);
    for part in parts {
        match part.as_rule() {
            Rule::at => probe.places.push(place(part)?),
            Rule::discovered => {
                let site = only(part).as_str().to_owned();
                probe.places.push(Place::Discovered(site));
            }
            Rule::on => once(&mut moment, part, "on")?,
            Rule::value => {
                let value_span = part.as_span();
                let value = value(part)?;
                check::value(&value, &probe.values, value_span)?;
                probe.values.push(value);
            }
            Rule::condition => once(&mut filter, part, "where")?,
            _ => once(&mut emit, part, "emit")?,
        }
    }
    if let Some(part) = moment {
        probe.moment = moment_of(part);
    }
    probe.emit = match emit {
        Some(part) => emitted(part, &probe)?,
        None if matches!(probe.moment, Moment::Call(_)) => Emit::Span(probe.to_string()),
        None => probe.emit,
    };
    if let Some(part) = filter {
        probe.filter = Some(any(only(part), &probe.values)?);
    }
    check::probe(&probe, span)?;
    Ok(probe)
}

fn once<'a>(slot: &mut Option<Pair<'a>>, part: Pair<'a>, word: &str) -> Result<(), SpecError> {
    if slot.is_some() {
        let twice = format!("a probe has one `{word}`, and this is the second");
        return Err(SpecError::at(part.as_span(), twice));
    }
    *slot = Some(part);
    Ok(())
}

fn place(pair: Pair<'_>) -> Result<Place, SpecError> {
    let mut parts = parts(pair);
    let what = parts.next().expect("where");
    let object = match parts.next() {
        None => Object::Exe,
        Some(object) => {
            let object = only(object);
            match object.as_rule() {
                Rule::exe => Object::Exe,
                Rule::any_object => Object::Any,
                _ => Object::Named(Pattern(text(object))),
            }
        }
    };
    if what.as_rule() == Rule::address {
        let address = number(&only(what))?;
        return Ok(Place::Address { address, object });
    }
    let mut parts = self::parts(what);
    let pattern = parts.next().expect("a name");
    if text(pattern.clone()).is_empty() {
        return Err(SpecError::at(pattern.as_span(), "the name is empty"));
    }
    let offset = parts.next().map_or(Ok(0), |offset| number(&only(offset)))?;
    Ok(Place::Function {
        pattern: text(pattern),
        offset,
        object,
    })
}

fn moment_of(pair: Pair<'_>) -> Moment {
    let mut parts = parts(pair);
    let moment = parts.next().expect("when").as_str();
    let exit = match parts.next() {
        Some(_) => Exit::Uretprobe,
        None => Exit::Instructions,
    };
    match moment {
        "entry" => Moment::Entry,
        "return" => Moment::Return(exit),
        _ => Moment::Call(exit),
    }
}

fn value(pair: Pair<'_>) -> Result<Value, SpecError> {
    let mut parts = parts(pair).peekable();
    let is_field = parts.next().expect("read or let").as_rule() == Rule::read_word;
    let name = parts.next().expect("its name").as_str().to_owned();
    let ty = type_of(&parts.next().expect("its type"))?;
    let source = expression(parts.next().expect("where it is"))?;
    let is_length = |part: &Pair<'_>| part.as_rule() == Rule::expression;
    let length = parts.next_if(is_length).map(expression).transpose()?;
    let (mut unit, mut kind) = (None, None);
    for part in parts {
        let is_unit = part.as_rule() == Rule::unit;
        let name = only(part);
        if is_unit {
            unit = Some(name.as_str().to_owned());
        } else if ["counter", "gauge"].contains(&name.as_str()) {
            kind = Some(name.as_str().to_owned());
        } else {
            let expected = format!("expected `counter` or `gauge`, found {:?}", name.as_str());
            return Err(SpecError::at(name.as_span(), expected));
        }
    }
    Ok(Value {
        name,
        ty,
        source,
        length,
        is_field,
        unit,
        kind,
    })
}

fn type_of(pair: &Pair<'_>) -> Result<Type, SpecError> {
    let pair = only(pair.clone());
    let size = |name: &str| name[1..].parse::<u8>().expect("the rule is digits") / 8;
    match pair.as_rule() {
        Rule::bool => Ok(Type::Bool),
        Rule::address_type => Ok(Type::Address),
        Rule::integer if pair.as_str().starts_with('u') => Ok(Type::Unsigned(size(pair.as_str()))),
        Rule::integer => Ok(Type::Signed(size(pair.as_str()))),
        _ => {
            let mut parts = parts(pair);
            let name = parts.next().expect("its name").as_str();
            let digits = parts.next().expect("its size");
            let bytes = number(&digits)?;
            let bytes = u32::try_from(bytes).ok();
            let Some(bytes) = bytes.filter(|bytes| (1..=MAX_VALUE_BYTES).contains(bytes)) else {
                let reason = format!("a value has 1 to {MAX_VALUE_BYTES} bytes");
                return Err(SpecError::at(digits.as_span(), reason));
            };
            Ok(match name {
                "bytes" => Type::Bytes(bytes),
                "str" => Type::Text(bytes),
                _ => Type::CText(bytes),
            })
        }
    }
}

fn expression(pair: Pair<'_>) -> Result<Expression, SpecError> {
    let span = pair.as_span();
    let mut parts = parts(pair);
    let mut expression = term(parts.next().expect("a term"))?;
    if let Some(sign) = parts.next() {
        let digits = parts.next().expect("a number");
        let plus = i32::try_from(number(&digits)?).ok();
        let plus = plus.map(|plus| if sign.as_str() == "-" { -plus } else { plus });
        let sum = plus.and_then(|plus| expression.plus.checked_add(plus));
        expression.plus =
            sum.ok_or_else(|| SpecError::at(digits.as_span(), "the offset is beyond 2 GiB"))?;
    }
    if expression.steps.len() > MAX_STEPS {
        let reason = format!("at most {MAX_STEPS} pointers are followed");
        return Err(SpecError::at(span, reason));
    }
    Ok(expression)
}

fn term(pair: Pair<'_>) -> Result<Expression, SpecError> {
    let pair = only(pair);
    match pair.as_rule() {
        Rule::dereference => {
            let mut expression = term(only(pair))?;
            expression.steps.push(expression.plus);
            expression.plus = 0;
            Ok(expression)
        }
        Rule::expression => expression(pair),
        _ => Ok(Expression {
            base: base(&pair)?,
            steps: Vec::new(),
            plus: 0,
        }),
    }
}

/// Registers in the order of their numbers in x86-64 instruction encoding.
const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

fn base(pair: &Pair<'_>) -> Result<Base, SpecError> {
    let name = pair.as_str();
    let register = REGISTERS.iter().position(|register| *register == name);
    if let Some(register) = register {
        return Ok(Base::Register(u8::try_from(register).expect("16 of them")));
    }
    let argument = name
        .strip_prefix("arg")
        .and_then(|digits| digits.parse().ok());
    match (name, argument) {
        ("result", _) => Ok(Base::Result),
        ("tid", _) => Ok(Base::Thread),
        (_, Some(argument)) => Ok(Base::Argument(argument)),
        _ => Err(SpecError::at(
            pair.as_span(),
            format!("expected `argN`, a register, `result`, `tid` or `*`, found {name:?}"),
        )),
    }
}

fn any(pair: Pair<'_>, values: &[Value]) -> Result<Filter, SpecError> {
    let parts: Result<Vec<_>, _> = parts(pair).map(|part| all(part, values)).collect();
    Ok(alone(parts?, Filter::Any))
}

fn all(pair: Pair<'_>, values: &[Value]) -> Result<Filter, SpecError> {
    let parts: Result<Vec<_>, _> = parts(pair)
        .map(|part| {
            let part = only(part);
            match part.as_rule() {
                Rule::any_of => any(part, values),
                _ => comparison(part, values).map(Filter::Test),
            }
        })
        .collect();
    Ok(alone(parts?, Filter::All))
}

fn alone(mut parts: Vec<Filter>, several: fn(Vec<Filter>) -> Filter) -> Filter {
    if parts.len() == 1 {
        parts.remove(0)
    } else {
        several(parts)
    }
}

fn comparison(pair: Pair<'_>, values: &[Value]) -> Result<Test, SpecError> {
    let span = pair.as_span();
    let mut parts = parts(pair);
    let name = parts.next().expect("a value");
    let position = |value: &Value| value.name == name.as_str();
    let Some(value) = values.iter().position(position) else {
        let known: Vec<_> = values.iter().map(|value| value.name.as_str()).collect();
        let reason = match known.as_slice() {
            [] => format!("no value {:?}: nothing is read", name.as_str()),
            known => format!("no value {:?}, only {}", name.as_str(), known.join(", ")),
        };
        return Err(SpecError::at(name.as_span(), reason));
    };
    let operator = match parts.next().expect("an operator").as_str() {
        "==" => Operator::Equal,
        "!=" => Operator::NotEqual,
        "<" => Operator::Less,
        "<=" => Operator::LessOrEqual,
        ">" => Operator::Greater,
        ">=" => Operator::GreaterOrEqual,
        "&" => Operator::AnyBit,
        _ => Operator::Starts,
    };
    let constant = constant(parts.next().expect("a constant"))?;
    let test = Test {
        value,
        operator,
        constant,
    };
    check::test(&test, &values[value], span)?;
    Ok(test)
}

fn constant(pair: Pair<'_>) -> Result<Constant, SpecError> {
    let pair = only(pair);
    match pair.as_rule() {
        Rule::boolean => Ok(Constant::Number(u64::from(pair.as_str() == "true"))),
        Rule::text => Ok(Constant::Bytes(text(pair).into_bytes())),
        Rule::hex_bytes => {
            let digits = only(pair);
            let pairs = digits.as_str().as_bytes().chunks_exact(2);
            let byte = |pair: &[u8]| {
                let digits = std::str::from_utf8(pair).expect("ASCII");
                u8::from_str_radix(digits, 16).expect("the rule is hexadecimal digits")
            };
            Ok(Constant::Bytes(pairs.map(byte).collect()))
        }
        _ => {
            let is_negative = pair.as_str().starts_with('-');
            let magnitude = number(&only(pair.clone()))?;
            if !is_negative {
                return Ok(Constant::Number(magnitude));
            }
            let negative = i64::try_from(magnitude).map(|magnitude| -magnitude);
            let too_low = |_| SpecError::at(pair.as_span(), "the number is below -2^63");
            Ok(Constant::Number(negative.map_err(too_low)?.cast_unsigned()))
        }
    }
}

fn emitted(pair: Pair<'_>, probe: &Probe) -> Result<Emit, SpecError> {
    let mut parts = parts(pair);
    let what = parts.next().expect("what");
    let name = parts.next();
    let named = |name: Option<Pair<'_>>| name.map_or_else(|| probe.to_string(), text);
    match what.as_str() {
        "event" => Ok(Emit::Event(named(name))),
        "span" => Ok(Emit::Span(named(name))),
        source => match name {
            None => Ok(Emit::Source(source.to_owned())),
            Some(name) => Err(unnamed(source, name.as_span())),
        },
    }
}

fn unnamed(source: &str, span: Span<'_>) -> SpecError {
    SpecError::at(span, format!("expected `;`: `emit {source}` has no name"))
}

fn text(pair: Pair<'_>) -> String {
    only(pair).as_str().to_owned()
}

fn number(pair: &Pair<'_>) -> Result<u64, SpecError> {
    let digits = pair.as_str();
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    number.map_err(|_| SpecError::at(pair.as_span(), "the number is beyond 64 bits"))
}
