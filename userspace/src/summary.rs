//! What a recording has got and cost, at its end.
//!
//! In: counters. Out: a table. Never: an alarm about what is normal.

use std::{fmt::Write as _, path::Path};

use bytesize::ByteSize;
use dial9_bpf_trace::{
    event::TargetEnd,
    line::Finished,
    stats::{EventCounts, StackCounts, Stats},
};

use crate::{
    dispatch::Delivery,
    flight::Dumped,
    plan_report::thousands,
    status::{Snapshot, float, percent_of},
};

/// A name and what there is of it.
pub(crate) type Row = (&'static str, String);

/// The end of a recording.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    /// The target.
    pub(crate) pid: u32,
    /// Its executable.
    pub(crate) executable: &'a Path,
    /// The last moment.
    pub(crate) end: Snapshot,
    /// Why it ended.
    pub(crate) reason: &'a str,
    /// How the target ended, where that is known.
    pub(crate) target_end: Option<TargetEnd>,
    /// Everything that was counted.
    pub(crate) stats: &'a Stats,
    /// Records whose bytes did not decode.
    pub(crate) undecoded: u64,
    /// Events that are in no segment.
    pub(crate) unwritten: u64,
    /// Stacks that were left out to keep their bound.
    pub(crate) left_out: u64,
    /// Runs of programs that the kernel left out.
    pub(crate) missed_runs: u64,
    /// Records that came after later ones had been interpreted.
    pub(crate) late: u64,
    /// What the target has forked, where it has.
    pub(crate) forked: Option<String>,
    /// Events in segments.
    pub(crate) written: u64,
    /// What was traced, where that is more than the executable.
    pub(crate) objects: &'a [(&'static str, String)],
    /// Where it is; see [`output`].
    pub(crate) output: &'a [(&'static str, String)],
    /// Size of the segments where they are compressed, bytes.
    pub(crate) compressed_bytes: Option<u64>,
}

impl Summary<'_> {
    /// The summary as text.
    pub(crate) fn render(&self) -> String {
        let mut out = format!(
            "recorded process {} ({}) for {:.1} s: {}\n",
            self.pid,
            self.executable.display(),
            self.end.elapsed.as_secs_f64(),
            self.reason
        );
        if let Some(end) = self.target_end {
            writeln!(out, "the target ended: {end}").expect("to a string");
        }
        for (name, count) in event_rows(&self.stats.events) {
            row(&mut out, name, &thousands(count));
        }
        row(&mut out, "lost", &thousands(self.end.lost));
        for (name, count) in self.notable() {
            row(&mut out, name, &thousands(count));
        }
        if let Some(text) = stacks(self.stats, self.left_out) {
            row(&mut out, "stacks", &text);
        }
        if let Some(text) = no_event(self.stats) {
            row(&mut out, "hits that are no event", &text);
        }
        if let Some(text) = &self.forked {
            row(&mut out, "forked processes", text);
        }
        if let Some(text) = cost(&self.end) {
            row(&mut out, "cost", &text);
        }
        let sizes = sizes(self.written, self.end.bytes, self.compressed_bytes);
        for (name, text) in self.objects.iter().chain(self.output) {
            row(&mut out, name, text);
        }
        row(&mut out, "size", &sizes);
        out
    }

    /// What a reader should know of, where it happened.
    fn notable(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let rows = [
            ("undecoded", self.undecoded),
            ("unwritten", self.unwritten),
            ("unended polls", self.stats.unended_polls),
            ("polls cut by gaps", self.stats.polls_cut_by_gap),
            ("too late to be sorted", self.late),
            ("out of order", self.stats.out_of_order),
            ("unreadable texts", self.stats.unreadable_texts),
            ("stray pieces of texts", self.stats.stray_pieces),
            ("arrivals at unknown", self.stats.unresolved_arrivals),
            ("programs not run", self.missed_runs),
            ("off the CPU, untold", self.stats.untold_absences),
            ("I/O not done", self.stats.unfinished_io),
            ("declared probes", self.stats.events.declared),
            ("calls without an end", self.stats.unpaired_calls),
        ];
        rows.into_iter().filter(|(_, count)| *count > 0)
    }
}

