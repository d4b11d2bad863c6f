//! Text → pairs of the grammar's rules, and the errors of both that and what follows.

use pest::error::{Error, ErrorVariant, LineColLocation};
use pest::{Parser as _, Span};
use pest_derive::Parser;

use crate::Dialect;

#[derive(Debug, Parser)]
#[grammar = "probes.pest"]
struct Grammar;

pub(crate) type Pair<'a> = pest::iterators::Pair<'a, Rule>;

/// What is wrong in a probe file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {reason}")]
pub struct SpecError {
    /// Line, from 1.
    pub line: usize,
    /// Column, in characters, from 1.
    pub column: usize,
    /// What was expected there, or what is wrong.
    pub reason: String,
}

impl SpecError {
    /// What is wrong at a place.
    pub(crate) fn at(span: Span<'_>, reason: impl Into<String>) -> Self {
        let (line, column) = span.start_pos().line_col();
        Self {
            line,
            column,
            reason: reason.into(),
        }
    }
}

/// The file's pair.
pub(crate) fn file(text: &str, dialect: Dialect) -> Result<Pair<'_>, SpecError> {
    parse(
        text,
        match dialect {
            Dialect::Uprobes => Rule::uprobes,
            Dialect::Usdt => Rule::usdt,
        },
    )
}

/// The pair of a filter that stands alone.
pub(crate) fn filter(text: &str) -> Result<Pair<'_>, SpecError> {
    parse(text, Rule::filter)
}

/// Most parentheses and `*` that may be open at once: the parser goes one call deeper for
/// each.
const MAX_DEPTH: usize = 64;

fn parse(text: &str, rule: Rule) -> Result<Pair<'_>, SpecError> {
    if let Some((line, column)) = too_deep(text) {
        return Err(SpecError {
            line,
            column,
            reason: format!("more than {MAX_DEPTH} parentheses and `*` in one statement"),
        });
    }
    let mut pairs = Grammar::parse(rule, text).map_err(|error| described(&error, text))?;
    Ok(pairs.next().expect("the rule is one pair"))
}

/// Where a statement, whose ends are `;` and braces, has too many. Those in texts and
/// comments count as well.
fn too_deep(text: &str) -> Option<(usize, usize)> {
    let mut depth = 0;
    for (line, content) in text.lines().enumerate() {
        for (column, character) in content.chars().enumerate() {
            match character {
                '(' | '*' => depth += 1,
                ';' | '{' | '}' => depth = 0,
                _ => {}
            }
            if depth > MAX_DEPTH {
                return Some((line + 1, column + 1));
            }
        }
    }
    None
}

fn described(error: &Error<Rule>, text: &str) -> SpecError {
    let (LineColLocation::Pos((line, column)) | LineColLocation::Span((line, column), _)) =
        error.line_col;
    let expected = match &error.variant {
        ErrorVariant::ParsingError { positives, .. } => one_of(positives),
        ErrorVariant::CustomError { message } => message.clone(),
    };
    let found = found(text, line, column);
    SpecError {
        line,
        column,
        reason: format!("expected {expected}, found {found}"),
    }
}

fn one_of(rules: &[Rule]) -> String {
    let mut names: Vec<&str> = rules.iter().map(|rule| name(*rule)).collect();
    names.dedup();
    match names.split_last() {
        None => "something else".to_owned(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// What stands at a place: a word, or a character.
fn found(text: &str, line: usize, column: usize) -> String {
    let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let rest = line.chars().skip(column.saturating_sub(1));
    let rest: String = rest.take(40).collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let word = rest.split(|c| !is_word(c)).next().unwrap_or_default();
    match (word, rest.chars().next()) {
        ("", None) if line.is_empty() => "the end".to_owned(),
        ("", None) => "the line's end".to_owned(),
        ("", Some(character)) => format!("{character:?}"),
        (word, _) => format!("{word:?}"),
    }
}

/// Whether a rule is there for its errors only: a word, or a sign.
pub(crate) fn is_word(rule: Rule) -> bool {
    matches!(
        rule,
        Rule::EOI
            | Rule::provider_word
            | Rule::probe_word
            | Rule::at_word
            | Rule::in_word
            | Rule::on_word
            | Rule::discovered_word
            | Rule::unit_word
            | Rule::kind_word
            | Rule::where_word
            | Rule::emit_word
            | Rule::open
            | Rule::close
            | Rule::open_square
            | Rule::close_square
            | Rule::open_round
            | Rule::close_round
            | Rule::end
            | Rule::colon
            | Rule::comma
            | Rule::equals
            | Rule::star
    )
}

/// How a rule is called in an error.
fn name(rule: Rule) -> &'static str {
    match rule {
        Rule::EOI => "the end",
        Rule::provider_word
        | Rule::uprobes_provider
        | Rule::usdt_provider
        | Rule::uprobes
        | Rule::usdt => "`provider`",
        Rule::probe_word | Rule::uprobe | Rule::note => "`probe`",
        Rule::at_word | Rule::at => "`at`",
        Rule::in_word | Rule::object => "`in`",
        Rule::exe => "`exe`",
        Rule::any_object => "`any`",
        Rule::discovered_word | Rule::discovered => "`discovered`",
        Rule::on_word | Rule::on => "`on`",
        Rule::moment => "`entry`, `return` or `call`",
        Rule::uretprobe => "`uretprobe`",
        Rule::read_word => "`read`",
        Rule::let_word => "`let`",
        Rule::value => "`read` or `let`",
        Rule::where_word | Rule::condition => "`where`",
        Rule::emit_word | Rule::emit => "`emit`",
        Rule::unit_word | Rule::unit => "`unit`",
        Rule::kind_word | Rule::kind => "`kind`",
        Rule::r#type => "a type: u8 to u64, i8 to i64, bool, address, bytes[N], str[N] or cstr[N]",
        Rule::integer => "an integer type",
        Rule::bool => "`bool`",
        Rule::address_type => "`address`",
        Rule::sized | Rule::sized_name => "`bytes[N]`, `str[N]` or `cstr[N]`",
        Rule::expression | Rule::term | Rule::base | Rule::dereference => {
            "`argN`, a register, `result`, `tid` or `*`"
        }
        Rule::sign => "`+` or `-`",
        Rule::operator | Rule::starts => "`==`, `!=`, `<`, `<=`, `>`, `>=`, `&` or `starts`",
        Rule::constant | Rule::signed => "a number, a text, x\"…\", `true` or `false`",
        Rule::boolean => "`true` or `false`",
        Rule::hex_bytes | Rule::hex_digits => "x\"…\" with pairs of hexadecimal digits",
        Rule::comparison | Rule::test | Rule::all_of | Rule::any_of | Rule::filter => {
            "a comparison"
        }
        Rule::function | Rule::text | Rule::inner => "a text in quotes",
        Rule::address | Rule::number => "a number",
        Rule::offset => "`+`",
        Rule::ident | Rule::label => "a name",
        Rule::open => "`{`",
        Rule::close => "`}`",
        Rule::open_square => "`[`",
        Rule::close_square => "`]`",
        Rule::open_round => "`(`",
        Rule::close_round => "`)`",
        Rule::end => "`;`",
        Rule::colon => "`:`",
        Rule::comma => "`,`",
        Rule::equals => "`=`",
        Rule::star => "`*`",
        Rule::WHITESPACE | Rule::COMMENT | Rule::letter => "a space",
    }
}
