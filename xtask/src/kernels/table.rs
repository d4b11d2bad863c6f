//! What works on which kernel.
//!
//! In: rows, and what the machines have said. Out: a table, its footnotes, and how many cells
//! are broken. Never: "no" without the reason in the recorder's own words.

use std::fmt::{self, Display};
use std::process::Command;

use anyhow::Result;

use super::console::Console;
use super::packages::Kernel;
use super::rows::Row;
use crate::shell;

/// A row for what the kernels say themselves.
const LOG: &str = "nothing in the kernel's log";

/// Rows of signals, and a cell for each kernel.
pub(super) struct Table {
    head: Vec<String>,
    rows: Vec<(&'static str, Vec<String>)>,
    notes: Vec<String>,
    /// Cells that are neither "yes" nor a "no" with its reason.
    pub(super) broken: usize,
}

impl Table {
    pub(super) fn of(rows: &[&Row], booted: &[(&str, Kernel, Console)]) -> Self {
        let head = booted
            .iter()
            .map(|(words, kernel, _)| format!("{} {words}", kernel.version).trim_end().to_owned());
        let mut table = Self {
            head: head.collect(),
            rows: Vec::new(),
            notes: Vec::new(),
            broken: 0,
        };
        for row in rows {
            let cells = booted
                .iter()
                .map(|(_, _, console)| table.cell(row, console));
            let cells = cells.collect();
            table.rows.push((row.what, cells));
        }
        let log = booted.iter().map(|(_, _, console)| table.log(console));
        let log = log.collect();
        table.rows.push((LOG, log));
        table
    }

    fn cell(&mut self, row: &Row, console: &Console) -> String {
        let failed = row
            .tests
            .iter()
            .filter(|(file, test)| !console.passed(file, test));
        let failed: Vec<_> = failed.map(|(_, test)| *test).collect();
        if failed.is_empty() {
            return "yes".to_owned();
        }
        match console.reason(row.absent) {
            Some(reason) => self.noted("no", reason),
            None => self.broken(&failed.join(", ")),
        }
    }

    fn log(&mut self, console: &Console) -> String {
        match console.complaints.first() {
            _ if !console.has_ended => self.broken("the machine did not come to its end"),
            Some(complaint) => self.broken(complaint),
            None => "yes".to_owned(),
        }
    }

    fn broken(&mut self, why: &str) -> String {
        self.broken += 1;
        self.noted("**broken**", why)
    }

    /// A cell with the number of a note.
    fn noted(&mut self, cell: &str, note: &str) -> String {
        let place = self.notes.iter().position(|known| known == note);
        let place = place.unwrap_or_else(|| {
            self.notes.push(note.to_owned());
            self.notes.len() - 1
        });
        format!("{cell} [{}]", place + 1)
    }

    /// The whole file.
    pub(super) fn document(&self, qemu: &str) -> Result<String> {
        let date = shell::output(Command::new("date").args(["--utc", "+%F"]))?;
        Ok(format!(
            "# The tracer on other kernels\n\n\
             `cargo xtask kernels`, {}, {qemu}: Debian's kernels for virtual machines, each \
             booted with two CPUs and 2 GiB,\nwhere the integration tests of each signal run from \
             memory, those of block I/O on a disk with ext4. \"yes\" is that all of a row's\ntests \
             pass: what the trace tells is what the test program counted. \"no\" has the reason that \
             the recorder itself\ngives there.\n\n{self}",
            date.trim(),
        ))
    }
}

/// In Markdown.
impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | {} |", self.head.join(" | "))?;
        writeln!(f, "|---|{}", "---|".repeat(self.head.len()))?;
        for (what, cells) in &self.rows {
            writeln!(f, "| {what} | {} |", cells.join(" | "))?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        for (place, note) in self.notes.iter().enumerate() {
            writeln!(f, "{}. {note}", place + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{console::Console, packages::Kernel, rows::Row};
    use super::Table;

    const ROW: Row = Row {
        what: "exec",
        tests: &[("file", "test")],
        absent: &["exec"],
    };

    #[track_caller]
    fn check(said: &str, cell: &str, notes: &[&str], broken: usize) {
        let kernel = Kernel {
            version: "6.1".to_owned(),
            image: "vmlinuz".into(),
        };
        let table = Table::of(&[&ROW], &[("", kernel, Console::read(said))]);
        assert_eq!(table.rows[0].1, [cell]);
        assert_eq!(table.notes, notes);
        assert_eq!(table.broken, broken);
    }

    #[test]
    fn what_passes() {
        check("@test file test\n@code 0 1\n@end", "yes", &[], 0);
    }

    #[test]
    fn what_a_recording_says_to_be_absent() {
        let said = "@said missing: exec: why\n@test file test\n@code 101 1\n@end";
        check(said, "no [1]", &["exec: why"], 0);
    }

    #[test]
    fn what_nobody_has_a_reason_for() {
        let said = "@test file test\n@code 101 1\n@end";
        check(said, "**broken** [1]", &["test"], 1);
    }

    #[test]
    fn a_machine_that_hangs() {
        let said = "@test file test\n@code 0 1\n";
        check(said, "yes", &["the machine did not come to its end"], 1);
    }

    #[test]
    fn what_the_kernel_complains_about() {
        let said = "@test file test\n@code 0 1\n@complaint BUG: a bug\n@end";
        check(said, "yes", &["BUG: a bug"], 1);
    }
}
