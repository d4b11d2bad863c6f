//! What a recording has got and costs, while it runs.
//!
//! In: counters and measured prices. Out: one line a second. Never: a cost of
//! which the price was not measured; an end of the recording because nobody
//! reads the line.

use std::{fmt::Write as _, io, time::Duration};

use bytesize::ByteSize;
use dial9_bpf_abi::record::RecordKind;
use dial9_bpf_attach::Prices;
use dial9_bpf_probes::plan::{Plan, Probe};
use dial9_bpf_trace::{loss::Loss, stats::RecordCounts};

use crate::plan_report::{thousands, traps_a_wake};

/// What a hit of each probe costs, averaged over the probe's sites.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    prices: Prices,
    /// Of all sites of a probe together, ns, and how many they are.
    sums: [(f64, u32); Probe::ALL.len()],
}

impl Cost {
    /// Sites of no plan yet, at the prices of this machine.
    pub(crate) fn new(prices: Prices) -> Self {
        let sums = [(0.0, 0); Probe::ALL.len()];
        Self { prices, sums }
    }

    /// Adds a plan's sites.
    pub(crate) fn add(&mut self, plan: &Plan) {
        for (probe, (sum, count)) in Probe::ALL.into_iter().zip(&mut self.sums) {
            let traps = if probe == Probe::Wake {
                traps_a_wake(plan)
            } else {
                1
            };
            for site in plan.sites.iter().filter(|site| site.probe == probe) {
                *sum += self.prices.hit_ns(probe, site.class) * f64::from(traps);
                *count += 1;
            }
        }
    }

    /// CPU time that the target has paid for its hits, those that were lost
    /// included.
    pub(crate) fn of(&self, records: &RecordCounts, losses: &[Loss]) -> Duration {
        let hits = hits(records, losses).map(float);
        let price = |(sum, count): &(f64, u32)| sum / f64::from(*count.max(&1));
        let ns: f64 = (self.sums.iter().map(price).zip(hits))
            .map(|(price, hits)| price * hits)
            .sum();
        Duration::try_from_secs_f64(ns / 1e9).unwrap_or_default()
    }
}

fn hits(records: &RecordCounts, losses: &[Loss]) -> [u64; Probe::ALL.len()] {
    Probe::ALL.map(|probe| {
        let (kind, recorded) = match probe {
            Probe::PollStart => (RecordKind::POLL_START, records.poll_start),
            Probe::PollEnd => (RecordKind::POLL_END, records.poll_end),
            Probe::Wake => (RecordKind::WAKE, records.wake),
            Probe::Spawn => (RecordKind::SPAWN, records.spawn),
            Probe::Terminate => (RecordKind::TERMINATE, records.terminate),
            Probe::Park => (RecordKind::PARK, records.park),
            Probe::Unpark => (RecordKind::UNPARK, records.unpark),
            Probe::Panic => (RecordKind::PANIC, records.panic),
            Probe::PanicMessage => (RecordKind::TEXT, records.message),
            Probe::BlockOn => (RecordKind::BLOCK_ON, records.block_on),
            Probe::BlockOnEnd => (RecordKind::BLOCK_ON_END, records.block_on_end),
        };
        let lost = losses.iter().filter(|loss| loss.kind == kind);
        recorded + lost.map(|loss| loss.total).sum::<u64>()
    })
}

/// A recording at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Snapshot {
    /// Time since the links are live.
    pub(crate) elapsed: Duration,
    /// Events written.
    pub(crate) events: u64,
    /// Hits lost.
    pub(crate) lost: u64,
    /// Bytes of the segment.
    pub(crate) bytes: u64,
    /// CPU time that the target has paid; `None` where the price is unknown.
    pub(crate) paid: Option<Duration>,
}

/// One line: rates since `before`, totals since attach.
pub(crate) fn line(before: &Snapshot, now: &Snapshot) -> String {
    let passed = now.elapsed.saturating_sub(before.elapsed);
    let mut line = format!(
        "{:.0} s: {} events/s, {} lost, {}",
        now.elapsed.as_secs_f64(),
        thousands(rate(now.events.saturating_sub(before.events), passed)),
        thousands(now.lost),
        ByteSize(now.bytes),
    );
    if let (Some(then), Some(paid)) = (before.paid, now.paid) {
        let percent = percent_of(paid.saturating_sub(then), passed);
        write!(line, ", costs about {percent:.1} % of a core").expect("to a string");
    }
    line
}

/// `part` of `whole` time, in percent.
pub(crate) fn percent_of(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64().max(1e-3) * 100.0
}

/// A count, to calculate with.
#[expect(
    clippy::cast_precision_loss,
    reason = "shown with a few digits; exact up to 2^53"
)]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// `count` in `time`, a second.
fn rate(count: u64, time: Duration) -> u64 {
    let per_second = u128::from(count) * 1000 / time.as_millis().max(1);
    u64::try_from(per_second).unwrap_or(u64::MAX)
}

/// The place of the status line: on a terminal always the same line, elsewhere
/// one after the other.
#[derive(Debug)]
pub(crate) struct StatusLine<W> {
    out: W,
    is_terminal: bool,
    is_open: bool,
}

impl StatusLine<io::Stderr> {
    /// On stderr.
    pub(crate) fn on_stderr() -> Self {
        let out = io::stderr();
        Self::new(io::IsTerminal::is_terminal(&out), out)
    }
}

impl<W: io::Write> StatusLine<W> {
    fn new(is_terminal: bool, out: W) -> Self {
        Self {
            out,
            is_terminal,
            is_open: false,
        }
    }

    /// Shows a line in place of the one before.
    pub(crate) fn show(&mut self, line: &str) {
        // A failure is of no consequence, here and below: the line is for who
        // reads it, and the recording goes on.
        let _ = if self.is_terminal {
            write!(self.out, "\r{line}\x1b[K")
        } else {
            writeln!(self.out, "{line}")
        };
        self.is_open = self.is_terminal;
    }

    /// Leaves the last line as it is; what is printed next begins a new one.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            let _ = writeln!(self.out);
        }
    }
}

#[cfg(test)]
mod tests;
