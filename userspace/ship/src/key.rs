//! Names of objects.
//!
//! In: the identity and the start of a segment. Out: its key in dial9's layout,
//! version 1. Never: anything that is not a function of the segment, so that a
//! second put overwrites the first; a clock.
//!
//! ```text
//! {prefix/}version=1/date=YYYY-MM-DD/service=S/time=HHMM/instance=I/boot=B/{epoch_secs}-{index}.bin.gz
//! ```
//!
//! Date and time are the UTC of the segment's start. Readers list by date,
//! service and time, and decode the escapes of each value.

use chrono::DateTime;

use crate::convert::Encoding;
use crate::identity::Identity;

const NS_PER_S: u64 = 1_000_000_000;

/// What tells a segment from the others of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordinal {
    /// Start of the segment, ns since 1970.
    pub started_unix_ns: u64,
    /// Its index in the spool.
    pub index: u64,
}

impl Ordinal {
    /// Start of the segment, whole seconds since 1970.
    pub fn epoch_secs(self) -> u64 {
        self.started_unix_ns / NS_PER_S
    }
}

/// The key of a segment. The prefix is taken as it is, but for slashes at its
/// ends; an empty one is none.
pub fn object_key(
    prefix: &str,
    identity: &Identity,
    ordinal: Ordinal,
    encoding: Encoding,
) -> String {
    let Identity {
        service,
        instance,
        boot_id,
    } = identity;
    let epoch_secs = ordinal.epoch_secs();
    // Nanoseconds in 64 bits end in the year 2554.
    let started = DateTime::from_timestamp_secs(epoch_secs.cast_signed()).unwrap_or_default();
    let prefix = prefix.trim_matches('/');
    let slash = if prefix.is_empty() { "" } else { "/" };
    format!(
        "{prefix}{slash}version=1/date={}/service={}/time={}/instance={}/boot={}/{epoch_secs}-{}.bin{}",
        started.format("%Y-%m-%d"),
        escape(service),
        started.format("%H%M"),
        escape(instance),
        escape(boot_id),
        ordinal.index,
        encoding.suffix(),
    )
}

/// A value as Hive writes it in a path: `%XX` for the ASCII characters that it
/// escapes, all others as they are.
pub fn escape(value: &str) -> String {
    escape_where(value, is_escaped)
}

/// A value for a header: visible ASCII, everything else as `%XX` of its bytes.
pub(crate) fn header_value(value: &str) -> String {
    escape_where(value, |char| !(' '..='~').contains(&char) || char == '%')
}

fn escape_where(value: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(value.len());
    for char in value.chars() {
        if is_escaped(char) {
            for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                escaped.push('%');
                escaped.push(hex(byte >> 4));
                escaped.push(hex(byte & 0xf));
            }
        } else {
            escaped.push(char);
        }
    }
    escaped
}

fn hex(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).map_or('0', |digit| digit.to_ascii_uppercase())
}

fn is_escaped(char: char) -> bool {
    char.is_ascii_control() || "\"#%'*/:=?\\{[]^".contains(char)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(prefix: &str, service: &str, instance: &str, started_s: u64) -> String {
        let identity = Identity {
            service: service.to_owned(),
            instance: instance.to_owned(),
            boot_id: "abcd-17".to_owned(),
        };
        let ordinal = Ordinal {
            started_unix_ns: started_s * NS_PER_S + 999_999_999,
            index: 3,
        };
        object_key(prefix, &identity, ordinal, Encoding::Gzip)
    }

    #[test]
    fn the_layout_is_dial9s() {
        // The same facts as in a test of dial9's own uploader.
        assert_eq!(
            key(
                "traces",
                "checkout-api",
                "us-east-1/i-0abc123",
                1_741_209_000
            ),
            "traces/version=1/date=2025-03-05/service=checkout-api/time=2110/\
             instance=us-east-1%2Fi-0abc123/boot=abcd-17/1741209000-3.bin.gz"
        );
        assert_eq!(
            key(
                "company/date=archive/%25",
                "payments/api",
                "cluster/worker=blue%1",
                1_741_209_000
            ),
            "company/date=archive/%25/version=1/date=2025-03-05/service=payments%2Fapi/time=2110/\
             instance=cluster%2Fworker%3Dblue%251/boot=abcd-17/1741209000-3.bin.gz"
        );
    }

    #[test]
    fn no_prefix_begins_at_the_version() {
        for prefix in ["", "/", "//"] {
            assert!(
                key(prefix, "s", "i", 0)
                    .starts_with("version=1/date=1970-01-01/service=s/time=0000/")
            );
        }
        assert!(key("/a/b/", "s", "i", 0).starts_with("a/b/version=1/"));
    }

    #[test]
    fn days_and_minutes_are_of_utc() {
        for (started_s, date, time) in [
            (951_782_399, "2000-02-28", "2359"),
            (951_782_400, "2000-02-29", "0000"),
            (1_709_251_199, "2024-02-29", "2359"),
            (4_107_542_400, "2100-03-01", "0000"),
            (18_446_744_072, "2554-07-21", "2334"),
        ] {
            let key = key("", "s", "i", started_s);
            assert!(key.contains(&format!("/date={date}/")), "{key}");
            assert!(key.contains(&format!("/time={time}/")), "{key}");
        }
    }

    #[test]
    fn archives_say_what_they_are() {
        for (encoding, end) in [
            (Encoding::Gzip, "/7-3.bin.gz"),
            (Encoding::Zstd, "/7-3.bin.zst"),
            (Encoding::Raw, "/7-3.bin"),
        ] {
            let ordinal = Ordinal {
                started_unix_ns: 7 * NS_PER_S,
                index: 3,
            };
            let key = object_key("", &Identity::default(), ordinal, encoding);
            assert!(key.ends_with(end), "{key}");
        }
    }

    #[test]
    fn values_are_escaped_by_hives_table() {
        for (value, escaped) in [
            ("plain-1.2_3~", "plain-1.2_3~"),
            ("a b+c&d", "a b+c&d"),
            ("größe/é", "größe%2Fé"),
            (
                "\"#%'*/:=?\\{[]^",
                "%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E",
            ),
            ("}|<>", "}|<>"),
            ("\0\n\u{1f}\u{7f}", "%00%0A%1F%7F"),
            ("", ""),
        ] {
            assert_eq!(escape(value), escaped);
        }
    }

    #[test]
    fn header_values_are_visible_ascii() {
        for (value, escaped) in [
            ("a b/c=d", "a b/c=d"),
            ("é", "%C3%A9"),
            ("a\r\nb", "a%0D%0Ab"),
            ("50%", "50%25"),
        ] {
            assert_eq!(header_value(value), escaped);
        }
    }
}
