//! Where a target has code: what names are found by, also when the target is gone.
//!
//! In: a mapping. Out: a line of text for the metadata, and back. Never: a file.

use std::fmt;
use std::str::FromStr;

/// What the metadata's keys of mappings begin with; their number follows.
pub const KEY: &str = "dial9-bpf.mapping.";
/// Key of how many mappings are not told.
pub const UNTOLD: &str = "dial9-bpf.mappings_untold";
/// What all mappings together may take in the metadata, bytes: half of what is read of a
/// segment's begin.
const MAX_BYTES: usize = 32 << 10;

/// A file's code at an address of the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The address behind its last one.
    pub end: u64,
    /// Where in the file that is, bytes.
    pub offset: u64,
    /// The file's device, as `/proc/PID/maps` writes it.
    pub device: String,
    /// The file's inode; 0 for what is no file.
    pub inode: u64,
    /// The file's GNU build id, lower-case hex.
    pub build_id: Option<String>,
    /// The mapping was not there at this time, or nobody looked before,
    /// `CLOCK_MONOTONIC` ns.
    pub since_ns: u64,
    /// It was gone at this time, `CLOCK_MONOTONIC` ns.
    pub until_ns: Option<u64>,
    /// The file's path as the target saw it.
    pub path: String,
}

/// A text that is no mapping's.
#[derive(Debug, thiserror::Error)]
#[error("not a mapping")]
pub struct NotAMapping;

impl Mapping {
    /// Whether an address is in it.
    pub fn has(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Whether it may have been there at some time of an interval, `CLOCK_MONOTONIC` ns.
    pub fn is_of(&self, from_ns: u64, to_ns: u64) -> bool {
        self.since_ns <= to_ns && self.until_ns.is_none_or(|until| until >= from_ns)
    }

    /// Those that a segment's metadata tells.
    pub fn told(metadata: &[(String, String)]) -> Vec<Self> {
        let mappings = metadata.iter().filter(|(key, _)| key.starts_with(KEY));
        mappings
            .filter_map(|(_, value)| value.parse().ok())
            .collect()
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            start,
            end,
            offset,
            device,
            inode,
            build_id,
            since_ns,
            until_ns,
            path,
        } = self;
        let build_id = build_id.as_deref().unwrap_or("-");
        write!(
            f,
            "{start:x}-{end:x} {offset:x} {device} {inode} {build_id} {since_ns} "
        )?;
        match until_ns {
            Some(until_ns) => write!(f, "{until_ns} {path}"),
            None => write!(f, "- {path}"),
        }
    }
}

impl FromStr for Mapping {
    type Err = NotAMapping;

    fn from_str(text: &str) -> Result<Self, NotAMapping> {
        let mut fields = text.splitn(8, ' ');
        let mut field = || fields.next().ok_or(NotAMapping);
        let hex = |text: &str| u64::from_str_radix(text, 16).map_err(|_| NotAMapping);
        let number = |text: &str| text.parse::<u64>().map_err(|_| NotAMapping);
        let known = |text: &str| (text != "-").then(|| text.to_owned());
        let (start, end) = field()?.split_once('-').ok_or(NotAMapping)?;
        Ok(Self {
            start: hex(start)?,
            end: hex(end)?,
            offset: hex(field()?)?,
            device: field()?.to_owned(),
            inode: number(field()?)?,
            build_id: known(field()?),
            since_ns: number(field()?)?,
            until_ns: known(field()?).map(|text| number(&text)).transpose()?,
            path: field()?.to_owned(),
        })
    }
}

/// What the metadata says of mappings: each on a line, as many as there is room for.
pub(crate) fn entries(mappings: &[Mapping]) -> Vec<(String, String)> {
    let mut bytes = 0;
    let mut entries = Vec::new();
    for (number, mapping) in mappings.iter().enumerate() {
        let (key, value) = (format!("{KEY}{number}"), mapping.to_string());
        bytes += key.len() + value.len();
        if bytes > MAX_BYTES {
            let untold = mappings.len() - number;
            entries.push((UNTOLD.to_owned(), untold.to_string()));
            break;
        }
        entries.push((key, value));
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping() -> Mapping {
        Mapping {
            start: 0x5555_0000_1000,
            end: 0x5555_0000_3000,
            offset: 0x1000,
            device: "fe:00".into(),
            inode: 77,
            build_id: Some("abcd".into()),
            since_ns: 5,
            until_ns: Some(9),
            path: "/opt/a plugin.so".into(),
        }
    }

    #[test]
    fn what_is_told_is_read() {
        let mappings = [
            mapping(),
            Mapping {
                build_id: None,
                until_ns: None,
                path: String::new(),
                ..mapping()
            },
        ];
        let entries = entries(&mappings);
        assert_eq!(Mapping::told(&entries), mappings);
        for other in ["", "1-2", "x-y 0 0 0 - 0 - /", "1-2 0 fe:00 7 - 0 -"] {
            assert!(other.parse::<Mapping>().is_err(), "{other:?}");
        }
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let many = vec![mapping(); 2000];
        let entries = entries(&many);
        let told = Mapping::told(&entries).len();
        let (key, untold) = entries.last().expect("there are some");
        assert_eq!((key.as_str(), untold.parse()), (UNTOLD, Ok(2000 - told)));
        let bytes: usize = entries
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        assert!(told > 100 && bytes < MAX_BYTES + 100);
    }

    #[test]
    fn a_mapping_is_of_the_time_in_which_it_may_have_been_there() {
        let mapping = mapping();
        assert!(mapping.is_of(0, 5) && mapping.is_of(9, 20) && mapping.is_of(6, 7));
        assert!(!mapping.is_of(0, 4) && !mapping.is_of(10, 20));
        assert!(mapping.has(mapping.start) && !mapping.has(mapping.end));
    }
}
