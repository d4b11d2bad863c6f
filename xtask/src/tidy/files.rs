//! How long files are, what they are called and how they begin.
//!
//! In: the source files. Out: each that is too long, has a name that says
//! nothing, or does not say what it is for. A line of code is one that is
//! neither blank nor a comment.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::shell;

/// Folders with sources, and the most lines of code that a file there may have.
const FOLDERS: [(&str, usize); 5] = [
    ("bpf", 250),
    ("demo", 400),
    ("integration", 520),
    ("userspace", 400),
    ("xtask", 400),
];
/// The same for tests, in a file of their own or at the end of one.
const TESTS: usize = 500;
/// Names that do not say what is in the file.
const BANNED: [&str; 7] = [
    "common", "helper", "helpers", "manager", "misc", "util", "utils",
];

/// How many files there are, and what is wrong with them.
pub(super) fn check() -> Result<(usize, Vec<String>)> {
    let mut count = 0;
    let mut found = Vec::new();
    for (folder, limit) in FOLDERS {
        for path in sources(&shell::root().join(folder))? {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let path = path.strip_prefix(shell::root())?;
            count += 1;
            found.extend(
                findings(path, &text, limit)
                    .into_iter()
                    .map(|finding| format!("{}: {finding}", path.display())),
            );
        }
    }
    Ok((count, found))
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                found.extend(sources(&path)?);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn findings(path: &Path, text: &str, limit: usize) -> Vec<String> {
    let mut found = Vec::new();
    let words = path.with_extension("");
    if let Some(word) = words
        .iter()
        .find(|word| BANNED.iter().any(|name| word == name))
    {
        found.push(format!("{} says nothing", word.display()));
    }
    // `foo/tests.rs` is the end of `foo.rs`, which says it.
    if !text.starts_with("//! ") && !path.ends_with("tests.rs") {
        found.push("does not begin with what it is for (//!)".to_owned());
    }
    let is_test = words
        .iter()
        .any(|word| word == "tests" || word == "benches");
    let (code, tests) = if is_test {
        ("", text)
    } else {
        text.split_once("#[cfg(test)]\nmod tests {")
            .unwrap_or((text, ""))
    };
    for (kind, lines, limit) in [
        ("code", code_lines(code), limit),
        ("tests", code_lines(tests), TESTS),
    ] {
        if lines > limit {
            found.push(format!("{lines} lines of {kind}, more than {limit}"));
        }
    }
    found
}

fn code_lines(text: &str) -> usize {
    text.lines()
        .map(str::trim_start)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::findings;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        assert_eq!(findings(Path::new(path), text, 2), expected);
    }

    #[test]
    fn a_file_in_shape() {
        check("a/src/plan.rs", "//! A plan.\n\n// one\nfn f() {\n}\n", &[]);
    }

    #[test]
    fn a_long_file() {
        check(
            "a/src/plan.rs",
            "//! A plan.\nfn f() {\n\n// why\ng();\n}\n",
            &["3 lines of code, more than 2"],
        );
    }

    #[test]
    fn tests_do_not_count_as_code() {
        check(
            "a/src/plan.rs",
            "//! A plan.\nfn f() {\n}\n\n#[cfg(test)]\nmod tests {\nfn g() {\n}\n}\n",
            &[],
        );
        check("a/tests/plan.rs", "//! Tests.\n1\n2\n3\n", &[]);
    }

    #[test]
    fn a_file_without_header_and_name() {
        check(
            "a/src/util.rs",
            "fn f() {}\n",
            &[
                "util says nothing",
                "does not begin with what it is for (//!)",
            ],
        );
    }
}
