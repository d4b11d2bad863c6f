//! Names that symbols give.
//!
//! In: mangled symbols. Out: demangled names without hashes; the future's type
//! of a poll function. Never: a guess: legacy symbols do not spell generic
//! arguments, so they give no type.

use std::collections::BTreeSet;

use crate::elf::{Image, Symbol};

/// `poll` in `runtime/task/raw.rs`, with its generic arguments.
const POLL: &str = "tokio::runtime::task::raw::poll::<";

/// The name without the hash.
pub(crate) fn demangle(mangled: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(mangled))
}

/// Addresses of the functions whose demangled name `is_it`; `part` is a part of the
/// mangled one.
pub(crate) fn functions(
    image: &Image<'_>,
    part: &str,
    is_it: impl Fn(&str) -> bool,
) -> BTreeSet<u64> {
    image
        .symbols()
        .iter()
        .filter(|symbol| symbol.name.contains(part) && is_it(&demangle(symbol.name)))
        .map(|symbol| symbol.address)
        .collect()
}

/// Demangled name of the function around `address`.
pub(crate) fn function(image: &Image<'_>, address: u64) -> Option<String> {
    let symbols = image.symbols();
    let after = symbols.partition_point(|symbol| symbol.address <= address);
    let symbol = symbols.get(after.checked_sub(1)?)?;
    let is_around = address == symbol.address || address - symbol.address < symbol.bytes;
    is_around.then(|| demangle(symbol.name))
}

/// The future's type of the poll function at `address`; `None` if its symbols
/// spell none or several.
pub(crate) fn task_type(image: &Image<'_>, address: u64) -> Option<String> {
    let symbols = image.symbols();
    let first = symbols.partition_point(|symbol| symbol.address < address);
    let here = symbols[first..]
        .iter()
        .take_while(|symbol| symbol.address == address);
    let mut types = here.filter_map(|symbol| poll_argument(symbol));
    let name = types.next()?;
    types.all(|other| other == name).then_some(name)
}

fn poll_argument(symbol: &Symbol<'_>) -> Option<String> {
    let name = demangle(symbol.name);
    let arguments = name.strip_prefix(POLL)?;
    let end = first_argument_end(arguments)?;
    Some(arguments[..end].to_owned())
}

/// Index of the comma or bracket that ends the first generic argument.
fn first_argument_end(arguments: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut previous = ' ';
    for (index, letter) in arguments.char_indices() {
        match letter {
            ',' if depth == 0 => return Some(index),
            '>' if previous == '-' => {}
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => match depth.checked_sub(1) {
                Some(outer) => depth = outer,
                None => return Some(index),
            },
            _ => {}
        }
        previous = letter;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(arguments: &str, expected: Option<&str>) {
        assert_eq!(
            first_argument_end(arguments).map(|end| &arguments[..end]),
            expected
        );
    }

    #[test]
    fn the_first_argument_ends_at_its_own_comma() {
        check(
            "app::serve::{closure#0}, alloc::sync::Arc<H>>",
            Some("app::serve::{closure#0}"),
        );
        check("a::B<(u8, [u8; 4]), C>, S>", Some("a::B<(u8, [u8; 4]), C>"));
        check("fn(u8) -> Vec<u8>, S>", Some("fn(u8) -> Vec<u8>"));
        check("T>", Some("T"));
        check("T<", None);
    }

    #[test]
    fn hashes_are_left_out() {
        assert_eq!(demangle("_ZN3app4main17h0123456789abcdefE"), "app::main");
    }
}
