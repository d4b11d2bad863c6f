//! Declarations → what the kernel side runs on.
//!
//! In: a probe, and of a note its operands. Out: a definition for each of its moments, and
//! which values they tell. Never: a value that is read elsewhere than the declaration says:
//! what the kernel side cannot do is an error.

use dial9_bpf_abi::declared::{self as kernel, ACCEPT, Definition, REJECT, Read, operator};

use crate::filter::{Constant, Filter, Operator, Test};
use crate::{Base, Emit, Exit, Expression, Moment, Probe, Type, Value};

/// Registers of the first arguments, by their numbers in instruction encoding: rdi, rsi,
/// rdx, rcx, r8, r9 (System V ABI, AMD64 supplement, 3.2.3).
const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
/// `rax`, which has what a function returns.
const RESULT: u8 = 0;

/// An operand of a note: where an argument is at the note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// Whether it is signed.
    pub is_signed: bool,
    /// Where it is.
    pub place: OperandPlace,
}

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandPlace {
    /// It is this.
    Constant(u64),
    /// In a register, by its number in instruction encoding.
    Register(u8),
    /// In memory.
    Memory {
        /// The register with the address.
        base: u8,
        /// What is added to it, bytes.
        displacement: i32,
        /// Another register that is added, and by how many bits it is shifted before.
        index: Option<(u8, u8)>,
    },
}

/// What a probe runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Of a call: at its entry. Otherwise of the only moment.
    pub first: Definition,
    /// Of a call: at its return.
    pub second: Option<Definition>,
    /// Which of the probe's values the first one tells, in its order.
    pub first_fields: Vec<usize>,
    /// The same of the second.
    pub second_fields: Vec<usize>,
}

/// A declaration that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The note has fewer operands.
    #[error("{probe} reads arg{number}, and the note has {operands} operands")]
    NoOperand {
        /// The probe.
        probe: String,
        /// The argument's number.
        number: u8,
        /// How many there are.
        operands: usize,
    },
    /// It follows too many pointers, together with the note's own.
    #[error(
        "{probe} follows more than {} pointers for {value:?}",
        kernel::MAX_STEPS
    )]
    TooManySteps {
        /// The probe.
        probe: String,
        /// The value.
        value: String,
    },
    /// It has too many values and lengths.
    #[error("{probe} reads more than {} values and lengths", kernel::MAX_READS)]
    TooManyReads {
        /// The probe.
        probe: String,
    },
}

impl Program {
    /// The program of a probe; `operands` are those of the note that it is at, if it is at
    /// one.
    ///
    /// # Errors
    /// Every [`ProgramError`].
    pub fn of(probe: &Probe, operands: Option<&[Operand]>) -> Result<Self, ProgramError> {
        let is_call = matches!(probe.moment, Moment::Call(_));
        let is_late = |value: &Value| is_call && value.source.base == Base::Result;
        let (late, early): (Vec<usize>, Vec<usize>) =
            (0..probe.values.len()).partition(|at| is_late(&probe.values[*at]));
        let maker = Maker { probe, operands };
        let (mut first, first_fields) = maker.definition(&early)?;
        let is_behind = |exit| u8::from(exit == Exit::Uretprobe);
        if let Moment::Return(exit) = probe.moment {
            first.is_behind = is_behind(exit);
        }
        let Moment::Call(exit) = probe.moment else {
            return Ok(Self {
                first,
                second: None,
                first_fields,
                second_fields: Vec::new(),
            });
        };
        first.role = kernel::CALL;
        let (mut second, second_fields) = maker.definition(&late)?;
        second.role = kernel::RETURN;
        second.is_behind = is_behind(exit);
        // The filter is asked once, at the entry.
        second.test_count = 0;
        second.tests_bytes = 0;
        Ok(Self {
            first,
            second: Some(second),
            first_fields,
            second_fields,
        })
    }
}

