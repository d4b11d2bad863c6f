//! What `dial9-bpf check` says of a segment.
//!
//! In: a segment. Out: what it counts. Never: counts of a segment that it finds
//! anything wrong with.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell;

/// What `dial9-bpf check` prints.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// Workers that poll or park.
    pub(crate) workers: u64,
    /// Events by schema.
    pub(crate) events: BTreeMap<String, u64>,
}

impl Check {
    /// Of a segment in a file.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let mut check = Command::new(shell::tracer());
        let printed = shell::output(check.arg("check").arg(path))?;
        Self::parse(&printed).with_context(|| format!("dial9-bpf check printed {printed}"))
    }

    /// `N events in …, M workers`, then `N SCHEMA (…)` for each.
    fn parse(printed: &str) -> Option<Self> {
        let mut lines = printed.lines().skip(1);
        let (_, workers) = lines.next()?.rsplit_once(", ")?;
        let workers = workers.strip_suffix(" workers")?.parse().ok()?;
        let events = lines.map_while(|line| {
            let (count, rest) = line.trim_start().split_once(' ')?;
            let (schema, _) = rest.split_once(' ')?;
            Some((schema.to_owned(), count.parse().ok()?))
        });
        let events = events.collect();
        Some(Self { workers, events })
    }

    /// Events of a schema.
    pub(crate) fn events(&self, schema: &str) -> u64 {
        self.events.get(schema).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Check;

    #[test]
    fn a_report_is_read() {
        let printed = "\
a/trace.0.bin.gz:
1234 events in 5678 bytes (90 compressed), 2.000 s, 2 workers
       620 PollStartEvent (worker_id:Varint, local_queue:U8)
       614 PollEndEvent (worker_id:Varint)
  service = demo
";
        let check = Check::parse(printed).expect("it is a report");
        assert_eq!(check.workers, 2);
        assert_eq!(check.events("PollStartEvent"), 620);
        assert_eq!(check.events("PollEndEvent"), 614);
        assert_eq!(check.events("service"), 0);
        assert_eq!(Check::parse("a:\nno report\n"), None);
    }
}
