//! Names that symbols and debug information give.
//!
//! In: mangled symbols, names of debug entries. Out: demangled names without hashes; the
//! future's types of a poll function. Never: a guess; a name of several where one
//! function serves more types than it has names.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use crate::elf::{Image, Symbol};

/// The functions of a task vtable (`runtime/task/raw.rs`).
const RAW: &str = "tokio::runtime::task::raw::";
/// Those whose first generic argument is the future's type: all but `schedule`.
const OF_FUTURES: [&str; 6] = [
    "poll",
    "dealloc",
    "try_read_output",
    "drop_join_handle_slow",
    "drop_abort_handle",
    "shutdown",
];
/// The longest demangled name, bytes. References in a name make it grow
/// exponentially.
const MAX_NAME_BYTES: usize = 1 << 16;
/// Bytes of all the names of a plan, mangled and not.
const MAX_BYTES: usize = 128 << 20;
/// Names of one function that are looked at.
const MAX_ALIASES: usize = 64;

/// The name without the hash; `None` for one that is too long.
pub(crate) fn demangle(mangled: &str) -> Option<String> {
    let mut name = Limited(String::new());
    write!(name, "{:#}", rustc_demangle::demangle(mangled)).ok()?;
    Some(name.0)
}

/// A text of at most [`MAX_NAME_BYTES`].
struct Limited(String);

impl fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Addresses of the functions whose demangled name `is_it`; `part` is a part of the
/// mangled one. `None` if that is a part of too many.
pub(crate) fn functions(
    image: &Image<'_>,
    part: &str,
    is_it: impl Fn(&str) -> bool,
) -> Option<BTreeSet<u64>> {
    let symbols = image.symbols();
    let found = symbols.mentioning(part)?.into_iter().filter(|symbol| {
        let name = symbols.name(symbol).and_then(demangle);
        name.is_some_and(|name| is_it(&name))
    });
    Some(found.map(|symbol| symbol.address).collect())
}

/// Gives names, until it has read and written [`MAX_BYTES`].
#[derive(Debug)]
pub(crate) struct Namer<'image> {
    image: &'image Image<'image>,
    left: usize,
}

impl<'image> Namer<'image> {
    pub(crate) fn of(image: &'image Image<'image>) -> Self {
        Self {
            image,
            left: MAX_BYTES,
        }
    }

    /// Demangled name of the function around `address`.
    pub(crate) fn function(&mut self, address: u64) -> Option<String> {
        let functions = self.image.symbols().functions();
        let after = functions.partition_point(|symbol| symbol.address <= address);
        let symbol = functions.get(after.checked_sub(1)?)?;
        let is_around =
            address == symbol.address || address - symbol.address < u64::from(symbol.bytes);
        is_around.then(|| self.name(symbol))?
    }

    /// Demangled names of the function at `address`.
    pub(crate) fn all(&mut self, address: u64) -> Vec<String> {
        let functions = self.image.symbols().functions();
        let first = functions.partition_point(|symbol| symbol.address < address);
        let here = functions[first..]
            .iter()
            .take_while(|symbol| symbol.address == address)
            .take(MAX_ALIASES);
        here.filter_map(|symbol| self.name(symbol)).collect()
    }

    /// The future's types that v0 symbols of a vtable's function at `address` spell.
    pub(crate) fn task_types(&mut self, address: u64) -> BTreeSet<String> {
        let names = self.all(address);
        let types = names.iter().filter_map(|name| {
            let (_, arguments) = of_future(name)?;
            future(arguments.strip_prefix("::<")?)
        });
        types.collect()
    }

    fn name(&mut self, symbol: &Symbol) -> Option<String> {
        let mangled = self.image.symbols().name(symbol)?;
        self.left = self.left.checked_sub(mangled.len())?;
        let name = demangle(mangled);
        let bytes = name.as_ref().map_or(MAX_NAME_BYTES, String::len);
        self.left = self.left.checked_sub(bytes)?;
        name
    }
}

/// The future's type of a function that debug information calls `name`, as in
/// `poll<app::Work, ...>`, and symbols `mangled`, if it is one of a task vtable.
pub(crate) fn debug_type(mangled: &str, name: &str) -> Option<String> {
    let whole = demangle(mangled)?;
    let (function, _) = of_future(&whole)?;
    future(name.strip_prefix(function)?.strip_prefix('<')?)
}

/// The function of a task vtable that this is the name of, and what follows.
fn of_future(name: &str) -> Option<(&'static str, &str)> {
    let rest = name.strip_prefix(RAW)?;
    OF_FUTURES.into_iter().find_map(|function| {
        let after = rest.strip_prefix(function)?;
        (after.is_empty() || after.starts_with("::<")).then_some((function, after))
    })
}

fn future(arguments: &str) -> Option<String> {
    let (future, _) = first_argument(arguments)?;
    Some(future.to_owned())
}

/// The first generic argument, and what follows it.
pub(crate) fn first_argument(arguments: &str) -> Option<(&str, &str)> {
    Some(arguments.split_at(first_argument_end(arguments)?))
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
    fn debug_information_spells_a_future_in_the_name_of_a_vtables_function() {
        let poll = "_ZN5tokio7runtime4task3raw4poll17h0123456789abcdefE";
        let name = "poll<app::serve::{async_fn_env#0}, alloc::sync::Arc<app::H>>";
        let expected = Some("app::serve::{async_fn_env#0}".to_owned());
        assert_eq!(debug_type(poll, name), expected);
        assert_eq!(debug_type(poll, "poll"), None);
        assert_eq!(debug_type(poll, "dealloc<app::Work, app::H>"), None);
        let other = "_ZN5tokio7runtime4task3raw8schedule17h0123456789abcdefE";
        assert_eq!(debug_type(other, "schedule<app::H>"), None);
        let harness = "_ZN5tokio7runtime4task7harness4poll17h0123456789abcdefE";
        assert_eq!(debug_type(harness, name), None);
    }

    #[test]
    fn hashes_are_left_out() {
        let name = demangle("_ZN3app4main17h0123456789abcdefE");
        assert_eq!(name.as_deref(), Some("app::main"));
    }

    /// A tuple of twice the tuple before it, by references, 20 times.
    #[test]
    fn a_name_that_grows_exponentially_is_none() {
        let mut name = "_RINvC1a1fTyyE".to_owned();
        let mut last = name.find('T').unwrap();
        for _ in 0..20 {
            let reference = format!("B{}_", base_62(last - 2));
            last = name.len();
            name.extend(["T", &reference, &reference, "E"]);
        }
        name.push('E');
        let short = format!("{}E", &name[..name.find('B').unwrap() - 1]);
        assert_eq!(demangle(&short).as_deref(), Some("a::f::<(u64, u64)>"));
        assert!(demangle(&name).is_none());
    }

    /// What follows the `B` of a reference (RFC 2603), less its end.
    fn base_62(number: usize) -> String {
        const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let mut rest = number - 1;
        let mut digits = vec![char::from(DIGITS[rest % 62])];
        while rest >= 62 {
            rest /= 62;
            digits.insert(0, char::from(DIGITS[rest % 62]));
        }
        digits.into_iter().collect()
    }
}
