//! The records of block I/O.
//!
//! In: the bytes of a ring entry. Out: the record, or nothing where it has another size.

use dial9_bpf_abi::record::{IoBegin, IoEnd, Sync};

use super::{halves, header, joined, words};

pub(super) fn io_begin(bytes: &[u8]) -> Option<IoBegin> {
    words(bytes).map(|[w, ts, bio]| IoBegin {
        header: header(w, ts),
        bio,
    })
}

pub(super) fn io_end(bytes: &[u8]) -> Option<IoEnd> {
    words(bytes).map(
        |[w, ts, bio, begin_ns, issue_ns, sector, what, disk, rest]| {
            let ([bytes, operation], [major, minor]) = (halves(what), halves(disk));
            let [submitter, status] = halves(rest);
            IoEnd {
                header: header(w, ts),
                bio,
                begin_ns,
                issue_ns,
                sector,
                bytes,
                operation,
                major,
                minor,
                submitter,
                status,
            }
        },
    )
}

pub(super) fn put_io_end(record: &IoEnd, put: impl FnMut(u64)) {
    let IoEnd {
        header: _,
        bio,
        begin_ns,
        issue_ns,
        sector,
        bytes,
        operation,
        major,
        minor,
        submitter,
        status,
    } = *record;
    let what = [joined(bytes, operation), joined(major, minor)];
    [bio, begin_ns, issue_ns, sector]
        .into_iter()
        .chain(what)
        .chain([joined(submitter, status)])
        .for_each(put);
}

pub(super) fn sync(bytes: &[u8]) -> Option<Sync> {
    words(bytes).map(|[w, ts, begin_ns, inode, rest]| {
        let [device, error] = halves(rest);
        Sync {
            header: header(w, ts),
            begin_ns,
            inode,
            device,
            error: error.cast_signed(),
        }
    })
}

pub(super) fn put_sync(record: &Sync, put: impl FnMut(u64)) {
    let Sync {
        header: _,
        begin_ns,
        inode,
        device,
        error,
    } = *record;
    let rest = joined(device, error.cast_unsigned());
    [begin_ns, inode, rest].into_iter().for_each(put);
}
