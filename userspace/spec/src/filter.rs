//! Which hits count: comparisons of values with constants, by `&&` and `||`.

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// One comparison.
    Test(Test),
    /// All of these.
    All(Vec<Filter>),
    /// One of these.
    Any(Vec<Filter>),
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Index of the value.
    pub value: usize,
    /// How.
    pub operator: Operator,
    /// With what.
    pub constant: Constant,
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `&`: a common bit.
    AnyBit,
    /// `starts`: the begin of a text or of bytes.
    Starts,
}

/// What a value is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constant {
    /// The bits of an integer.
    Number(u64),
    /// The bytes of a text.
    Bytes(Vec<u8>),
}

impl Filter {
    /// Number of its comparisons.
    pub fn tests(&self) -> usize {
        match self {
            Self::Test(_) => 1,
            Self::All(parts) | Self::Any(parts) => parts.iter().map(Self::tests).sum(),
        }
    }
}
