//! What segments say of block I/O, in tables.
//!
//! In: block I/O out of files. Out: counts, sizes, latencies, how long threads waited for
//! it, how much of it was sequential and how much at a time. Never: a figure of what was
//! not recorded.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use bytesize::ByteSize;
use comfy_table::Table;
use dial9_bpf_trace::stored_io::{StoredFile, StoredIo};
use hdrhistogram::Histogram;

use crate::plan_report::{align_right, table, text, thousands};

/// Longest latency that is told apart, ns: an hour.
const MOST_NS: u64 = 3_600_000_000_000;
/// Digits of a latency that are right.
const DIGITS: u8 = 3;

/// What the table of waits says.
const WAITED: &str =
    "until the thread that had submitted it was on a CPU again, where it was off it at the end";

/// All block I/O of some files.
#[derive(Debug, Default)]
pub(crate) struct Io {
    /// By device and operation, in the order in which it was submitted.
    pub(crate) groups: BTreeMap<(String, String), Vec<StoredIo>>,
    /// How long syncs took, ns, by their name.
    pub(crate) syncs: BTreeMap<String, Vec<u64>>,
    /// Names of devices, by their numbers.
    pub(crate) names: BTreeMap<String, String>,
    targets: BTreeSet<String>,
    files: usize,
    /// By the recorded process: the counters do not begin again with a segment.
    kernel: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// Records of it that were lost.
    pub(crate) lost: u64,
    /// What there is to say of some files, once each.
    notes: BTreeSet<String>,
    recorded: usize,
    /// Of these, files that tell when threads are off their CPUs.
    tell_waits: usize,
}

impl Io {
    /// Takes what a file has.
    pub(crate) fn add(&mut self, path: &str, file: StoredFile) {
        let StoredFile {
            metadata,
            operations,
            ios,
            syncs,
            kernel,
            lost,
            torn,
        } = file;
        self.files += 1;
        let of = |key: &str| metadata.get(key).map_or("", String::as_str);
        let is_wanted = |signal| of("dial9-bpf.signals").split(',').any(|of| of == signal);
        let is_absent = |name| metadata.contains_key(&format!("dial9-bpf.absent.{name}"));
        let is_recorded = is_wanted("io") && !is_absent("block-io");
        self.recorded += usize::from(is_recorded);
        self.tell_waits += usize::from(is_recorded && is_wanted("sched") && !is_absent("off-cpu"));
        if !is_wanted("io") {
            let note = "without block I/O: recorded without the signal io";
            self.notes.insert(format!("{path}: {note}"));
        } else if !is_wanted("sched") {
            let note = "without waits of threads for it: recorded without the signal sched";
            self.notes.insert(format!("{path}: {note}"));
        }
        for name in ["block-io", "syncs", "off-cpu"] {
            if let Some(reason) = metadata.get(&format!("dial9-bpf.absent.{name}")) {
                self.notes.insert(format!("missing: {name}: {reason}"));
            }
        }
        if let Some(torn) = torn {
            self.notes
                .insert(format!("{path}: not read to its end: {torn}"));
        }
        let target = format!("process {} ({})", of("target.pid"), of("target.exe"));
        if !kernel.is_empty() {
            self.kernel
                .insert(of("boot_id").to_owned() + &target, kernel);
        }
        self.targets.insert(target);
        let names = metadata.iter();
        let names = names.filter_map(|(key, name)| Some((key.strip_prefix("device.")?, name)));
        self.names
            .extend(names.map(|(numbers, name)| (numbers.to_owned(), name.clone())));
        for io in ios {
            if let Some(group) = operations.get(usize::from(io.operation)) {
                self.groups.entry(group.clone()).or_default().push(io);
            }
        }
        for (name, took_ns) in syncs {
            self.syncs.entry(name).or_default().push(took_ns);
        }
        self.lost += lost;
    }

    /// Puts it into the order of submission.
    pub(crate) fn sort(&mut self) {
        for ios in self.groups.values_mut() {
            ios.sort_unstable_by_key(|io| io.times_ns[0]);
        }
    }

