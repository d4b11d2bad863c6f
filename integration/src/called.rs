//! Segments with callchains of our choice, and the names that they got.
//!
//! In: addresses, mappings. Out: a sealed segment's file; what is in one. Never: a program
//! that is traced.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use dial9_bpf_trace::mapping::{KEY, Mapping};
use dial9_trace_format::{
    InternedStackFrames, InternedString, TraceEvent, decoder::Decoder, encoder::Encoder,
    types::FieldValueRef,
};

/// The last frame of each batch, as the recorder writes it.
const END_OF_BATCH: [u8; 5] = [3, 0, 0, 0, 0];

#[derive(TraceEvent)]
struct ClockSyncEvent {
    #[traceevent(timestamp)]
    ts_ns: u64,
    realtime_ns: u64,
}

#[derive(TraceEvent)]
struct SegmentMetadataEvent {
    #[traceevent(timestamp)]
    ts_ns: u64,
    entries: Vec<(String, String)>,
}

#[derive(TraceEvent)]
struct CpuSampleEvent {
    #[traceevent(timestamp)]
    ts_ns: u64,
    worker_id: u64,
    tid: u32,
    source: u8,
    thread_name: Option<InternedString>,
    callchain: InternedStackFrames,
    cpu: Option<u64>,
}

/// A function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its source file; empty where it has none.
    pub file: String,
    /// Its line; 0 where it has none.
    pub line: u64,
}

/// Begin and end of the segments here, `CLOCK_MONOTONIC` ns.
pub const RANGE_NS: [u64; 2] = [1_000_000_000, 2_000_000_000];

/// Writes a sealed segment that has each address as a callchain, and says that the target
/// had these mappings. Returns its path.
///
/// # Panics
///
/// When there is no room for it.
pub fn segment(dir: &Path, addresses: &[u64], mappings: &[Mapping]) -> PathBuf {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot_id = boot_id.expect("there is a kernel").trim().to_owned();
    let mappings = mappings.iter().enumerate();
    let mappings = mappings.map(|(at, mapping)| (format!("{KEY}{at}"), mapping.to_string()));
    let entries: Vec<_> = [("kernel.boot_id".to_owned(), boot_id)]
        .into_iter()
        .chain(mappings)
        .collect();
    let [begin, end] = RANGE_NS;
    let mut bytes = Vec::new();
    frame(&mut bytes, begin, &entries, &[]);
    frame(&mut bytes, begin + 1, &[], addresses);
    let complete = ("segment.complete".to_owned(), "true".to_owned());
    let entries: Vec<_> = entries.into_iter().chain([complete]).collect();
    frame(&mut bytes, end, &entries, &[]);
    let path = dir.join("trace.0.bin");
    fs::write(&path, bytes).expect("there is room");
    path
}

fn frame(bytes: &mut Vec<u8>, ts_ns: u64, entries: &[(String, String)], addresses: &[u64]) {
    let mut encoder = Encoder::new();
    if !entries.is_empty() {
        let realtime_ns = 1_700_000_000_000_000_000 + ts_ns;
        encoder.write_infallible(&ClockSyncEvent { ts_ns, realtime_ns });
        let entries = entries.to_vec();
        encoder.write_infallible(&SegmentMetadataEvent { ts_ns, entries });
    }
    for address in addresses {
        let callchain = encoder.intern_stack_frames_infallible(&[*address]);
        encoder.write_infallible(&CpuSampleEvent {
            ts_ns,
            worker_id: 255,
            tid: 7,
            source: 0,
            thread_name: None,
            callchain,
            cpu: None,
        });
    }
    bytes.extend_from_slice(&encoder.finish());
    bytes.extend_from_slice(&END_OF_BATCH);
}

/// The functions that a segment has names of, by address, outermost first; and its last
/// metadata.
///
/// # Panics
///
/// When it does not decode, or a depth is missing.
pub fn names(bytes: &[u8]) -> (BTreeMap<u64, Vec<Named>>, BTreeMap<String, String>) {
    let mut names: BTreeMap<u64, Vec<Named>> = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    let mut decoder = Decoder::new(bytes).expect("a header");
    let decoded = decoder.for_each_event(|event| match (event.name, event.fields) {
        ("SegmentMetadataEvent", [FieldValueRef::StringMap(map)]) => {
            let entries = map.iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
            metadata = entries.collect();
        }
        (
            "SymbolTableEntry",
            [
                FieldValueRef::Varint(address),
                _,
                FieldValueRef::PooledString(name),
                FieldValueRef::Varint(depth),
                FieldValueRef::PooledString(file),
                FieldValueRef::Varint(line),
            ],
        ) => {
            assert_eq!(event.timestamp_ns, 0);
            let of_address = names.entry(*address).or_default();
            assert_eq!(*depth, of_address.len() as u64, "depths in order");
            let text = |id| event.string_pool.get(id).expect("in this batch").to_owned();
            of_address.push(Named {
                name: text(*name),
                file: text(*file),
                line: *line,
            });
        }
        _ => {}
    });
    decoded.expect("it decodes");
    (names, metadata)
}
