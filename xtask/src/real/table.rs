//! The result.
//!
//! In: what became of each program. Out: a table with a column for each. Never: a
//! verdict.

use std::fmt::{self, Display};

use super::Outcome;

/// Rows of what, and a cell for each program.
pub(super) struct Table {
    head: Vec<String>,
    rows: Vec<(&'static str, Vec<String>)>,
}

impl Table {
    /// Of these programs.
    pub(super) fn of(outcomes: &[Outcome]) -> Self {
        let head = outcomes
            .iter()
            .map(|outcome| format!("{} {}", outcome.program, outcome.version));
        let mut table = Self {
            head: head.collect(),
            rows: Vec::new(),
        };
        let mut row = |what, cell: &dyn Fn(&Outcome) -> String| {
            table.rows.push((what, outcomes.iter().map(cell).collect()));
        };
        let number = |schema: &'static str| {
            move |outcome: &Outcome| outcome.recording.count(schema).to_string()
        };
        row("Tokio", &|outcome| {
            let version = outcome.recording.metadata.get("tokio.version");
            version.map_or("unknown", String::as_str).to_owned()
        });
        row("requests answered, before / recorded / after", &|outcome| {
            joined(outcome, |load| load.ok().to_string())
        });
        row("bytes of their bodies", &|outcome| {
            joined(outcome, |load| load.bytes.to_string())
        });
        row("requests a second", &|outcome| {
            joined(outcome, |load| format!("{:.0}", load.per_second))
        });
        row("recorded to the mean of the others", &|outcome| {
            let [before, recorded, after] = &outcome.loads;
            let others = f64::midpoint(before.per_second, after.per_second);
            format!("{:.2}", recorded.per_second / others)
        });
        row("half of the requests within, ms", &|outcome| {
            joined(outcome, |load| format!("{:.2}", load.half_s * 1e3))
        });
        row("95 % of the requests within, ms", &|outcome| {
            joined(outcome, |load| format!("{:.2}", load.most_s * 1e3))
        });
        row("attached", &|outcome| outcome.sites.clone());
        row("missing probes", &|outcome| {
            let absent: Vec<_> = outcome.recording.absent().map(|(probe, _)| probe).collect();
            none_or(&absent.join(", "))
        });
        row("task types with a name", &|outcome| {
            let (named, all) = outcome.recording.named();
            format!("{named} of {all}")
        });
        row("recorder's exit code", &|outcome| {
            let code = outcome.status.code();
            code.map_or("signal".to_owned(), |code| code.to_string())
        });
        row("hits lost", &|outcome| outcome.recording.lost().to_string());
        row("segments", &|outcome| {
            outcome.recording.segments.to_string()
        });
        row("workers", &|outcome| {
            outcome.recording.workers.len().to_string()
        });
        row("poll starts", &number("PollStartEvent"));
        row("poll ends", &number("PollEndEvent"));
        row("polls open at the end", &|outcome| {
            outcome.recording.open().to_string()
        });
        row("wakes", &number("WakeEventEvent"));
        row("spawns", &|outcome| outcome.recording.spawns().to_string());
        row("ends of tasks", &number("TaskTerminateEvent"));
        row(
            "closures of the blocking pool",
            &number("BlockingTaskEvent"),
        );
        row("parks", &number("WorkerParkEvent"));
        row("unparks", &number("WorkerUnparkEvent"));
        row("not as it should be", &|outcome| {
            none_or(&outcome.problems.join("; "))
        });
        table
    }
}

fn joined(outcome: &Outcome, cell: impl Fn(&super::Load) -> String) -> String {
    outcome.loads.each_ref().map(cell).join(" / ")
}

fn none_or(text: &str) -> String {
    if text.is_empty() { "none" } else { text }.to_owned()
}

/// In Markdown.
impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | {} |", self.head.join(" | "))?;
        writeln!(f, "|---|{}", "---|".repeat(self.head.len()))?;
        for (what, cells) in &self.rows {
            writeln!(f, "| {what} | {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}
