//! The table of the matrix.
//!
//! In: results. Out: Markdown. Never: a number that was not measured.

use std::{fmt::Write as _, process::Command};

use crate::{
    cells::{Cell, Compiler},
    judge::{EVENTS, Verdict, Verdicts},
    twin::Twin,
};

/// What was found out about a cell.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) cell: Cell,
    pub(crate) result: Result<Measured, String>,
}

/// What was measured of a cell that could be built.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) plain: Verdicts,
    /// Of the same binary after `strip`.
    pub(crate) stripped: Verdicts,
    pub(crate) twin: Twin,
}

/// The columns that count for the stripped twin.
const OF_TWIN: usize = 4;

/// The whole document.
pub(crate) fn document(rows: &[Row]) -> String {
    let rustc = rustc();
    let summary = summary(rows);
    let table = render(rows, &rustc);
    format!(
        "# What is exact on which build\n\n\
         `cargo xtask matrix` has written this. One program, `matrix/counted.rs`, that counts its own \
         polls, wakes, spawns and ends, is built in {count} ways, recorded by `dial9-bpf attach` while it \
         works, and compared task by task; then the same binary after `strip`.\n\n\
         *exact*: equal numbers for each task. *partial*: events, with a reason for what is not equal. \
         *absent*: no events. The numbers are those of the reasons at the end. Parks cannot be counted \
         by the program: *exact* says there that they come in pairs. *sites*: how many of the sites \
         that are found with symbols are found without (spawns, the places of panics and `block_on` need \
         symbols).\n\n\
         {summary}\n{table}",
        count = rows.len(),
    )
}

/// The version of the compiler that the cells have which name none.
fn rustc() -> String {
    let output = Command::new("rustc").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = text.ok();
    let version = version
        .as_deref()
        .and_then(|text| text.split_whitespace().nth(1));
    version.unwrap_or("unknown").to_owned()
}

/// One cell in a line, with its reasons.
pub(crate) fn line(row: &Row) -> String {
    let mut text = row.cell.name();
    match &row.result {
        Err(reason) => {
            let _ = write!(text, ": {reason}");
        }
        Ok(measured) => {
            let of = [("", &measured.plain), ("stripped ", &measured.stripped)];
            for (which, verdicts) in of {
                for (event, verdict) in EVENTS.iter().zip(verdicts) {
                    if *verdict != Verdict::Exact {
                        let _ = write!(text, "\n    {which}{event}: {verdict:?}");
                    }
                }
            }
            if !measured.twin.is_equal() {
                let _ = write!(text, "\n    {:?}", measured.twin);
            }
        }
    }
    text
}

/// The table, with the reasons below it.
fn render(rows: &[Row], rustc: &str) -> String {
    let mut reasons = Vec::new();
    let mut text = String::from("| Tokio | build | rustc |");
    for event in EVENTS {
        let _ = write!(text, " {event} |");
    }
    text.push_str(" stripped: polls, wakes, spawns, ends | sites |\n");
    text.push_str(&"|---".repeat(EVENTS.len() + 5));
    text.push_str("|\n");
    for row in rows {
        let cell = row.cell;
        let unstable = if cell.unstable { " unstable" } else { "" };
        let compiler = match cell.compiler {
            Compiler::Here => rustc,
            other => other.name(),
        };
        let _ = write!(
            text,
            "| {}{unstable} | {} | {compiler} |",
            cell.tokio,
            cell.shape.name()
        );
        match &row.result {
            Err(reason) => {
                let note = note(reason, &mut reasons);
                let _ = write!(text, " not measured {note}");
                text.push_str(&" |".repeat(EVENTS.len() + 2));
                text.push('\n');
            }
            Ok(measured) => {
                for verdict in &measured.plain {
                    let _ = write!(text, " {} |", word(verdict, &mut reasons));
                }
                let stripped = measured.stripped[..OF_TWIN].iter();
                let words: Vec<_> = stripped
                    .map(|verdict| word(verdict, &mut reasons))
                    .collect();
                let _ = writeln!(text, " {} | {} |", words.join(", "), sites(measured.twin));
            }
        }
    }
    text.push('\n');
    for (index, reason) in reasons.iter().enumerate() {
        let _ = writeln!(text, "{}. {reason}", index + 1);
    }
    text
}

/// How many cells are what, for one kind of event after the other.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut text = String::from("| event | exact | partial | absent |\n|---|---|---|---|\n");
    let measured: Vec<_> = measured_of(rows, |_| true).collect();
    let mut line = |name: &str, verdicts: &[&Verdict]| {
        let count = |is: fn(&Verdict) -> bool| verdicts.iter().filter(|it| is(it)).count();
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} |",
            count(|it| matches!(it, Verdict::Exact)),
            count(|it| matches!(it, Verdict::Partial(_))),
            count(|it| matches!(it, Verdict::Absent(_))),
        );
    };
    for (index, event) in EVENTS.iter().enumerate() {
        let of_event: Vec<_> = measured.iter().map(|it| &it.plain[index]).collect();
        line(event, &of_event);
    }
    for (index, event) in EVENTS[..OF_TWIN].iter().enumerate() {
        let of_event: Vec<_> = measured.iter().map(|it| &it.stripped[index]).collect();
        line(&format!("{event}, stripped"), &of_event);
    }
    let promised: Vec<_> = measured_of(rows, Cell::is_promised).collect();
    let share = |is_exact: fn(&Measured) -> bool| {
        let exact = promised.iter().filter(|it| is_exact(it)).count();
        let percent = exact as f64 * 100.0 / promised.len().max(1) as f64;
        format!("{exact} of {} cells ({percent:.1} %)", promised.len())
    };
    let twins = measured.iter().map(|it| it.twin);
    let twins: Vec<_> = twins.filter(|twin| twin.with + twin.without > 0).collect();
    let equal = twins.iter().filter(|twin| twin.is_equal()).count();
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    let _ = writeln!(
        text,
        "\nFrom Tokio 1.28 on polls and wakes are exact in {} as built, and in {} stripped. \
         Without symbols the same sites are found in {equal} of {} cells that have any. \
         {failed} of {} cells could not be measured.",
        share(|it| is_exact(&it.plain)),
        share(|it| is_exact(&it.stripped)),
        twins.len(),
        rows.len()
    );
    text
}

fn measured_of(rows: &[Row], is_it: fn(Cell) -> bool) -> impl Iterator<Item = &Measured> {
    rows.iter()
        .filter(move |row| is_it(row.cell))
        .filter_map(|row| row.result.as_ref().ok())
}

/// Whether polls and wakes are exact.
pub(crate) fn is_exact(verdicts: &Verdicts) -> bool {
    verdicts[..2] == [Verdict::Exact, Verdict::Exact]
}

fn sites(twin: Twin) -> String {
    if twin.is_equal() {
        return format!("{} of {}", twin.both, twin.with);
    }
    let extra = twin.without - twin.both;
    format!("{} of {}, {extra} others", twin.both, twin.with)
}

fn word(verdict: &Verdict, reasons: &mut Vec<String>) -> String {
    match verdict {
        Verdict::Exact => "exact".to_owned(),
        Verdict::Partial(reason) => format!("partial {}", note(reason, reasons)),
        Verdict::Absent(reason) => format!("absent {}", note(reason, reasons)),
    }
}

fn note(reason: &str, reasons: &mut Vec<String>) -> String {
    let reason = reason.replace('\n', " ");
    let index = reasons.iter().position(|known| *known == reason);
    let index = index.unwrap_or_else(|| {
        reasons.push(reason);
        reasons.len() - 1
    });
    format!("({})", index + 1)
}
