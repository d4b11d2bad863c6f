//! Whether the rings' budget suffices for the CPUs of this machine.
//!
//! In: bytes. Out: the same refusal as the rings' own, before anything is
//! loaded. Never: a refusal where the CPUs are not known.

use std::fs;

use dial9_bpf_attach::AttachError;

/// Every online CPU needs a page.
///
/// # Errors
/// [`AttachError::RingBudget`] when there is not one for each.
pub(crate) fn check(bytes: u64) -> Result<(), AttachError> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online");
    let cpus = online.ok().as_deref().and_then(count_of_ranges);
    cpus.map_or(Ok(()), |cpus| {
        suffices(bytes, cpus, rustix::param::page_size())
    })
}

fn suffices(bytes: u64, cpus: usize, page_bytes: usize) -> Result<(), AttachError> {
    let least = cpus as u64 * page_bytes as u64;
    if bytes < least {
        return Err(AttachError::RingBudget { bytes, cpus, least });
    }
    Ok(())
}

/// How many numbers are in ranges such as `0-3,6`.
fn count_of_ranges(text: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: usize = first.parse().ok()?;
        last.parse::<usize>()
            .ok()?
            .checked_sub(first)?
            .checked_add(1)
    };
    text.trim().split(',').map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted() {
        assert_eq!(count_of_ranges("0\n"), Some(1));
        assert_eq!(count_of_ranges("0-3,6,8-9\n"), Some(7));
        assert_eq!(count_of_ranges(""), None);
        assert_eq!(count_of_ranges("3-1"), None);
    }

    #[test]
    fn each_cpu_needs_a_page() {
        assert!(suffices(8192, 2, 4096).is_ok());
        let error = suffices(8191, 2, 4096).expect_err("too few");
        assert_eq!(
            error.to_string(),
            "8191 bytes of rings are too few: 2 CPUs need 8192 bytes"
        );
    }

    #[test]
    fn this_machine_has_cpus() {
        assert!(check(4095).is_err());
        assert!(check(u64::MAX).is_ok());
    }
}
