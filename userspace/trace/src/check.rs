//! Whether a segment is what dial9's readers take.
//!
//! In: a `.bin`, `.bin.gz` or `.bin.active` file. Out: a [`Report`]: what it
//! holds, and every rule that it breaks. Never: a repair; a lenient reading.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Seek as _};
use std::path::{Path, PathBuf};

use dial9_trace_format::decoder::{Decoder, RawEvent};
use dial9_trace_format::schema::SchemaEntry;

use flate2::bufread::GzDecoder;
use rustix::fs::OFlags;

use crate::fields::metadata_of;
use crate::recover::walk::{begins_batch, recurses};
use crate::segment::open_regular;
use rules::Rules;

mod rules;

/// The longest batch that is checked, bytes: ours have at most a sixteenth.
pub const WINDOW_BYTES: usize = 16 << 20;
pub(crate) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

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
    /// Size of the file, bytes; where it is not compressed, of what was read.
    pub file_bytes: u64,
    /// Size of the trace in it as far as it was read, bytes.
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
/// Memory is that of [`WINDOW_BYTES`] and of what the rules note of each worker
/// and task. Nothing is read beyond what does not decode.
///
/// # Errors
///
/// [`CheckError`] when the file is no regular one or cannot be read; what is
/// wrong inside it is in the report.
pub fn check_file(path: &Path) -> Result<Report, CheckError> {
    let is_active = path
        .extension()
        .is_some_and(|extension| extension == "active");
    let stage = if is_active {
        Stage::Active
    } else {
        Stage::Sealed
    };
    open_regular(path, OFlags::RDONLY)
        .and_then(|file| Check::new(stage).file(file))
        .map_err(|source| CheckError {
            path: path.to_owned(),
            source,
        })
}

/// Checks the uncompressed bytes of a segment.
pub fn check_bytes(raw: &[u8], stage: Stage) -> Report {
    let mut check = Check::new(stage);
    check.piece(raw, true);
    check.report.file_bytes = check.report.raw_bytes;
    check.finish()
}

/// A check in progress, piece by piece.
struct Check {
    stage: Stage,
    /// The longest batch, bytes.
    window_bytes: usize,
    report: Report,
    rules: Rules,
}

impl Check {
    fn new(stage: Stage) -> Self {
        Self {
            stage,
            window_bytes: WINDOW_BYTES,
            report: Report::default(),
            rules: Rules::default(),
        }
    }

    fn file(mut self, file: File) -> io::Result<Report> {
        let file_bytes = file.metadata()?.len();
        let mut file = BufReader::new(file);
        if file.fill_buf()?.starts_with(&GZIP_MAGIC) {
            self.member(file, file_bytes)?;
        } else {
            self.stream(file)?;
            self.report.file_bytes = self.report.raw_bytes;
        }
        Ok(self.finish())
    }

    /// Checks a file that begins as a gzip member, as exactly one.
    fn member(&mut self, mut file: BufReader<File>, file_bytes: u64) -> io::Result<()> {
        let mut member = GzDecoder::new(&mut file);
        let problem = match self.stream(&mut member) {
            Err(error) => Some(format!("the gzip member is broken: {error}")),
            Ok(End::Undecodable) => None,
            Ok(End::Reached) => {
                let rest = file_bytes.saturating_sub(file.stream_position()?);
                (rest > 0).then(|| format!("{rest} bytes follow the first gzip member"))
            }
        };
        self.report.problems.splice(0..0, problem);
        self.report.file_bytes = file_bytes;
        Ok(())
    }

    /// Checks what a reader yields, also what it yields before it fails.
    fn stream(&mut self, mut from: impl Read) -> io::Result<End> {
        let mut window = Vec::new();
        loop {
            let room = (self.window_bytes - window.len()) as u64;
            let read = from.by_ref().take(room).read_to_end(&mut window);
            let is_end = !matches!(read, Ok(read) if read as u64 == room);
            let whole = if is_end { 0 } else { whole_batches(&window) };
            if whole == 0 {
                let decodes = self.piece(&window, is_end);
                read?;
                return Ok(if decodes && is_end {
                    End::Reached
                } else {
                    End::Undecodable
                });
            }
            if !self.piece(&window[..whole], false) {
                return Ok(End::Undecodable);
            }
            window.drain(..whole);
        }
    }

    /// Checks batches, the last ones of the file or not. Returns whether all of
    /// them decode.
    fn piece(&mut self, bytes: &[u8], is_last: bool) -> bool {
        let Self { report, rules, .. } = self;
        let begin = report.raw_bytes;
        report.raw_bytes += bytes.len() as u64;
        let Some(mut decoder) = Decoder::new(bytes) else {
            report
                .problems
                .push("the file does not begin with a trace header".into());
            return false;
        };
        let decoded = decoder.for_each_event(|event| {
            rules.event(&event);
            report.event(&event);
        });
        report.whole_bytes = begin + decoder.position() as u64;
        let Err(error) = decoded else { return true };
        let (at, what) = (report.whole_bytes, error.message);
        let torn = report.raw_bytes - at;
        report.problems.push(if is_last {
            format!("the last {torn} bytes do not decode (byte {at}: {what})")
        } else {
            format!(
                "not checked from byte {at} on: {what}, or a batch of more than {} bytes",
                self.window_bytes
            )
        });
        false
    }

    fn finish(mut self) -> Report {
        // Nothing of a trace, nothing that the rules could be for.
        if self.report.whole_bytes > 0 {
            self.rules.finish(&mut self.report, self.stage);
        }
        self.report
    }
}

/// How far a stream was checked.
enum End {
    Reached,
    Undecodable,
}

/// Length of the batches at the begin that are followed by another.
pub(crate) fn whole_batches(bytes: &[u8]) -> usize {
    let mut whole = 0;
    while let Some(length) = followed_batch(&bytes[whole..]) {
        whole += length;
    }
    whole
}

fn followed_batch(bytes: &[u8]) -> Option<usize> {
    let mut decoder = Decoder::new(bytes)?;
    loop {
        let rest = &bytes[decoder.position()..];
        if begins_batch(rest) {
            return Some(decoder.position());
        }
        if recurses(rest) {
            return None;
        }
        decoder.next_frame_ref().ok()??;
    }
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
        self.metadata.extend(metadata_of(event));
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

#[cfg(test)]
mod tests;