    /// Whether block I/O was recorded at all, be it none.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded > 0
    }

    /// What a device is called.
    pub(crate) fn name<'a>(&'a self, numbers: &'a str) -> &'a str {
        self.names.get(numbers).map_or(numbers, String::as_str)
    }

    /// The report as text.
    pub(crate) fn render(&self) -> String {
        let targets: Vec<&str> = self.targets.iter().map(String::as_str).collect();
        let mut out = format!("files: {}, of {}\n", self.files, targets.join(", "));
        for note in &self.notes {
            writeln!(out, "{note}").expect("to a string");
        }
        if !self.is_recorded() {
            return out;
        }
        if self.groups.is_empty() {
            out.push_str("the target had no block I/O\n");
        } else {
            section(&mut out, "block I/O", &self.operations());
            if self.tell_waits > 0 {
                section(&mut out, WAITED, &self.waits());
            }
            section(&mut out, "latency", &self.latencies());
            section(&mut out, "sizes", &self.sizes());
            section(
                &mut out,
                "under way when one more was submitted, that one included",
                &self.depths(),
            );
        }
        if !self.syncs.is_empty() {
            section(&mut out, "files synced", &self.sync_table());
        }
        out.push_str(&self.kernel_lines());
        if self.lost > 0 {
            let lost = thousands(self.lost);
            writeln!(out, "\nlost: {lost} records of block I/O").expect("to a string");
        }
        out
    }

    fn operations(&self) -> Table {
        let mut table = table(&[
            "device",
            "operation",
            "I/O",
            "bytes",
            "sequential",
            "p50",
            "p99",
            "max",
            "metadata",
            "failed",
        ]);
        for ((device, operation), ios) in &self.groups {
            let latencies = histogram(ios.iter().map(latency_ns));
            let count = |is: fn(&StoredIo) -> bool| {
                thousands(ios.iter().filter(|io| is(io)).count() as u64)
            };
            table.add_row([
                self.name(device).to_owned(),
                operation.clone(),
                thousands(ios.len() as u64),
                ByteSize(ios.iter().map(|io| io.bytes).sum()).to_string(),
                sequential(ios),
                duration(latencies.value_at_quantile(0.5)),
                duration(latencies.value_at_quantile(0.99)),
                duration(latencies.max()),
                count(|io| io.is_metadata),
                count(|io| io.has_failed),
            ]);
        }
        align_right(&mut table, 2);
        table
    }

    /// What was done while its thread ran is left out: when that looked is not told.
    fn waits(&self) -> Table {
        let header = ["device", "operation", "I/O", "p50", "p99", "max"];
        let mut table = table(&[&header[..], &["p50 after the end", "p99"]].concat());
        for ((device, operation), ios) in &self.groups {
            let waited = ios.iter().filter_map(resumed_ns);
            let whole = histogram(waited.clone().map(|[_, whole]| whole));
            let after = histogram(waited.map(|[after, _]| after));
            let quantiles = |of: &Histogram<u64>| [0.5, 0.99].map(|at| of.value_at_quantile(at));
            let [p50, p99] = quantiles(&whole);
            let [p50_after, p99_after] = quantiles(&after);
            let mut row = vec![
                self.name(device).to_owned(),
                operation.clone(),
                of_all(whole.len(), ios.len() as u64),
            ];
            if !whole.is_empty() {
                row.extend([p50, p99, whole.max(), p50_after, p99_after].map(duration));
            }
            table.add_row(row);
        }
        align_right(&mut table, 2);
        table
    }

    fn latencies(&self) -> Table {
        let buckets = self.by_group(|ios| counted(ios.iter().map(|io| bucket(latency_ns(io)))));
        self.columns("below", &buckets, |below| duration(*below))
    }

    fn sizes(&self) -> Table {
        let sizes = self.by_group(sizes_of);
        self.columns("bytes", &sizes, |bytes| thousands(*bytes))
    }

    fn depths(&self) -> Table {
        let mut columns = BTreeMap::new();
        for device in self.devices() {
            let depths = depths(&self.of_device(device));
            columns.insert(
                (device.to_owned(), String::new()),
                counted(depths.into_iter()),
            );
        }
        self.columns("I/O", &columns, |depth| thousands(*depth))
    }

    /// One row for each key, one column for each group.
    fn columns(
        &self,
        head: &str,
        groups: &BTreeMap<(String, String), BTreeMap<u64, u64>>,
        name: impl Fn(&u64) -> String,
    ) -> Table {
        let of = |(device, operation): &(String, String)| {
            format!("{} {operation}", self.name(device))
                .trim()
                .to_owned()
        };
        let heads: Vec<String> = groups.keys().map(of).collect();
        let header: Vec<&str> = [head]
            .into_iter()
            .chain(heads.iter().map(String::as_str))
            .collect();
        let mut table = table(&header);
        let keys: BTreeSet<u64> = groups.values().flat_map(|of| of.keys().copied()).collect();
        for key in keys {
            let cells = groups.values().map(|counts| share(counts, key));
            table.add_row([name(&key)].into_iter().chain(cells));
        }
        align_right(&mut table, 0);
        table
    }

    fn by_group(
        &self,
        of: impl Fn(&[StoredIo]) -> BTreeMap<u64, u64>,
    ) -> BTreeMap<(String, String), BTreeMap<u64, u64>> {
        let groups = self.groups.iter();
        groups.map(|(key, ios)| (key.clone(), of(ios))).collect()
    }

    fn sync_table(&self) -> Table {
        let mut table = table(&["by", "count", "p50", "p99", "max"]);
        for (name, took) in &self.syncs {
            let took = histogram(took.iter().copied());
            table.add_row([
                name.clone(),
                thousands(took.len()),
                duration(took.value_at_quantile(0.5)),
                duration(took.value_at_quantile(0.99)),
                duration(took.max()),
            ]);
        }
        align_right(&mut table, 1);
        table
    }

    /// Nobody knows whose that is.
    fn kernel_lines(&self) -> String {
        let sum = |name| {
            self.kernel
                .values()
                .filter_map(|of| of.get(name))
                .sum::<u64>()
        };
        let of = |what: &str, count, bytes| {
            format!("{} {what}, {}", thousands(sum(count)), ByteSize(sum(bytes)))
        };
        format!(
            "\nby threads of the kernel meanwhile, for any process (cached writes, journals): \
             {}; {}; {}\n",
            of("reads", "reads", "read_bytes"),
            of("writes", "writes", "write_bytes"),
            of("others", "others", "other_bytes"),
        )
    }

    /// The devices that there was I/O of.
    pub(crate) fn devices(&self) -> BTreeSet<&str> {
        self.groups
            .keys()
            .map(|(device, _)| device.as_str())
            .collect()
    }

    /// All I/O of one, in no order.
    pub(crate) fn of_device<'a>(&'a self, of: &'a str) -> Vec<&'a StoredIo> {
        let groups = self
            .groups
            .iter()
            .filter(move |((device, _), _)| device == of);
        groups.flat_map(|(_, ios)| ios).collect()
    }
}