/// Where the segments are: one by its file, several by their directory.
pub(crate) fn output(
    finished: &Finished,
    delivery: &Delivery,
    dumped: Option<Dumped>,
) -> Vec<(&'static str, String)> {
    let Delivery {
        dir,
        tally,
        left,
        upload,
        refusal,
        names,
        failure: _,
    } = delivery;
    let amount = |segments: u64, bytes| format!("{segments} segments, {}", ByteSize(bytes));
    let mut rows = Vec::new();
    if let Some(Dumped { dumps, events }) = dumped {
        let events = thousands(events);
        rows.push(("dumps", format!("{dumps}, with {events} events")));
    }
    match &tally.last {
        Some(last) if tally.closed == 1 && last.exists() => {
            rows.push(("segment", last.display().to_string()));
        }
        _ => rows.push(("segments", format!("{} in {}", tally.closed, dir.display()))),
    }
    if let Some(named) = names {
        rows.push(("addresses with names", named.clone()));
    }
    if let Some(path) = &finished.unsealed {
        rows.push(("not closed", path.display().to_string()));
    }
    if tally.lost > 0 {
        rows.push(("removed by others", tally.lost.to_string()));
    }
    if tally.evicted > 0 {
        rows.push(("evicted", amount(tally.evicted, tally.evicted_bytes)));
    }
    if let Some(store) = upload {
        let uploaded = amount(tally.delivered, tally.delivered_bytes);
        rows.push(("uploaded", format!("{uploaded} to {store}")));
        let left = left.map_or_else(
            || "nobody knows how much".to_owned(),
            |left| amount(left.segments, left.bytes),
        );
        let why = refusal
            .as_ref()
            .map_or_else(String::new, |why| format!("; {why}"));
        rows.push(("left in the spool", left + &why));
    }
    rows
}

fn event_rows(events: &EventCounts) -> [(&'static str, u64); 19] {
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
        ("runtime metrics", events.runtime_metrics),
        ("calls of block_on", events.block_on),
        ("panics", events.panic),
        ("off the CPU", events.off_cpu),
        ("CPU samples", events.cpu_sample),
        ("waits in polls", events.off_cpu_sample),
        ("accept queues", events.accept_queue),
        ("block I/O", events.block_io),
        ("files synced", events.synced),
        ("gaps", events.gap),
    ]
}

