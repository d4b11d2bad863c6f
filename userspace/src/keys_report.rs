//! What segments say of the keys of declared probes, in tables.
//!
//! In: hits out of files, in the order of time. Out: how often each key was there, and after
//! how long and how many hits it was again. Never: more keys in memory than a bound; a key
//! that was not read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    path::Path,
    time::Duration,
};

use dial9_bpf_trace::stored_hits::{StoredHit, StoredValue, Told};
use hdrhistogram::Histogram;

use crate::{
    args::ReportKeysArgs,
    plan_report::{align_right, table, text, thousands},
    status::float,
};

/// Keys that are counted, of all events together; hits of others are counted as such.
const MOST_KEYS: usize = 1_000_000;
/// Events, and values of `--by`, that are told apart.
const MOST_GROUPS: usize = 1000;
/// Longest distance that is told apart: a day in ns.
const MOST: u64 = 86_400_000_000_000;
/// Digits of a distance that are right.
const DIGITS: u8 = 3;

/// A field that is no key unless it was asked for.
const DURATION: &str = "duration_ns";

/// The keys of some files.
#[derive(Debug)]
pub(crate) struct Keys<'a> {
    args: &'a ReportKeysArgs,
    groups: BTreeMap<(String, String), Group>,
    /// Keys of all groups.
    counted: usize,
    /// Hits that have no key.
    keyless: u64,
    /// Hits of groups beyond the bound.
    ungrouped: u64,
    lost: u64,
    notes: BTreeSet<String>,
    files: usize,
}

/// What has one name, and one value of `--by`.
#[derive(Debug)]
struct Group {
    field: String,
    hits: u64,
    /// Hits of keys beyond the bound.
    uncounted: u64,
    keys: HashMap<Box<str>, Seen>,
    again_ns: Histogram<u64>,
    again_hits: Histogram<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    count: u64,
    last_ns: u64,
    last_hit: u64,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(args: &'a ReportKeysArgs) -> Self {
        Self {
            args,
            groups: BTreeMap::new(),
            counted: 0,
            keyless: 0,
            ungrouped: 0,
            lost: 0,
            notes: BTreeSet::new(),
            files: 0,
        }
    }

    /// Takes a hit.
    pub(crate) fn add(&mut self, hit: &StoredHit<'_>) {
        if self
            .args
            .event
            .as_deref()
            .is_some_and(|event| event != hit.event)
        {
            return;
        }
        let Some((field, key)) = self.key(hit) else {
            self.keyless += 1;
            return;
        };
        let by = self.args.by.as_deref().map_or_else(String::new, |by| {
            let value = hit.fields.iter().find(|(name, _)| *name == by);
            value.map_or_else(|| "(absent)".to_owned(), |(_, value)| shown(*value))
        });
        let of = (hit.event.to_owned(), by);
        if self.groups.len() >= MOST_GROUPS && !self.groups.contains_key(&of) {
            self.ungrouped += 1;
            return;
        }
        let group = self.groups.entry(of).or_insert_with(|| Group::of(field));
        let has_room = self.counted < MOST_KEYS;
        self.counted += usize::from(group.add(hit.ts_ns, &shown(key), has_room));
    }

    fn key<'h>(&self, hit: &StoredHit<'h>) -> Option<(&'h str, StoredValue<'h>)> {
        let fields = || hit.fields.iter().copied();
        if let Some(name) = &self.args.field {
            return fields().find(|(field, _)| field == name);
        }
        let is_text =
            |value: &StoredValue<'_>| matches!(value, StoredValue::Bytes(_) | StoredValue::Text(_));
        let by = self.args.by.as_deref();
        let is_number = |name: &str| name != DURATION && Some(name) != by;
        fields()
            .find(|(_, value)| is_text(value))
            .or_else(|| fields().find(|(name, _)| is_number(name)))
    }

    /// Takes what a file says of itself.
    pub(crate) fn file(&mut self, path: &Path, told: Told) {
        let path = path.display();
        self.files += 1;
        self.lost += told.lost;
        if let Some(torn) = told.torn {
            self.notes
                .insert(format!("{path}: not read to its end: {torn}"));
        }
        let dropped = told.metadata.get("dial9-bpf.capture.dropped_events");
        if let Some(dropped) = dropped.filter(|dropped| *dropped != "0") {
            let note = format!("{path}: {dropped} events were left out to keep its size");
            self.notes.insert(note);
        }
    }

    /// Whether there was no key at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Hits that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The report as text.
    pub(crate) fn render(&self) -> String {
        let mut out = format!("files: {}\n", self.files);
        for note in &self.notes {
            writeln!(out, "{note}").expect("to a string");
        }
        for (count, what) in [
            (self.keyless, "hits without a key"),
            (self.ungrouped, "hits of more values than are told apart"),
            (self.lost, "hits lost"),
        ] {
            if count > 0 {
                writeln!(out, "{what}: {}", thousands(count)).expect("to a string");
            }
        }
        if self.is_empty() {
            out.push_str("no hits of declared probes\n");
        }
        for ((event, by), group) in &self.groups {
            let by = match &self.args.by {
                Some(name) => format!(", {name} {by}"),
                None => String::new(),
            };
            writeln!(out, "\n{event}{by}, by {}:", group.field).expect("to a string");
            group.render(self.args.top, &mut out);
        }
        out
    }
}

