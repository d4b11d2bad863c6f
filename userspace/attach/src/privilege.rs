//! Which capabilities we hold, to say which are missing.
//!
//! In: /proc/self/status. Out: a phrase for an error. Never: a check before an
//! attempt; the kernel decides, this explains.

use std::fs;

/// Capabilities that tracing needs, by name and number
/// (include/uapi/linux/capability.h).
const NEEDED: [(&str, u32); 3] = [("CAP_SYS_PTRACE", 19), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];
/// Stands in for `CAP_PERFMON` and `CAP_BPF` (kernel/bpf/syscall.c, `bpf_capable`).
const CAP_SYS_ADMIN: u32 = 21;

/// What this process lacks, as a phrase: `CAP_BPF and CAP_PERFMON are missing
/// (run as root)`; `None` when nothing is.
pub fn missing() -> Option<String> {
    let effective = effective_capabilities()?;
    let has = |number: u32| effective >> number & 1 == 1;
    let names: Vec<&str> = NEEDED
        .iter()
        .filter(|(name, number)| {
            let substitute = *name != "CAP_SYS_PTRACE" && has(CAP_SYS_ADMIN);
            !has(*number) && !substitute
        })
        .map(|(name, _)| *name)
        .collect();
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("{one} is missing (run as root)")),
        [rest @ .., last] => Some(format!(
            "{} and {last} are missing (run as root)",
            rest.join(", ")
        )),
    }
}

fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