/// How much of the stacks there is.
fn stacks(stats: &Stats, left_out: u64) -> Option<String> {
    let stacks = &stats.stacks;
    let StackCounts {
        complete,
        truncated,
        failed,
        kernel,
        outside_polls,
    } = *stacks;
    if stacks.said() + outside_polls + left_out == 0 {
        return None;
    }
    let counts = [
        (complete, "complete"),
        (truncated, "truncated"),
        (failed, "not to the end"),
        (kernel, "without user code"),
        (outside_polls, "outside polls"),
        (left_out, "left out"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let told: Vec<String> = counts
        .map(|(count, what)| format!("{} {what}", thousands(*count)))
        .collect();
    Some(told.join(", "))
}

/// Hits that stand for nothing: of other code that runs the instruction too, or
/// the end of a poll of which the start was not probed, as while detaching.
/// Nothing is lost.
fn no_event(stats: &Stats) -> Option<String> {
    let count = stats.stray_ends + stats.dropped_unpaired + stats.unpaired_block_ons;
    (count > 0).then(|| {
        format!(
            "{} (other code at the instruction, or a poll that began unseen)",
            thousands(count)
        )
    })
}

fn cost(end: &Snapshot) -> Option<String> {
    end.paid.map(|paid| {
        let percent = percent_of(paid, end.elapsed);
        format!(
            "about {:.3} s of CPU, {percent:.1} % of a core",
            paid.as_secs_f64()
        )
    })
}

fn sizes(events: u64, raw_bytes: u64, compressed_bytes: Option<u64>) -> String {
    let size = |bytes: u64| {
        let per_event = float(bytes) / float(events.max(1));
        format!("{}, {per_event:.1} bytes/event", ByteSize(bytes))
    };
    match compressed_bytes {
        Some(bytes) => format!("{}; {} raw", size(bytes), size(raw_bytes)),
        None => format!("{} raw", size(raw_bytes)),
    }
}

fn row(out: &mut String, name: &str, value: &str) {
    writeln!(out, "  {name:<23} {value}").expect("to a string");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dial9_bpf_trace::event::Ended;

    use super::*;

    fn events() -> EventCounts {
        EventCounts {
            poll_start: 500_000,
            poll_end: 500_000,
            park: 20_000,
            unpark: 20_000,
            spawn: 40,
            terminate: 30,
            wake: 208_930,
            blocking: 1_000,
            block_on: 2,
            gap: 0,
            runtime_metrics: 300,
            panic: 0,
            off_cpu: 0,
            cpu_sample: 0,
            off_cpu_sample: 0,
            accept_queue: 0,
            usage: 0,
            block_io: 0,
            synced: 0,
            kernel_io: 0,
            declared: 0,
            target_end: 0,
        }
    }

    fn summary(stats: &Stats) -> Summary<'_> {
        Summary {
            pid: 42,
            executable: Path::new("/srv/app"),
            end: Snapshot {
                elapsed: Duration::from_millis(5_004),
                events: stats.events.total(),
                lost: 0,
                bytes: 10 << 20,
                paid: Some(Duration::from_millis(250)),
            },
            reason: "the duration is over",
            target_end: None,
            stats,
            undecoded: 0,
            left_out: 0,
            missed_runs: 0,
            unwritten: 0,
            late: 0,
            forked: None,
            written: stats.events.total(),
            objects: &[],
            output: &[],
            compressed_bytes: Some(3 << 20),
        }
    }

    #[test]
    fn a_recording_without_a_loss() {
        let file = [("segment", "dial9-traces/trace.0.bin.gz".to_owned())];
        let stats = Stats {
            events: events(),
            stray_ends: 1_200,
            dropped_unpaired: 34,
            ..Stats::default()
        };
        let summary = Summary {
            output: &file,
            ..summary(&stats)
        };
        insta::assert_snapshot!(summary.render(), @r"
        recorded process 42 (/srv/app) for 5.0 s: the duration is over
          events                  1,250,302
          poll starts             500,000
          poll ends               500,000
          wakes                   208,930
          spawns                  40
          ends of tasks           30
          parks                   20,000
          unparks                 20,000
          blocking tasks          1,000
          runtime metrics         300
          calls of block_on       2
          panics                  0
          off the CPU             0
          CPU samples             0
          waits in polls          0
          accept queues           0
          block I/O               0
          files synced            0
          gaps                    0
          lost                    0
          hits that are no event  1,234 (other code at the instruction, or a poll that began unseen)
          cost                    about 0.250 s of CPU, 5.0 % of a core
          segment                 dial9-traces/trace.0.bin.gz
          size                    3.0 MiB, 2.5 bytes/event; 10.0 MiB, 8.4 bytes/event raw
        ");
    }

    #[test]
    fn whatever_is_amiss_has_a_row() {
        let stats = Stats {
            events: EventCounts { gap: 9, ..events() },
            unended_polls: 1,
            polls_cut_by_gap: 2,
            out_of_order: 3,
            ..Stats::default()
        };
        let mut summary = summary(&stats);
        summary.undecoded = 4;
        summary.late = 6;
        summary.end.lost = 5_678;
        summary.end.paid = None;
        summary.unwritten = 77;
        summary.forked = Some("3, not traced".to_owned());
        let file = [("segment", "dial9-traces/trace.0.bin".to_owned())];
        summary.output = &file;
        summary.compressed_bytes = None;
        insta::assert_snapshot!(summary.render(), @r"
        recorded process 42 (/srv/app) for 5.0 s: the duration is over
          events                  1,250,311
          poll starts             500,000
          poll ends               500,000
          wakes                   208,930
          spawns                  40
          ends of tasks           30
          parks                   20,000
          unparks                 20,000
          blocking tasks          1,000
          runtime metrics         300
          calls of block_on       2
          panics                  0
          off the CPU             0
          CPU samples             0
          waits in polls          0
          accept queues           0
          block I/O               0
          files synced            0
          gaps                    9
          lost                    5,678
          undecoded               4
          unwritten               77
          unended polls           1
          polls cut by gaps       2
          too late to be sorted   6
          out of order            3
          forked processes        3, not traced
          segment                 dial9-traces/trace.0.bin
          size                    10.0 MiB, 8.4 bytes/event raw
        ");
    }

    #[test]
    fn how_the_target_ended_is_a_line_of_its_own() {
        let stats = Stats::default();
        let mut summary = summary(&stats);
        summary.target_end = Some(TargetEnd {
            ts_ns: 1,
            how: Ended::Signal {
                number: 11,
                is_core_dumped: false,
            },
            tid: Some(1234),
            fault_address: None,
            panic: None,
        });
        let text = summary.render();
        let line = "the target ended: signal 11 (SIGSEGV), thread 1234";
        assert_eq!(text.lines().nth(1), Some(line), "{text}");
    }

    #[test]
    fn nothing_recorded_is_no_failure() {
        let stats = Stats::default();
        let mut summary = summary(&stats);
        summary.end = Snapshot::default();
        summary.compressed_bytes = Some(0);
        assert!(summary.render().contains("0 B, 0.0 bytes/event; 0 B"));
    }
}
