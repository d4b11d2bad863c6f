//! Block I/O out of segments.
//!
//! In: a sealed or active file. Out: each block I/O and sync in it, until when its thread
//! waited for it, the counters of the kernel's threads, what was lost, and whether any was
//! recorded at all. Never: a rule of `check`; memory beyond that of a window and of what is
//! found.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::num::NonZeroU64;
use std::path::Path;

use dial9_bpf_abi::record::RecordKind;
use dial9_trace_format::decoder::RawEvent;
use dial9_trace_format::types::FieldValueRef;

use crate::check::CheckError;
use crate::fields::{field, metadata_of, number, text};
use crate::stored;

/// Kinds of records whose loss makes the I/O incomplete.
const KINDS: [RecordKind; 3] = [RecordKind::IO_BEGIN, RecordKind::IO_END, RecordKind::SYNC];

/// A block I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredIo {
    /// When it was submitted and when it was done, `CLOCK_MONOTONIC`, ns.
    pub times_ns: [u64; 2],
    /// When its thread was on a CPU again, ns; `None` where that thread ran when the I/O was
    /// done, or where the file does not tell.
    pub resumed_ns: Option<NonZeroU64>,
    /// Index into [`StoredFile::operations`].
    pub operation: u16,
    /// Where on the disk, in 512 bytes.
    pub sector: u64,
    /// How much.
    pub bytes: u64,
    /// Whether it is the file system's own.
    pub is_metadata: bool,
    /// Whether it failed.
    pub has_failed: bool,
}

/// What one file says of block I/O.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredFile {
    /// The metadata; later values win.
    pub metadata: BTreeMap<String, String>,
    /// Devices, by their numbers, and names of operations.
    pub operations: Vec<(String, String)>,
    /// In the order in which they were done.
    pub ios: Vec<StoredIo>,
    /// Syncs: their name and how long each took, ns.
    pub syncs: Vec<(String, u64)>,
    /// The last counters of the kernel's threads, by name.
    pub kernel: BTreeMap<&'static str, u64>,
    /// Records of block I/O that were lost in the file.
    pub lost: u64,
    /// Why the file's end could not be read.
    pub torn: Option<String>,
}

/// A file that is being read.
#[derive(Debug, Default)]
struct Reading {
    found: StoredFile,
    /// By thread: indices of what is done since it was last seen to be on a CPU again.
    done: HashMap<u64, Vec<usize>>,
}

impl StoredFile {
    /// Reads a file to its end, or to what does not decode.
    ///
    /// # Errors
    /// [`CheckError`] when the file cannot be read, is no trace, or has no metadata up to
    /// where it decodes: then nothing says what was recorded.
    pub fn read(path: &Path) -> Result<Self, CheckError> {
        let mut reading = Reading::default();
        stored::each_event(path, |event| reading.take(event))
            .and_then(|torn| {
                reading.found.torn = torn;
                reading.found.is_told()
            })
            .map_err(|source| CheckError {
                path: path.to_owned(),
                source,
            })?;
        Ok(reading.found)
    }

    fn is_told(&self) -> io::Result<()> {
        if !self.metadata.is_empty() {
            return Ok(());
        }
        let torn = self.torn.as_deref().unwrap_or("it ends");
        let why = format!("{torn} before anything says what was recorded");
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

impl Reading {
    fn take(&mut self, event: &RawEvent<'_, '_>) {
        match event.name {
            "BlockIoEvent" => self.take_io(event),
            "FileSyncEvent" => {
                let name = text(event, "name").unwrap_or_default().to_owned();
                self.found.syncs.push((name, number(event, "duration_ns")));
            }
            "KernelIoEvent" => {
                let names = [
                    "reads",
                    "read_bytes",
                    "writes",
                    "write_bytes",
                    "others",
                    "other_bytes",
                ];
                self.found.kernel = names.map(|name| (name, number(event, name))).into();
            }
            "OffCpuEvent" => self.take_absence(event),
            "LossEvent" => {
                let kind = text(event, "kind").unwrap_or_default();
                if KINDS.iter().any(|of| of.name() == Some(kind)) {
                    self.found.lost += number(event, "lost");
                }
            }
            "SegmentMetadataEvent" => self.found.metadata.extend(metadata_of(event)),
            _ => {}
        }
    }

    /// What was done while the thread was away was done for it when it was back.
    fn take_absence(&mut self, event: &RawEvent<'_, '_>) {
        let back_ns = event.timestamp_ns;
        let left_ns = back_ns.saturating_sub(number(event, "duration_ns"));
        for index in self.done.remove(&number(event, "tid")).unwrap_or_default() {
            let io = &mut self.found.ios[index];
            if io.times_ns[1] >= left_ns {
                io.resumed_ns = NonZeroU64::new(back_ns);
            }
        }
    }

    fn take_io(&mut self, event: &RawEvent<'_, '_>) {
        let name = text(event, "name").unwrap_or_default();
        let of = (
            text(event, "device").unwrap_or_default(),
            name.strip_prefix("I/O: ").unwrap_or(name),
        );
        let known = self
            .found
            .operations
            .iter()
            .position(|(device, name)| (device.as_str(), name.as_str()) == of);
        let operation = known.unwrap_or_else(|| {
            self.found
                .operations
                .push((of.0.to_owned(), of.1.to_owned()));
            self.found.operations.len() - 1
        });
        let end_ns = event.timestamp_ns;
        let index = self.found.ios.len();
        self.done
            .entry(number(event, "tid"))
            .or_default()
            .push(index);
        let is_set = |name| field(event, name) == Some(&FieldValueRef::Bool(true));
        self.found.ios.push(StoredIo {
            times_ns: [end_ns.saturating_sub(number(event, "duration_ns")), end_ns],
            resumed_ns: None,
            operation: u16::try_from(operation).unwrap_or(u16::MAX),
            sector: number(event, "sector"),
            bytes: number(event, "bytes"),
            is_metadata: is_set("metadata"),
            has_failed: number(event, "error") > 0,
        });
    }
}