impl Probe {
    /// Registers that a function's arguments are read from and others that are read, one
    /// bit each, by their numbers in instruction encoding.
    pub fn registers(&self) -> u32 {
        let expressions = self
            .values
            .iter()
            .flat_map(|value| std::iter::once(&value.source).chain(&value.length));
        expressions.fold(0, |registers, expression| {
            registers
                | match expression.base {
                    Base::Argument(number) => ARGUMENTS
                        .get(usize::from(number))
                        .map_or(0, |register| 1 << register),
                    Base::Register(register) => 1 << register,
                    Base::Result | Base::Thread => 0,
                }
        })
    }

    /// The name of its event.
    pub fn event(&self) -> &str {
        match &self.emit {
            Emit::Event(name) | Emit::Span(name) | Emit::Source(name) => name,
        }
    }
}

struct Maker<'a> {
    probe: &'a Probe,
    operands: Option<&'a [Operand]>,
}

impl Maker<'_> {
    /// The definition that reads these values, and which of them are its fields.
    fn definition(&self, values: &[usize]) -> Result<(Definition, Vec<usize>), ProgramError> {
        let value = |at: &usize| &self.probe.values[*at];
        let (fields, others): (Vec<usize>, Vec<usize>) =
            values.iter().partition(|at| value(at).is_field);
        let order: Vec<usize> = fields.iter().chain(&others).copied().collect();
        let mut reads = Vec::new();
        for at in &order {
            reads.push(self.read(value(at), &value(at).source)?);
        }
        for (position, at) in order.iter().enumerate() {
            if let Some(length) = &value(at).length {
                reads[position].length = u8::try_from(reads.len()).unwrap_or(kernel::NO_LENGTH);
                let number = Value {
                    ty: Type::Unsigned(8),
                    length: None,
                    ..value(at).clone()
                };
                reads.push(self.read(&number, length)?);
            }
        }
        if reads.len() > kernel::MAX_READS {
            let probe = self.probe.to_string();
            return Err(ProgramError::TooManyReads { probe });
        }
        let mut definition = Definition {
            read_count: small(reads.len()),
            field_count: small(fields.len()),
            ..Definition::default()
        };
        definition.reads[..reads.len()].copy_from_slice(&reads);
        if let Some(filter) = &self.probe.filter {
            self.tests(filter, &order, &mut definition);
        }
        Ok((definition, fields))
    }

    fn read(&self, value: &Value, expression: &Expression) -> Result<Read, ProgramError> {
        let (mut read, steps, narrow) = self.base(value, expression)?;
        let mut steps = steps;
        for offset in &expression.steps {
            steps.push((*offset, 8));
        }
        if steps.len() > kernel::MAX_STEPS {
            return Err(ProgramError::TooManySteps {
                probe: self.probe.to_string(),
                value: value.name.clone(),
            });
        }
        read.steps = small(steps.len());
        for (at, (offset, size)) in steps.iter().enumerate() {
            read.offsets[at] = *offset;
            read.sizes[at] = *size;
        }
        read.offsets[steps.len()] = expression.plus;
        read.length = kernel::NO_LENGTH;
        match value.ty {
            Type::Bytes(max) | Type::Text(max) => (read.what, read.max) = (kernel::BYTES, max),
            Type::CText(max) => (read.what, read.max) = (kernel::TO_ZERO, max),
            number => {
                read.what = kernel::NUMBER;
                read.size = number.size();
                read.is_signed = u8::from(matches!(number, Type::Signed(_)));
                if let Some(last) = steps.len().checked_sub(1)
                    && !expression.steps.is_empty()
                {
                    read.sizes[last] = number.size();
                } else if let Some((size, is_signed)) = narrow
                    && size < read.size
                {
                    read.size = size;
                    read.is_signed = u8::from(is_signed);
                }
            }
        }
        Ok(read)
    }

    /// Where an expression begins: what is read first, the steps that an operand takes, and
    /// what an operand is, where it is shorter than a register.
    #[expect(clippy::type_complexity, reason = "used once")]
    fn base(
        &self,
        value: &Value,
        expression: &Expression,
    ) -> Result<(Read, Vec<(i32, u8)>, Option<(u8, bool)>), ProgramError> {
        let begin = |register| Read {
            register,
            index: kernel::NO_REGISTER,
            ..Read::default()
        };
        let number = match expression.base {
            Base::Register(register) => return Ok((begin(register), Vec::new(), None)),
            Base::Result => return Ok((begin(RESULT), Vec::new(), None)),
            Base::Thread => return Ok((begin(kernel::THREAD), Vec::new(), None)),
            Base::Argument(number) => number,
        };
        let Some(operands) = self.operands else {
            let register = ARGUMENTS.get(usize::from(number)).copied();
            let register = register.expect("the file is checked for more");
            return Ok((begin(register), Vec::new(), None));
        };
        let Some(operand) = operands.get(usize::from(number)) else {
            return Err(ProgramError::NoOperand {
                probe: self.probe.to_string(),
                number,
                operands: operands.len(),
            });
        };
        let narrow = (operand.size < 8).then_some((operand.size, operand.is_signed));
        // A pointer is not narrow, whatever the note says of it.
        let narrow = narrow.filter(|_| value.ty.max_bytes().is_none());
        Ok(match operand.place {
            OperandPlace::Register(register) => (begin(register), Vec::new(), narrow),
            OperandPlace::Constant(constant) => {
                let mut read = begin(kernel::CONSTANT);
                read.constant = constant;
                (read, Vec::new(), narrow)
            }
            OperandPlace::Memory {
                base,
                displacement,
                index,
            } => {
                let mut read = begin(base);
                if let Some((register, shift)) = index {
                    (read.index, read.shift) = (register, shift);
                }
                (read, vec![(displacement, operand.size)], narrow)
            }
        })
    }

    fn tests(&self, filter: &Filter, order: &[usize], definition: &mut Definition) {
        let mut tests = Vec::new();
        put(filter, (ACCEPT, REJECT), &mut tests);
        definition.test_count = small(tests.len());
        for (at, (test, on_true, on_false)) in tests.into_iter().enumerate() {
            let position = order.iter().position(|value| *value == test.value);
            // A test of a value that another moment reads: there it is asked.
            let Some(position) = position else {
                definition.test_count = 0;
                return;
            };
            let value = &self.probe.values[test.value];
            let is_bytes = value.ty.max_bytes().is_some();
            definition.tests_bytes |= u8::from(is_bytes);
            let mut compiled = kernel::Test {
                value: small(position),
                operator: operator_of(test.operator),
                on_true,
                on_false,
                is_signed: u8::from(matches!(value.ty, Type::Signed(_))),
                is_bytes: u8::from(is_bytes),
                ..kernel::Test::default()
            };
            match &test.constant {
                Constant::Number(number) => compiled.number = *number,
                Constant::Bytes(bytes) => {
                    compiled.length = small(bytes.len());
                    compiled.bytes[..bytes.len()].copy_from_slice(bytes);
                }
            }
            definition.tests[at] = compiled;
        }
    }
}

