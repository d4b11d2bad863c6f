//! What a recording costs and has got: the status line and the summary.
//!
//! In: counters and measured prices. Out: text. Never: a cost of which the
//! price was not measured.

use std::{fmt::Write as _, time::Duration};

use bytesize::ByteSize;
use dial9_bpf_attach::{Prices, Target};
use dial9_bpf_probes::plan::{Plan, Probe};
use dial9_bpf_trace::stats::{EventCounts, RecordCounts, Stats};

use crate::plan_report::{thousands, traps_a_wake};

/// What a hit of each probe costs, averaged over the probe's sites.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    hit_ns: [f64; Probe::ALL.len()],
}

impl Cost {
    /// The plan's sites at the prices of this machine.
    pub fn new(plan: &Plan, prices: &Prices) -> Self {
        let hit_ns = Probe::ALL.map(|probe| {
            let sites = plan.sites.iter().filter(|site| site.probe == probe);
            let prices: Vec<f64> = sites.map(|site| prices.hit_ns(probe, site.class)).collect();
            let traps = if probe == Probe::Wake { f64::from(traps_a_wake(plan)) } else { 1.0 };
            prices.iter().sum::<f64>() * traps / (prices.len().max(1) as f64)
        });
        Self { hit_ns }
    }

    /// CPU time that the target has paid for its records.
    pub fn of(&self, records: &RecordCounts) -> Duration {
        let ns: f64 = (self.hit_ns.iter().zip(by_probe(records)))
            .map(|(price, hits)| price * hits as f64)
            .sum();
        Duration::from_secs_f64(ns / 1e9)
    }
}

fn by_probe(records: &RecordCounts) -> [u64; Probe::ALL.len()] {
    Probe::ALL.map(|probe| match probe {
        Probe::PollStart => records.poll_start,
        Probe::PollEnd => records.poll_end,
        Probe::Wake => records.wake,
        Probe::Spawn => records.spawn,
        Probe::Terminate => records.terminate,
        Probe::Park => records.park,
        Probe::Unpark => records.unpark,
    })
}

/// A recording at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Time since attach.
    pub elapsed: Duration,
    /// Events written.
    pub events: u64,
    /// Hits lost.
    pub lost: u64,
    /// Bytes of the segment.
    pub bytes: u64,
    /// CPU time that the target has paid; `None` where the price is unknown.
    pub paid: Option<Duration>,
}

/// One line: rates since `before`, totals since attach.
pub fn line(before: &Snapshot, now: &Snapshot) -> String {
    let seconds = (now.elapsed - before.elapsed).as_secs_f64().max(1e-3);
    let rate = (now.events - before.events) as f64 / seconds;
    let mut line = format!(
        "{:.0} s: {} events/s, {} lost, {}",
        now.elapsed.as_secs_f64(),
        thousands(rate as u64),
        thousands(now.lost),
        ByteSize(now.bytes),
    );
    if let (Some(then), Some(paid)) = (before.paid, now.paid) {
        let share = (paid - then).as_secs_f64() / seconds * 100.0;
        write!(line, ", costs the target about {share:.1} % of a core").expect("to a string");
    }
    line
}

/// The end of a recording.
#[derive(Debug)]
pub struct Summary<'a> {
    /// What was recorded.
    pub target: &'a Target,
    /// The last moment.
    pub end: Snapshot,
    /// Why it ended.
    pub reason: &'a str,
    /// Everything that was counted.
    pub stats: &'a Stats,
    /// Records whose bytes did not decode.
    pub undecoded: u64,
    /// The file, and its size where it is compressed.
    pub file: String,
    /// Size of the compressed file, bytes.
    pub compressed_bytes: Option<u64>,
}

impl Summary<'_> {
    /// The summary as text.
    pub fn render(&self) -> String {
        let Self { target, end, reason, stats, undecoded, file, compressed_bytes } = self;
        let mut out = format!(
            "recorded process {} ({}) for {:.1} s: {reason}\n",
            target.pid(),
            target.path().display(),
            end.elapsed.as_secs_f64()
        );
        for (name, count) in event_rows(&stats.events) {
            row(&mut out, name, &thousands(count));
        }
        row(&mut out, "lost", &thousands(end.lost));
        for (name, count) in notable(stats, *undecoded) {
            row(&mut out, name, &thousands(count));
        }
        if let Some(paid) = end.paid {
            let share = paid.as_secs_f64() / end.elapsed.as_secs_f64().max(1e-3) * 100.0;
            let text = format!("about {:.3} s of CPU, {share:.1} % of a core", paid.as_secs_f64());
            row(&mut out, "cost", &text);
        }
        row(&mut out, "segment", &format!("{file}{}", sizes(end, *compressed_bytes)));
        out
    }
}

fn event_rows(events: &EventCounts) -> [(&'static str, u64); 10] {
    [
        ("events", events.total()),
        ("poll starts", events.poll_start),
        ("poll ends", events.poll_end),
        ("wakes", events.wake),
        ("spawns", events.spawn),
        ("ends of tasks", events.terminate),
        ("parks", events.park),
        ("unparks", events.unpark),
        ("blocking tasks", events.blocking),
        ("gaps", events.gap),
    ]
}

/// What a reader should know of, where it happened.
fn notable(stats: &Stats, undecoded: u64) -> impl Iterator<Item = (&'static str, u64)> {
    let rows = [
        ("undecoded", undecoded),
        ("stray ends", stats.stray_ends),
        ("unended polls", stats.unended_polls),
        ("polls cut by gaps", stats.polls_cut_by_gap),
        ("unpaired parks", stats.dropped_unpaired),
        ("out of order", stats.out_of_order),
    ];
    rows.into_iter().filter(|(_, count)| *count > 0)
}

fn sizes(end: &Snapshot, compressed_bytes: Option<u64>) -> String {
    let per_event = |bytes: u64| bytes as f64 / end.events.max(1) as f64;
    let raw = format!("{} raw, {:.1} bytes/event", ByteSize(end.bytes), per_event(end.bytes));
    match compressed_bytes {
        Some(bytes) => {
            format!(" ({}, {:.1} bytes/event; {raw})", ByteSize(bytes), per_event(bytes))
        }
        None => format!(" ({raw})"),
    }
}

fn row(out: &mut String, name: &str, value: &str) {
    writeln!(out, "  {name:<18} {value}").expect("to a string");
}
