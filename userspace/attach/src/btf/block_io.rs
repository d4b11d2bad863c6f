//! What the programs on block I/O and syncs use.
//!
//! In: the kernel's types. Out: globals and their values. Never: a kernel's version.

use super::Btf;

/// The global that has the offset, the structure, the path.
const MEMBERS: [(&str, &str, &[&str]); 12] = [
    ("BIO_OPF", "bio", &["bi_opf"]),
    ("BIO_STATUS", "bio", &["bi_status"]),
    ("BIO_SECTOR", "bio", &["bi_iter", "bi_sector"]),
    ("BIO_SIZE", "bio", &["bi_iter", "bi_size"]),
    ("BIO_NEXT", "bio", &["bi_next"]),
    ("DISK_MAJOR", "gendisk", &["major"]),
    ("DISK_MINOR", "gendisk", &["first_minor"]),
    ("REQUEST_BIO", "request", &["bio"]),
    ("INODE_NUMBER", "inode", &["i_ino"]),
    ("INODE_FILE_SYSTEM", "inode", &["i_sb"]),
    ("FILE_SYSTEM_DEVICE", "super_block", &["s_dev"]),
    ("TASK_FLAGS", "task_struct", &["flags"]),
];
/// Parameters of `block_bio_queue` with a queue before the I/O, the tracepoint's own
/// among them.
const WITH_QUEUE: usize = 3;

/// Globals and their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoOffsets(pub Vec<(&'static str, u32)>);

impl IoOffsets {
    /// The offsets, or what there is not.
    pub(super) fn of(btf: &Btf<'_>) -> Result<Self, String> {
        let parameters = btf.parameters("btf_trace_block_bio_queue");
        let has_queue = parameters.ok_or("there is no tracepoint block_bio_queue")? >= WITH_QUEUE;
        let known = MEMBERS
            .iter()
            .map(|(global, structure, path)| Ok((*global, btf.offset_or(structure, path)?)));
        let mut known: Vec<_> = known.collect::<Result<_, String>>()?;
        known.push(("BIO_HAS_QUEUE", u32::from(has_queue)));
        if has_queue {
            known.push(("BIO_DEVICE", btf.offset_or("bio", &["bi_disk"])?));
        } else {
            known.push(("BIO_DEVICE", btf.offset_or("bio", &["bi_bdev"])?));
            known.push(("DEVICE_DISK", btf.offset_or("block_device", &["bd_disk"])?));
        }
        Ok(Self(known))
    }
}

#[cfg(test)]
mod tests {
    use crate::btf::of_running_kernel;

    /// An I/O's place and size are neighbours (`include/linux/bvec.h`, `struct bvec_iter`), a
    /// disk's numbers too (include/linux/blkdev.h, `struct gendisk`).
    #[test]
    fn an_io_has_a_place_and_a_disk() {
        let offsets = of_running_kernel().expect("this kernel has BTF");
        let offsets = offsets.io.expect("it has the members").0;
        let of = |global| {
            let found = offsets.iter().find(|(name, _)| *name == global);
            found.expect("it is listed").1
        };
        assert_eq!(of("BIO_SIZE"), of("BIO_SECTOR") + 8);
        assert_eq!(of("DISK_MINOR"), of("DISK_MAJOR") + 4);
        assert_eq!(of("BIO_HAS_QUEUE"), 0);
    }
}
