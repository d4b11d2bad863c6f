//! Where the code at an address is.
//!
//! In: an address; mappings. Out: a file and the address in it, or the kernel. Never: a
//! choice between two files.

use crate::{CodeFile, Placed, Unnamed};

/// Addresses from here on are the kernel's, as dial9 has it.
const KERNEL: u64 = 0x0000_8000_0000_0000;

/// Where an address is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// In the kernel.
    Kernel,
    /// In a file, which has it at this address.
    File(&'a CodeFile, u64),
}

/// Finds an address in mappings of one time.
pub(crate) fn place(address: u64, placed: &[Placed]) -> Result<Place<'_>, Unnamed> {
    if address >= KERNEL {
        return Ok(Place::Kernel);
    }
    let mut found = placed.iter().filter(|placed| placed.mapping.has(address));
    let first = found.next().ok_or(Unnamed::Unmapped)?;
    if found.any(|other| !is_same(first, other)) {
        return Err(Unnamed::Ambiguous);
    }
    let file = first.file.as_deref().ok_or(Unnamed::NoFile)?;
    let offset = address - first.mapping.start + first.mapping.offset;
    let address = file.address_of(offset).ok_or(Unnamed::Unmapped)?;
    Ok(Place::File(file, address))
}

fn is_same(one: &Placed, other: &Placed) -> bool {
    let file = |placed: &Placed| {
        let mapping = &placed.mapping;
        let key = (mapping.device.clone(), mapping.inode);
        (key, mapping.build_id.clone())
    };
    let base = |placed: &Placed| placed.mapping.start.wrapping_sub(placed.mapping.offset);
    file(one) == file(other) && base(one) == base(other)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, sync::Arc};

    use dial9_bpf_trace::mapping::Mapping;

    use super::*;

    fn placed(start: u64, inode: u64) -> Placed {
        let own = std::env::current_exe().expect("we run");
        let file = CodeFile::new(File::open(own).expect("there")).expect("a program");
        Placed {
            mapping: Mapping {
                start,
                end: start + 0x1000,
                inode,
                ..Mapping::default()
            },
            file: Some(Arc::new(file)),
        }
    }

    #[test]
    fn two_files_at_an_address_are_not_chosen_between() {
        let two = [placed(0x1000, 1), placed(0x1800, 2), placed(0x1800, 2)];
        let reason = |address| place(address, &two).expect_err("nowhere");
        assert_eq!(reason(0x1900), Unnamed::Ambiguous);
        assert_eq!(reason(0x2800), Unnamed::Unmapped);
        assert!(matches!(place(KERNEL, &two), Ok(Place::Kernel)));
        let without = Placed {
            file: None,
            ..placed(0x1000, 1)
        };
        assert_eq!(place(0x1000, &[without]).err(), Some(Unnamed::NoFile));
    }
}