impl Group {
    fn of(field: &str) -> Self {
        let histogram = || Histogram::new_with_max(MOST, DIGITS).expect("the bounds are sound");
        Self {
            field: field.to_owned(),
            hits: 0,
            uncounted: 0,
            keys: HashMap::new(),
            again_ns: histogram(),
            again_hits: histogram(),
        }
    }

    /// Whether the key is one more.
    fn add(&mut self, ts_ns: u64, key: &str, has_room: bool) -> bool {
        self.hits += 1;
        if let Some(seen) = self.keys.get_mut(key) {
            self.again_ns
                .saturating_record(ts_ns.saturating_sub(seen.last_ns));
            self.again_hits.saturating_record(self.hits - seen.last_hit);
            *seen = Seen {
                count: seen.count + 1,
                last_ns: ts_ns,
                last_hit: self.hits,
            };
            return false;
        }
        if !has_room {
            self.uncounted += 1;
            return false;
        }
        let seen = Seen {
            count: 1,
            last_ns: ts_ns,
            last_hit: self.hits,
        };
        self.keys.insert(key.into(), seen);
        true
    }

    fn render(&self, top: usize, out: &mut String) {
        let share = |count: u64| format!("{:.1} %", 100.0 * float(count) / float(self.hits.max(1)));
        let again = self.again_ns.len();
        writeln!(
            out,
            "{} hits, {} keys, {} hits of a key that was there before ({})",
            thousands(self.hits),
            thousands(self.keys.len() as u64),
            thousands(again),
            share(again)
        )
        .expect("to a string");
        if self.uncounted > 0 {
            let uncounted = thousands(self.uncounted);
            writeln!(
                out,
                "{uncounted} hits are of further keys, which are not counted"
            )
            .expect("to a string");
        }
        let mut ranked: Vec<(&str, &Seen)> =
            self.keys.iter().map(|(key, seen)| (&**key, seen)).collect();
        ranked.sort_unstable_by(|a, b| b.1.count.cmp(&a.1.count).then(a.0.cmp(b.0)));
        let mut keys = table(&["key", "hits", "share"]);
        for (key, seen) in ranked.into_iter().take(top) {
            keys.add_row([key.to_owned(), thousands(seen.count), share(seen.count)]);
        }
        align_right(&mut keys, 1);
        writeln!(out, "{}", text(&keys)).expect("to a string");
        if again == 0 {
            return;
        }
        let mut distances = table(&["again after", "p10", "p50", "p90", "p99", "max"]);
        let at = [0.1, 0.5, 0.9, 0.99, 1.0];
        let time = |ns| format!("{:.1?}", Duration::from_nanos(ns));
        let mut row = vec!["time".to_owned()];
        row.extend(at.map(|at| time(self.again_ns.value_at_quantile(at))));
        distances.add_row(row);
        let mut row = vec!["hits".to_owned()];
        row.extend(at.map(|at| thousands(self.again_hits.value_at_quantile(at))));
        distances.add_row(row);
        align_right(&mut distances, 1);
        writeln!(out, "{}", text(&distances)).expect("to a string");
    }
}

/// A value as text, of one line.
fn shown(value: StoredValue<'_>) -> String {
    match value {
        StoredValue::Number(number) => number.to_string(),
        StoredValue::Signed(number) => number.to_string(),
        StoredValue::Bool(is_true) => is_true.to_string(),
        StoredValue::Text(text) => text.escape_debug().to_string(),
        StoredValue::Bytes(bytes) => bytes.iter().fold(String::new(), |mut out, byte| {
            write!(out, "{byte:02x}").expect("to a string");
            out
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_counted_and_its_distance_is_from_the_last_time() {
        let mut group = Group::of("key");
        assert!(group.add(10, "a", true));
        assert!(group.add(20, "b", true));
        assert!(!group.add(50, "a", true));
        assert!(!group.add(60, "c", false));
        assert!(!group.add(70, "a", false));
        assert_eq!((group.hits, group.uncounted, group.keys.len()), (5, 1, 2));
        assert_eq!(group.keys["a"].count, 3);
        let of = |of: &Histogram<u64>| (of.len(), of.min(), of.max());
        assert_eq!(of(&group.again_ns), (2, 20, 40));
        assert_eq!(of(&group.again_hits), (2, 2, 2));
    }
}
