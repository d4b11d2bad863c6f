//! What was compared.
//!
//! In: pairs of what the viewer says and what we count. Out: a table, and whether
//! the pairs are equal. Never: a pair that is left out because it differs.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use anyhow::{Result, bail};

/// The pairs so far.
#[derive(Default)]
pub(super) struct Table(Vec<Pair>);

struct Pair {
    what: String,
    viewers: String,
    ours: String,
}

impl Table {
    /// One thing that both say.
    pub(super) fn add(
        &mut self,
        what: impl Into<String>,
        viewers: impl Display,
        ours: impl Display,
    ) {
        self.0.push(Pair {
            what: what.into(),
            viewers: viewers.to_string(),
            ours: ours.to_string(),
        });
    }

    /// The same for names, in any order; the table has how many they are.
    pub(super) fn add_names(&mut self, what: &str, viewers: &[String], ours: &[String]) {
        let [theirs, own]: [BTreeSet<_>; 2] = [viewers, ours].map(|names| names.iter().collect());
        let odd = theirs.symmetric_difference(&own).next();
        let odd = odd.map_or(String::new(), |name| format!(", not both have {name}"));
        self.add(what, format!("{}{odd}", viewers.len()), ours.len());
    }

    /// Whether all pairs are equal.
    ///
    /// # Errors
    ///
    /// The pairs that are not.
    pub(super) fn verdict(&self) -> Result<()> {
        let differing: Vec<_> = self
            .0
            .iter()
            .filter(|pair| pair.viewers != pair.ours)
            .map(|pair| {
                format!(
                    "{}: {} in the viewer, {} by us",
                    pair.what, pair.viewers, pair.ours
                )
            })
            .collect();
        if !differing.is_empty() {
            bail!("{}", differing.join("; "));
        }
        Ok(())
    }
}

/// In Markdown.
impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | the viewer | we |\n|---|---|---|")?;
        for Pair {
            what,
            viewers,
            ours,
        } in &self.0
        {
            writeln!(f, "| {what} | {viewers} | {ours} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    fn verdict(table: &Table) -> String {
        table
            .verdict()
            .map_or_else(|error| error.to_string(), |()| "equal".to_owned())
    }

    #[test]
    fn one_wrong_count_is_enough() {
        let mut table = Table::default();
        table.add("events", 12, 12);
        table.add("workers", 2, 2);
        assert_eq!(verdict(&table), "equal");
        table.add("tasks", 4, 5);
        assert_eq!(verdict(&table), "tasks: 4 in the viewer, 5 by us");
    }

    #[test]
    fn names_are_compared_not_only_counted() {
        let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
        let mut table = Table::default();
        table.add_names("keys", &[a.clone(), b.clone()], &[b.clone(), a.clone()]);
        assert_eq!(verdict(&table), "equal");
        table.add_names("keys", &[a.clone(), b], &[a, c]);
        assert_eq!(
            verdict(&table),
            "keys: 2, not both have b in the viewer, 2 by us"
        );
    }
}
