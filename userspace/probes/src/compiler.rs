//! Which Rust a binary was compiled by.
//!
//! In: the comment section. Out: the oldest of the compilers that it names.
//! Never: a version where the section was stripped.

use crate::elf::Image;

const BEFORE: &str = "rustc version ";

/// Major and minor version.
pub(crate) fn oldest(image: &Image<'_>) -> Option<(u32, u32)> {
    in_comment(image.comment())
}

fn in_comment(comment: &[u8]) -> Option<(u32, u32)> {
    comment
        .split(|byte| *byte == 0)
        .filter_map(|text| std::str::from_utf8(text).ok())
        .filter_map(|text| version(text.strip_prefix(BEFORE)?))
        .min()
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::in_comment;

    #[track_caller]
    fn check(comment: &str, expected: Option<(u32, u32)>) {
        assert_eq!(in_comment(comment.as_bytes()), expected);
    }

    #[test]
    fn the_oldest_compiler_counts() {
        check(
            "rustc version 1.95.0 (59807616e 2026-04-14)\0Linker: LLD\0",
            Some((1, 95)),
        );
        check(
            "GCC: 12\0rustc version 1.95.0\0rustc version 1.79.0-nightly\0",
            Some((1, 79)),
        );
        check("", None);
        check("rustc version one", None);
    }
}
