//! A job for fio that puts the same load on a disk.
//!
//! In: block I/O out of files. Out: the text of an fio job file, one section a device.
//! Never: the file system's own I/O, which another file system's takes the place of.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use dial9_bpf_trace::stored_io::StoredIo;

use crate::io_report::{Io, depths, sequential_share, sizes_of};

/// Largest file that a job asks for, bytes.
const MOST_BYTES: u64 = 1 << 30;
/// Pieces of the disk that are touched as a whole.
const PIECE_BYTES: u64 = 1 << 20;
/// Sizes that a job tells apart in one direction (fio 3, `BSSPLIT_MAX`).
const MOST_SIZES: usize = 64;
/// The part of the time in which a device is at work from which on the target is taken to
/// wait for it rather than to keep a pace.
const SATURATED: f64 = 0.5;

/// What a device did in one direction.
struct Direction {
    /// In the order of submission.
    ios: Vec<StoredIo>,
}

/// The job file; `None` where nothing was read or written.
pub(crate) fn render(io: &Io) -> Option<String> {
    let mut out = String::from(
        "; The block I/O that dial9-bpf has recorded, for fio(1): sizes in percent, order,\n\
         ; depth and pace are those of the recording; all of it goes past the page cache, as\n\
         ; what was recorded is what reached the disk. Set `filename` to what is to be loaded.\n\
         [global]\ndirect=1\nnorandommap=1\n",
    );
    let sections: Vec<String> = io
        .devices()
        .into_iter()
        .filter_map(|device| section(io, device))
        .collect();
    out.push_str(&sections.concat());
    (!sections.is_empty()).then_some(out)
}

fn section(io: &Io, device: &str) -> Option<String> {
    let of = |operation: &str| {
        let ios = io.groups.get(&(device.to_owned(), operation.to_owned()));
        let ios = ios.into_iter().flatten();
        Direction {
            ios: ios
                .filter(|io| !io.is_metadata && io.bytes > 0)
                .cloned()
                .collect(),
        }
    };
    let (reads, writes) = (of("read"), of("write"));
    let all: Vec<&StoredIo> = reads.ios.iter().chain(&writes.ios).collect();
    let count = all.len();
    if count == 0 {
        return None;
    }
    let mut out = format!("\n[{}]\n", io.name(device));
    let mut put = |key: &str, value: String| {
        writeln!(out, "{key}={value}").expect("to a string");
    };
    put("filename", format!("dial9-io-{}", io.name(device)));
    put("size", size(&all).to_string());
    put("number_ios", count.to_string());
    put("rw", rw(&reads, &writes).to_owned());
    if !reads.ios.is_empty() && !writes.ios.is_empty() {
        put("rwmixread", percent(reads.ios.len(), count).to_string());
    }
    put(
        "percentage_random",
        both(&reads, &writes, Direction::percentage_random),
    );
    put("bssplit", both(&reads, &writes, Direction::split));
    let depth = depth(&all);
    put(
        "ioengine",
        if depth > 1 { "libaio" } else { "psync" }.to_owned(),
    );
    put("iodepth", depth.to_string());
    if let Some(seconds) = paced(&all) {
        let rate = |of: &Direction| rate(of.ios.len(), seconds).to_string();
        put("rate_iops", both(&reads, &writes, rate));
    }
    if let Some((key, each)) = syncs(io, writes.ios.len()) {
        put(key, each.to_string());
    }
    Some(out)
}

impl Direction {
    fn percentage_random(&self) -> String {
        format!("{:.0}", 100.0 * (1.0 - sequential_share(&self.ios)))
    }

    /// Whole percents that come to 100; the sizes that are too rare for one are left out.
    fn split(&self) -> String {
        let parts: Vec<String> = whole_percents(&sizes_of(&self.ios))
            .into_iter()
            .map(|(bytes, percent)| format!("{bytes}/{percent}"))
            .collect();
        parts.join(":")
    }
}

/// The largest remainders get what is left over.
fn whole_percents(counts: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let mut most: Vec<(u64, u64)> = counts.iter().map(|(key, count)| (*key, *count)).collect();
    most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    most.truncate(MOST_SIZES);
    let all: u64 = most.iter().map(|(_, count)| count).sum();
    let mut percents: Vec<(u64, u64, u64)> = most
        .into_iter()
        .map(|(key, count)| (key, 100 * count / all, 100 * count % all))
        .collect();
    percents.sort_by_key(|(_, _, rest)| std::cmp::Reverse(*rest));
    let left = 100 - percents.iter().map(|(_, percent, _)| percent).sum::<u64>();
    let extra = usize::try_from(left).unwrap_or(0);
    for (_, percent, _) in percents.iter_mut().take(extra) {
        *percent += 1;
    }
    percents
        .into_iter()
        .filter(|(_, percent, _)| *percent > 0)
        .map(|(key, percent, _)| (key, percent))
        .collect()
}

