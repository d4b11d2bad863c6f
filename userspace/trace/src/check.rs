//! Whether a segment is what dial9's readers take.
//!
//! In: a `.bin`, `.bin.gz` or `.bin.active` file. Out: a [`Report`]: what it
//! holds, and every rule that it breaks. Never: a repair; a lenient reading.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use dial9_trace_format::decoder::{Decoder, RawEvent};
use dial9_trace_format::schema::SchemaEntry;
use dial9_trace_format::types::FieldValueRef;
use flate2::bufread::GzDecoder;

use rules::Rules;

mod rules;

/// A file that cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", path.display())]
pub struct CheckError {
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// What a segment holds and what is wrong with it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Size of the file, bytes.
    pub file_bytes: u64,
    /// Size of the trace in it, bytes.
    pub raw_bytes: u64,
    /// Length of the part that decodes, bytes; a cut there is a whole file.
    pub whole_bytes: u64,
    /// Events by schema name.
    pub events: BTreeMap<String, u64>,
    /// Fields by schema name, as text.
    pub schemas: BTreeMap<String, String>,
    /// First and last event, `CLOCK_MONOTONIC` ns, without the announcements
    /// of tasks, which keep their own time.
    pub range_ns: Option<(u64, u64)>,
    /// The metadata map; later values win.
    pub metadata: BTreeMap<String, String>,
    /// Worker ids with polls or parks.
    pub workers: BTreeSet<u64>,
    /// Rules broken; one line each.
    pub problems: Vec<String>,
    /// What is legal but worth knowing; one line each.
    pub notes: Vec<String>,
}

/// Whether the end of a segment can be expected to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Still being written, or left by a crash.
    Active,
    /// Renamed at the seal.
    Sealed,
}

/// Checks a segment file. A name that ends in `.active` is not sealed yet.
///
/// # Errors
///
/// [`CheckError`] when the file cannot be read; what is wrong inside it is in
/// the report.
pub fn check_file(path: &Path) -> Result<Report, CheckError> {
    let bytes = std::fs::read(path).map_err(|source| CheckError {
        path: path.to_owned(),
        source,
    })?;
    let is_active = path
        .extension()
        .is_some_and(|extension| extension == "active");
    let stage = if is_active {
        Stage::Active
    } else {
        Stage::Sealed
    };
    let mut report = if bytes.starts_with(&[0x1f, 0x8b]) {
        let (raw, problem) = gunzip(&bytes);
        let mut report = check_bytes(&raw, stage);
        report.problems.splice(0..0, problem);
        report
    } else {
        check_bytes(&bytes, stage)
    };
    report.file_bytes = bytes.len() as u64;
    Ok(report)
}

/// Checks the uncompressed bytes of a segment.
pub fn check_bytes(raw: &[u8], stage: Stage) -> Report {
    let length = raw.len() as u64;
    let mut report = Report {
        file_bytes: length,
        raw_bytes: length,
        ..Report::default()
    };
    let Some(mut decoder) = Decoder::new(raw) else {
        report
            .problems
            .push("the file does not begin with a trace header".into());
        return report;
    };
    let mut rules = Rules::default();
    let decoded = decoder.for_each_event(|event| {
        rules.event(&event);
        report.event(&event);
    });
    report.whole_bytes = decoder.position() as u64;
    if let Err(error) = decoded {
        let torn = report.raw_bytes - report.whole_bytes;
        report.problems.push(format!(
            "the last {torn} bytes do not decode (byte {}: {})",
            report.whole_bytes, error.message
        ));
    }
    rules.finish(&mut report, stage);
    report
}

impl Report {
    /// Whether no rule is broken.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// The report for people, several lines.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // A String takes everything.
        let _ = self.render_to(&mut text);
        text
    }

    fn render_to(&self, text: &mut String) -> std::fmt::Result {
        let total: u64 = self.events.values().sum();
        write!(text, "{total} events in {} bytes", self.raw_bytes)?;
        if self.file_bytes != self.raw_bytes {
            write!(text, " ({} compressed)", self.file_bytes)?;
        }
        if let Some((first, last)) = self.range_ns {
            let millis = (last - first) / 1_000_000;
            write!(text, ", {}.{:03} s", millis / 1000, millis % 1000)?;
        }
        writeln!(text, ", {} workers", self.workers.len())?;
        for (name, count) in &self.events {
            let fields = self.schemas.get(name).map_or("", String::as_str);
            writeln!(text, "{count:>10} {name} ({fields})")?;
        }
        for (key, value) in &self.metadata {
            writeln!(text, "  {key} = {value}")?;
        }
        for note in &self.notes {
            writeln!(text, "note: {note}")?;
        }
        for problem in &self.problems {
            writeln!(text, "problem: {problem}")?;
        }
        Ok(())
    }

    fn event(&mut self, event: &RawEvent<'_, '_>) {
        if let Some(count) = self.events.get_mut(event.name) {
            *count += 1;
        } else {
            let name = event.name.to_owned();
            self.schemas.insert(name.clone(), describe(event.schema));
            self.events.insert(name, 1);
        }
        if !matches!(event.name, "TaskSpawnEvent" | "SymbolTableEntry") {
            let ts_ns = event.timestamp_ns;
            let (first, last) = self.range_ns.get_or_insert((ts_ns, ts_ns));
            *first = ts_ns.min(*first);
            *last = ts_ns.max(*last);
        }
        if event.name == "SegmentMetadataEvent"
            && let Some(FieldValueRef::StringMap(map)) = event.fields.first()
        {
            let owned = map
                .iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()));
            self.metadata.extend(owned);
        }
    }
}

/// The fields of a schema on one line: `name:Type[key=value]`.
pub(crate) fn describe(schema: &SchemaEntry) -> String {
    let fields = schema.fields().iter().enumerate().map(|(index, field)| {
        let annotations: Vec<String> = schema
            .annotations()
            .iter()
            .filter(|annotation| usize::from(annotation.field_index()) == index)
            .map(|annotation| format!("{}={}", annotation.key(), annotation.value()))
            .collect();
        let annotations = match &annotations[..] {
            [] => String::new(),
            _ => format!("[{}]", annotations.join(",")),
        };
        format!("{}:{:?}{annotations}", field.name(), field.field_type())
    });
    fields.collect::<Vec<_>>().join(", ")
}

/// What decompresses of the first gzip member, and what is wrong with the file
/// as one member.
fn gunzip(bytes: &[u8]) -> (Vec<u8>, Option<String>) {
    let mut member = GzDecoder::new(bytes);
    let mut raw = Vec::new();
    if let Err(error) = member.read_to_end(&mut raw) {
        return (raw, Some(format!("the gzip member is broken: {error}")));
    }
    let rest = member.into_inner().len();
    let problem = (rest > 0).then(|| format!("{rest} bytes follow the first gzip member"));
    (raw, problem)
}

#[cfg(test)]
mod tests;