fn section(out: &mut String, title: &str, table: &Table) {
    write!(out, "\n{title}\n{}", text(table)).expect("to a string");
}

fn share(counts: &BTreeMap<u64, u64>, key: u64) -> String {
    let all: u64 = counts.values().sum();
    let count = counts.get(&key);
    count.map_or_else(String::new, |count| of_all(*count, all))
}

/// A count, and which part of all it is.
fn of_all(count: u64, all: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a share of counts")]
    let percent = 100.0 * count as f64 / all as f64;
    format!("{} {percent:5.1} %", thousands(count))
}

/// How often each size occurs.
pub(crate) fn sizes_of(ios: &[StoredIo]) -> BTreeMap<u64, u64> {
    counted(ios.iter().map(|io| io.bytes))
}

fn counted(values: impl Iterator<Item = u64>) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    counts
}

/// How many are under way at each submission, that one included.
pub(crate) fn depths(ios: &[&StoredIo]) -> Vec<u64> {
    let mut ends: Vec<u64> = ios.iter().map(|io| io.times_ns[1]).collect();
    let mut begins: Vec<u64> = ios.iter().map(|io| io.times_ns[0]).collect();
    ends.sort_unstable();
    begins.sort_unstable();
    let mut done = 0;
    let depth = |(before, begin): (usize, &u64)| {
        while ends.get(done).is_some_and(|end| end <= begin) {
            done += 1;
        }
        (before + 1 - done.min(before)) as u64
    };
    begins.iter().enumerate().map(depth).collect()
}

/// Nothing of what has no size.
fn sequential(ios: &[StoredIo]) -> String {
    if ios.iter().all(|io| io.bytes == 0) {
        return String::new();
    }
    format!("{:.1} %", 100.0 * sequential_share(ios))
}

/// The part of the I/O, in the order of submission, that begins where the one before it
/// ends.
pub(crate) fn sequential_share(ios: &[StoredIo]) -> f64 {
    const SECTOR: u64 = 512;
    let follows = |two: &&[StoredIo]| two[0].sector + two[0].bytes / SECTOR == two[1].sector;
    let count = ios.windows(2).filter(follows).count();
    let all = ios.len().saturating_sub(1).max(1);
    #[expect(clippy::cast_precision_loss, reason = "a share of counts")]
    let share = count as f64 / all as f64;
    share
}

fn latency_ns(io: &StoredIo) -> u64 {
    io.times_ns[1] - io.times_ns[0]
}

/// How long after its end its thread was on a CPU again, and how long after its
/// submission, ns.
fn resumed_ns(io: &StoredIo) -> Option<[u64; 2]> {
    let [begin, end] = io.times_ns;
    io.resumed_ns
        .map(|of| [end, begin].map(|from| of.get().saturating_sub(from)))
}