/// For reads and writes, where there are both.
fn both(reads: &Direction, writes: &Direction, of: impl Fn(&Direction) -> String) -> String {
    match (reads.ios.is_empty(), writes.ios.is_empty()) {
        (false, false) => format!("{},{}", of(reads), of(writes)),
        (true, _) => format!(",{}", of(writes)),
        (false, true) => of(reads),
    }
}

fn rw(reads: &Direction, writes: &Direction) -> &'static str {
    match (reads.ios.is_empty(), writes.ios.is_empty()) {
        (false, false) => "randrw",
        (true, _) => "randwrite",
        (false, true) => "randread",
    }
}

fn percent(part: usize, all: usize) -> usize {
    (100 * part + all / 2) / all
}

/// What of the disk was touched, in pieces of [`PIECE_BYTES`], up to a limit: what lies
/// between them is not the job's.
fn size(ios: &[&StoredIo]) -> u64 {
    const SECTOR: u64 = 512;
    let touched = |io: &&StoredIo| {
        let first = io.sector * SECTOR;
        first / PIECE_BYTES..=(first + io.bytes - 1) / PIECE_BYTES
    };
    let pieces: BTreeSet<u64> = ios.iter().flat_map(touched).collect();
    let largest = ios.iter().map(|io| io.bytes).max().unwrap_or(0);
    let bytes = pieces.len() as u64 * PIECE_BYTES;
    bytes.min(MOST_BYTES).max(largest)
}

/// The depth that nine in ten submissions do not exceed: what keeps a fixed depth is
/// below it while it fills up.
fn depth(ios: &[&StoredIo]) -> u64 {
    let mut depths = depths(ios);
    depths.sort_unstable();
    depths.get(depths.len() * 9 / 10).copied().unwrap_or(1)
}

/// How long all of it took, seconds, where the device was idle most of that time.
fn paced(ios: &[&StoredIo]) -> Option<f64> {
    let mut times: Vec<[u64; 2]> = ios.iter().map(|io| io.times_ns).collect();
    times.sort_unstable();
    let first = times.first()?[0];
    let (mut busy, mut until) = (0, first);
    for [begin, end] in times {
        busy += end.saturating_sub(begin.max(until));
        until = until.max(end);
    }
    #[expect(clippy::cast_precision_loss, reason = "a share of times")]
    let [busy, all] = [busy, until - first].map(|ns| ns as f64 / 1e9);
    (all > 0.0 && busy / all < SATURATED).then_some(all)
}

fn rate(count: usize, seconds: f64) -> u64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate of counts"
    )]
    let rate = (count as f64 / seconds).round() as u64;
    rate.max(1)
}

/// After how many writes one sync comes, and by which call.
fn syncs(io: &Io, writes: usize) -> Option<(&'static str, usize)> {
    let count = |name: &str| io.syncs.get(name).map_or(0, Vec::len);
    let (whole, data) = (count("fsync"), count("fdatasync"));
    let all = whole + data;
    if all == 0 || writes == 0 {
        return None;
    }
    let name = if whole >= data { "fsync" } else { "fdatasync" };
    Some((name, ((writes + all / 2) / all).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_whole_and_come_to_a_hundred() {
        let counts = BTreeMap::from([(4096, 2), (8192, 1), (512, 3)]);
        let percents = whole_percents(&counts);
        assert_eq!(
            percents,
            BTreeMap::from([(512, 50), (4096, 33), (8192, 17)])
        );
        let rare = BTreeMap::from([(4096, 1_000), (8192, 1)]);
        assert_eq!(whole_percents(&rare), BTreeMap::from([(4096, 100)]));
    }

    #[test]
    fn a_pace_is_where_the_device_rests() {
        let io = |times_ns| StoredIo {
            times_ns,
            resumed_ns: None,
            operation: 0,
            sector: 0,
            bytes: 512,
            is_metadata: false,
            has_failed: false,
        };
        let dense = [io([0, 60]), io([30, 100])];
        assert_eq!(paced(&dense.each_ref()), None);
        let sparse = [io([0, 10]), io([999_999_990, 1_000_000_000])];
        assert_eq!(paced(&sparse.each_ref()), Some(1.0));
    }
}
