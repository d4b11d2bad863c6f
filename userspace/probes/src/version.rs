//! Tokio's version, from the source paths of its panic messages.
//!
//! In: read-only data. Out: `1.54.1` of `…/tokio-1.54.1/src/…`. Never: a
//! version where the paths were remapped or left out.

use memchr::memmem;

use crate::elf::Image;

const BEFORE: &[u8] = b"/tokio-";
const AFTER: &[u8] = b"/src/";
/// The longest version looked at, bytes.
const MAX_BYTES: usize = 32;

/// The first version found.
pub(crate) fn find(image: &Image<'_>) -> Option<String> {
    image.constants().find_map(in_bytes)
}

fn in_bytes(bytes: &[u8]) -> Option<String> {
    memmem::find_iter(bytes, BEFORE).find_map(|at| version(&bytes[at + BEFORE.len()..]))
}

fn version(bytes: &[u8]) -> Option<String> {
    let bytes = &bytes[..bytes.len().min(MAX_BYTES)];
    let end = bytes
        .windows(AFTER.len())
        .position(|window| window == AFTER)?;
    let version = std::str::from_utf8(&bytes[..end]).ok()?;
    let is_version = version.starts_with(|letter: char| letter.is_ascii_digit())
        && version
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte));
    is_version.then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &str, expected: Option<&str>) {
        assert_eq!(in_bytes(bytes.as_bytes()).as_deref(), expected);
    }

    #[test]
    fn the_version_is_between_the_name_and_the_sources() {
        check(
            "/registry/tokio-util-0.7.1/src/a.rs/tokio-1.54.1/src/lib.rs",
            Some("1.54.1"),
        );
        check("/tokio-1.54.1-rc.1/src/lib.rs", Some("1.54.1-rc.1"));
        check("/tokio-1.54.1/tests/a.rs", None);
        check("/tokio-", None);
    }
}
