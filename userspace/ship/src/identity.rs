//! Whose segments these are.
//!
//! In: flags, environment, the text of `/proc/PID/cgroup`, the executable. Out:
//! service, instance, boot id, with dial9's names and defaults. Never: a file or
//! the environment itself; whoever calls has read them.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use crate::sink::Destination;

/// Names a service (dial9's).
pub const ENV_SERVICE: &str = "DIAL9_SERVICE_NAME";
/// Names a bucket of S3 (dial9's).
pub const ENV_BUCKET: &str = "DIAL9_S3_BUCKET";
/// Names the prefix of the keys (dial9's).
pub const ENV_PREFIX: &str = "DIAL9_S3_PREFIX";
/// The prefix of the keys when a bucket is named by [`ENV_BUCKET`] alone
/// (dial9's).
pub const DEFAULT_PREFIX: &str = "dial9-traces";

const UNKNOWN_SERVICE: &str = "unknown-service";
const UNKNOWN_HOST: &str = "unknown";

/// Who a segment belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Name of the service.
    pub service: String,
    /// What tells its instances apart.
    pub instance: String,
    /// One for each run of a process and each spool that it is recorded into; see
    /// [`boot_id()`].
    pub boot_id: String,
}

/// What an identity is made from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// The service as the user named it.
    pub service: Option<&'a str>,
    /// The instance as the user named it.
    pub instance: Option<&'a str>,
    /// Value of [`ENV_SERVICE`].
    pub env_service: Option<&'a str>,
    /// Text of `/proc/PID/cgroup` of the target.
    pub cgroup: &'a str,
    /// Path of the target's executable.
    pub exe: &'a str,
    /// Name of the machine.
    pub host: Option<&'a str>,
    /// Start of the target, clock ticks since the machine's boot.
    pub start_ticks: u64,
    /// Device and inode of the spool's directory.
    pub spool: (u64, u64),
    /// The target's pid.
    pub pid: u32,
}

impl Identity {
    /// The first that is known, for the service: flag, environment, container or
    /// unit, executable; for the instance: flag, machine. Blank is not known.
    pub fn resolve(sources: &Sources<'_>) -> Self {
        let service = known(sources.service)
            .or_else(|| known(sources.env_service))
            .map(ToOwned::to_owned)
            .or_else(|| unit_name(sources.cgroup))
            .or_else(|| executable_name(sources.exe))
            .unwrap_or_else(|| UNKNOWN_SERVICE.to_owned());
        Self {
            service,
            instance: known(sources.instance)
                .or_else(|| known(sources.host))
                .unwrap_or(UNKNOWN_HOST)
                .to_owned(),
            boot_id: boot_id((sources.start_ticks, sources.spool), sources.pid),
        }
    }
}

impl Identity {
    /// The identity that a segment was recorded with, by the entries of its
    /// metadata: it may be one of a predecessor's. What they do not say is as in
    /// `present`.
    pub fn of_segment(entries: &[(String, String)], present: &Self) -> Self {
        let entry = |wanted: &str| {
            let found = entries.iter().find(|(key, _)| key == wanted);
            known(found.map(|(_, value)| value.as_str()))
        };
        let or = |found: Option<&str>, present: &str| found.unwrap_or(present).to_owned();
        Self {
            service: or(entry("service"), &present.service),
            instance: or(
                entry("instance").or_else(|| entry("host")),
                &present.instance,
            ),
            boot_id: or(entry("boot_id"), &present.boot_id),
        }
    }
}

/// Where dial9's environment sends segments: `DIAL9_S3_BUCKET`, under
/// `DIAL9_S3_PREFIX` or its default.
pub fn destination_of_env(bucket: Option<&str>, prefix: Option<&str>) -> Option<Destination> {
    Some(Destination::S3 {
        bucket: known(bucket)?.to_owned(),
        prefix: known(prefix)
            .unwrap_or(DEFAULT_PREFIX)
            .trim_matches('/')
            .to_owned(),
    })
}

/// Four letters for what tells runs apart, a hyphen and the pid: dial9's form. Two
/// recorders of one process count their segments each for itself, and with different
/// letters do not give two segments one key.
pub fn boot_id(run: impl Hash, pid: u32) -> String {
    // Its keys are always the same.
    let mut hasher = DefaultHasher::new();
    run.hash(&mut hasher);
    let letters = (0..4).scan(hasher.finish(), |rest, _| {
        let letter = b'a' + u8::try_from(*rest % 26).unwrap_or(0);
        *rest /= 26;
        Some(char::from(letter))
    });
    format!("{}-{pid}", letters.collect::<String>())
}

/// Name of the container or of the systemd service that a process is in, from
/// the text of its `/proc/PID/cgroup`.
///
/// A container that is only known by its id has none: an id is new at each
/// start and would make a service of each. Neither have the user's sessions.
pub fn unit_name(cgroup: &str) -> Option<String> {
    let paths: Vec<(&str, &str)> = cgroup
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        })
        .collect();
    // Version 2 first, then systemd's own tree of version 1.
    ["", "name=systemd"]
        .iter()
        .filter_map(|wanted| paths.iter().find(|(tree, _)| tree == wanted))
        .find_map(|(_, path)| name_in_path(path))
}

fn name_in_path(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').collect();
    for (at, part) in parts.iter().enumerate().rev() {
        if has_container_id(part) {
            return None;
        }
        let is_lxc = at > 0 && parts.get(at - 1) == Some(&"lxc");
        let name = part
            .strip_prefix("lxc.payload.")
            .or_else(|| is_lxc.then_some(*part))
            .or_else(|| part.strip_prefix("machine-")?.strip_suffix(".scope"))
            .or_else(|| service_of_unit(part));
        if let Some(name) = name.and_then(|name| known(Some(name))) {
            return Some(unescape(name));
        }
    }
    None
}

/// `user@1000.service` is the user's own systemd; the units below it are what
/// somebody started by hand.
fn service_of_unit(part: &str) -> Option<&str> {
    let name = part.strip_suffix(".service")?;
    (!name.starts_with("user@")).then_some(name)
}

/// 64 hex digits in a row: an id as Docker, containerd, CRI-O and Podman give.
fn has_container_id(part: &str) -> bool {
    part.split(|char: char| !char.is_ascii_hexdigit())
        .any(|run| run.len() == 64)
}

/// systemd writes what may not be in a name as `\xHH`.
fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        let digits = after
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = if let Some(byte) = digits {
            bytes.push(byte);
            &after[2..]
        } else {
            bytes.extend_from_slice(b"\\x");
            after
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

fn executable_name(exe: &str) -> Option<String> {
    // As the kernel names a file that was replaced while it ran.
    let exe = exe.strip_suffix(" (deleted)").unwrap_or(exe);
    let stem = std::path::Path::new(exe).file_stem()?.to_str()?;
    known(Some(stem)).map(ToOwned::to_owned)
}

fn known(value: Option<&str>) -> Option<&str> {
    value.map(str::trim).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests;