/// The least power of two of microseconds, in ns, that is above a latency.
fn bucket(ns: u64) -> u64 {
    (ns / 1_000 + 1).next_power_of_two() * 1_000
}

fn histogram(latencies_ns: impl Iterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_max(MOST_NS, DIGITS).expect("the bounds are sound");
    for ns in latencies_ns {
        histogram.saturating_record(ns);
    }
    histogram
}

/// In the unit that fits.
fn duration(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let micros = ns as f64 / 1e3;
    match micros {
        ..1e3 => format!("{micros:.1} µs"),
        ..1e6 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(times_ns: [u64; 2], sector: u64, bytes: u64) -> StoredIo {
        StoredIo {
            times_ns,
            resumed_ns: None,
            operation: 0,
            sector,
            bytes,
            is_metadata: false,
            has_failed: false,
        }
    }

    fn file(metadata: &[(&str, &str)], ios: Vec<StoredIo>) -> StoredFile {
        let owned = metadata
            .iter()
            .map(|&(key, value)| (key.into(), value.into()));
        StoredFile {
            metadata: owned.collect(),
            operations: vec![("254:0".into(), "read".into())],
            ios,
            ..StoredFile::default()
        }
    }

    #[test]
    fn depth_counts_what_has_begun_and_is_not_done() {
        let ios = [
            io([0, 10], 0, 512),
            io([1, 3], 0, 512),
            io([2, 9], 0, 512),
            io([3, 4], 0, 512),
            io([20, 21], 0, 512),
        ];
        assert_eq!(depths(&ios.each_ref()), [1, 2, 3, 3, 1]);
    }

    #[test]
    fn sequential_is_what_follows_the_one_before() {
        let ios = [
            io([0, 1], 8, 4096),
            io([1, 2], 16, 4096),
            io([2, 3], 16, 4096),
        ];
        assert!((sequential_share(&ios) - 0.5).abs() < 1e-9);
        assert!(sequential_share(&ios[..1]) < 1e-9);
    }

    #[test]
    fn a_bucket_is_a_power_of_two_above() {
        assert_eq!(
            [0, 999, 1_000, 3_999, 4_000].map(bucket),
            [1_000, 1_000, 2_000, 4_000, 8_000]
        );
    }

    #[test]
    fn not_recorded_refused_and_nothing_are_three_answers() {
        let mut io = Io::default();
        io.add(
            "a.bin",
            file(&[("dial9-bpf.signals", "tokio,net")], Vec::new()),
        );
        assert!(!io.is_recorded());
        assert!(
            io.render().contains("without the signal io"),
            "{}",
            io.render()
        );
        let refused = [
            ("dial9-bpf.signals", "io"),
            ("dial9-bpf.absent.block-io", "the kernel has none"),
        ];
        let mut io = Io::default();
        io.add("b.bin", file(&refused, Vec::new()));
        assert!(!io.is_recorded());
        assert!(
            io.render()
                .contains("missing: block-io: the kernel has none")
        );
        // No recorder writes this; somebody else may.
        let mut io = Io::default();
        io.add("neither.bin", file(&refused[1..], Vec::new()));
        assert!(!io.is_recorded());
        let mut io = Io::default();
        io.add("c.bin", file(&refused[..1], Vec::new()));
        assert!(io.is_recorded());
        assert!(io.render().contains("the target had no block I/O"));
    }

    #[test]
    fn waits_are_of_who_waited_and_of_files_that_tell() {
        let mut ios = vec![io([1_000, 2_000], 0, 512), io([3_000, 4_000], 0, 512)];
        ios[1].resumed_ns = std::num::NonZeroU64::new(9_000);
        let rendered = |signals, ios| {
            let mut io = Io::default();
            io.add("a.bin", file(&[("dial9-bpf.signals", signals)], ios));
            io.render()
        };
        let report = rendered("sched,io", ios.clone());
        let (_, table) = report.split_once(WAITED).expect("it has the table");
        let row = table.lines().nth(2).expect("it has a row");
        let row: Vec<&str> = row.split_whitespace().collect();
        let row = row.join(" ");
        assert_eq!(
            row,
            "254:0 read 1 50.0 % 6.0 µs 6.0 µs 6.0 µs 5.0 µs 5.0 µs"
        );
        let report = rendered("io", ios);
        assert!(!report.contains(WAITED), "{report}");
        assert!(
            report.contains("recorded without the signal sched"),
            "{report}"
        );
    }
}
