//! Events out of segments.
//!
//! In: a sealed or active file. Out: its events in the order of the file. Never: a rule of
//! `check`; memory beyond that of a window.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;

use dial9_trace_format::decoder::{Decoder, RawEvent};
use flate2::bufread::GzDecoder;
use rustix::fs::OFlags;

use crate::check::{GZIP_MAGIC, WINDOW_BYTES, whole_batches};
use crate::segment::open_regular;

/// Takes each event up to the file's end, or to what does not decode: then why.
pub(crate) fn each_event(
    path: &Path,
    each: impl FnMut(&RawEvent<'_, '_>),
) -> io::Result<Option<String>> {
    let file: File = open_regular(path, OFlags::RDONLY)?;
    let mut file = BufReader::new(file);
    if file.fill_buf()?.starts_with(&GZIP_MAGIC) {
        stream(GzDecoder::new(file), each)
    } else {
        stream(file, each)
    }
}

fn stream(
    mut from: impl Read,
    mut each: impl FnMut(&RawEvent<'_, '_>),
) -> io::Result<Option<String>> {
    let mut window = Vec::new();
    let mut is_first = true;
    loop {
        let room = (WINDOW_BYTES - window.len()) as u64;
        let read = from.by_ref().take(room).read_to_end(&mut window);
        let is_end = !matches!(read, Ok(read) if read as u64 == room);
        let whole = match whole_batches(&window) {
            whole if whole > 0 && !is_end => whole,
            _ => window.len(),
        };
        let Some(mut decoder) = Decoder::new(&window[..whole]) else {
            return if is_first {
                Err(io::Error::new(io::ErrorKind::InvalidData, "it is no trace"))
            } else {
                Ok(Some("no batch where one is expected".to_owned()))
            };
        };
        is_first = false;
        if let Err(error) = decoder.for_each_event(|event| each(&event)) {
            return Ok(Some(error.message));
        }
        if let Err(error) = read {
            return Ok(Some(error.to_string()));
        }
        if is_end {
            return Ok(None);
        }
        window.drain(..whole);
    }
}