/// Puts a filter's tests behind those that are there, with where each goes on.
fn put<'a>(filter: &'a Filter, (on_true, on_false): (u8, u8), tests: &mut Vec<(&'a Test, u8, u8)>) {
    let (parts, is_all) = match filter {
        Filter::Test(test) => return tests.push((test, on_true, on_false)),
        Filter::All(parts) => (parts, true),
        Filter::Any(parts) => (parts, false),
    };
    for (at, part) in parts.iter().enumerate() {
        let next = small(tests.len() + part.tests());
        let goes_on = match (at + 1 == parts.len(), is_all) {
            (true, _) => (on_true, on_false),
            (false, true) => (next, on_false),
            (false, false) => (on_true, next),
        };
        put(part, goes_on, tests);
    }
}

fn operator_of(operator: Operator) -> u8 {
    match operator {
        Operator::Equal => operator::EQUAL,
        Operator::NotEqual => operator::NOT_EQUAL,
        Operator::Less => operator::LESS,
        Operator::LessOrEqual => operator::LESS_OR_EQUAL,
        Operator::Greater => operator::GREATER,
        Operator::GreaterOrEqual => operator::GREATER_OR_EQUAL,
        Operator::AnyBit => operator::ANY_BIT,
        Operator::Starts => operator::STARTS,
    }
}

/// A count that the file's limits keep small.
fn small(count: usize) -> u8 {
    u8::try_from(count).expect("the limits of a probe file are below 256")
}
