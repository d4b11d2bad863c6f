//! Everything between the rings and the segment, on one thread.
//!
//! In: a tracer's rings, in passes. Out: a segment. Never: a wait, a symbol
//! lookup, an allocation in steady state.

use std::{fs, io, path::PathBuf};

use dial9_bpf_abi::record::RecordKind;
use dial9_bpf_attach::{AttachError, Tracer, rings::Drained};
use dial9_bpf_trace::{
    clock::{Anchor, monotonic_ns},
    decode::Record,
    encode::Encoder,
    event::Event,
    interpret::{Interpreter, OpenGap},
    location::Locations,
    loss::{Loss, LossLedger},
    metadata::Metadata,
    segment::{ActiveSegment, Seal, SealedSegment, SegmentError},
    sort::Sorter,
    stats::Stats,
};

/// Records that one pass takes at most from all rings: bounds the sorter's
/// memory when the rings were left alone for a while.
const PASS_RECORDS: usize = 128 << 10;

/// A recording in progress.
#[derive(Debug)]
pub(crate) struct Recording {
    segment: ActiveSegment,
    metadata: Metadata,
    sorter: Sorter,
    interpreter: Interpreter,
    encoder: Encoder,
    ledger: LossLedger,
    undecoded: u64,
    /// Newest record of each CPU in this pass, ns; 0 where there was none.
    newest_ns: Vec<u64>,
    /// When the previous pass began: everything older is in the sorter.
    drained_ns: u64,
}

impl Recording {
    /// A recording into a fresh segment.
    pub(crate) fn new(segment: ActiveSegment, metadata: Metadata, locations: Locations) -> Self {
        Self {
            segment,
            metadata,
            sorter: Sorter::new(),
            interpreter: Interpreter::new(locations),
            encoder: Encoder::new(),
            ledger: LossLedger::new(),
            undecoded: 0,
            newest_ns: Vec::new(),
            drained_ns: 0,
        }
    }

    /// Counters since the start.
    pub(crate) fn stats(&self) -> &Stats {
        self.interpreter.stats()
    }

    /// Records whose bytes did not decode.
    pub(crate) fn undecoded(&self) -> u64 {
        self.undecoded
    }

    /// Hits lost since attach, as last read.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.ledger.losses()
    }

    /// Records that came after later ones had been interpreted.
    pub(crate) fn late(&self) -> u64 {
        self.sorter.late()
    }

    /// Bytes of the segment so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.segment.bytes()
    }

    /// The file that holds what is recorded so far.
    pub(crate) fn path(&self) -> PathBuf {
        self.segment.path()
    }

    /// Removes the segment of a recording that did not begin.
    ///
    /// # Errors
    /// The system's; the file stays.
    pub(crate) fn discard(self) -> io::Result<()> {
        fs::remove_file(self.segment.path())
    }

    /// Takes what is in the rings and encodes what is old enough that nothing
    /// older can still come. Returns whether the rings were emptied.
    ///
    /// # Errors
    /// [`SegmentError`] when the segment cannot be written; its whole batches
    /// stay.
    pub(crate) fn pass(&mut self, tracer: &mut Tracer) -> Result<bool, SegmentError> {
        let began_ns = monotonic_ns();
        let drained = self.drain(tracer);
        let watermark_ns = match drained {
            Drained::All | Drained::Blocked => self.drained_ns,
            Drained::Part => self.oldest_newest_ns(),
        };
        self.release(watermark_ns)?;
        if drained == Drained::All {
            self.drained_ns = began_ns;
        }
        self.segment.sync_clock(began_ns, &mut self.encoder);
        Ok(drained != Drained::Part)
    }

    /// Writes what is encoded, so that a reader of the active segment is not
    /// far behind.
    ///
    /// # Errors
    /// As [`Recording::pass`].
    pub(crate) fn flush(&mut self) -> Result<(), SegmentError> {
        if self.encoder.is_empty() {
            return Ok(());
        }
        self.segment.write_batch(self.encoder.cut())
    }

    /// Reads the kernel's loss counters. Returns all hits lost so far.
    ///
    /// # Errors
    /// [`AttachError`] when they cannot be read.
    pub(crate) fn read_losses(&mut self, tracer: &Tracer) -> Result<u64, AttachError> {
        let losses = tracer.losses()?;
        for loss in &losses {
            self.ledger.read(loss.cpu, loss.kind, loss.cause, loss.lost);
        }
        Ok(losses.iter().map(|loss| loss.lost).sum())
    }

    /// Takes the last records of a detached tracer, and what its threads lost
    /// at the very end.
    ///
    /// # Errors
    /// [`SegmentError`] or [`AttachError`], as above.
    pub(crate) fn finish(&mut self, tracer: &mut Tracer) -> anyhow::Result<()> {
        while self.drain(tracer) == Drained::Part {
            self.release(self.oldest_newest_ns())?;
        }
        self.release(u64::MAX)?;
        let lost = self.read_losses(tracer)?;
        let gaps = if lost > 0 {
            tracer.pending_gaps()?
        } else {
            Vec::new()
        };
        let gaps: Vec<OpenGap> = gaps
            .iter()
            .map(|gap| OpenGap {
                tid: gap.tid,
                since_ns: gap.since_ns,
                lost: gap.lost,
            })
            .collect();
        let Self {
            interpreter,
            encoder,
            segment,
            ..
        } = self;
        let mut written = Ok(());
        interpreter.finish(monotonic_ns(), &gaps, &mut |event, locations| {
            encode(event, locations, encoder, segment, &mut written);
        });
        written?;
        self.flush()?;
        Ok(())
    }

    /// Seals the segment.
    ///
    /// # Errors
    /// [`SegmentError`]; the active file stays, with every whole batch.
    pub(crate) fn seal(mut self) -> Result<SealedSegment, SegmentError> {
        let losses = self.ledger.close_segment();
        self.segment.seal(Seal {
            metadata: &self.metadata,
            workers: self.interpreter.workers(),
            losses: &losses,
            undecoded: self.undecoded,
            is_complete: true,
            anchor: Anchor::read(),
        })
    }

    fn drain(&mut self, tracer: &mut Tracer) -> Drained {
        let Self {
            sorter,
            undecoded,
            newest_ns,
            ..
        } = self;
        newest_ns.fill(0);
        let limit_each = PASS_RECORDS.div_ceil(tracer.rings().count().max(1));
        tracer.rings().drain(limit_each, |cpu, bytes| {
            let Ok(record) = Record::decode(bytes) else {
                *undecoded += 1;
                return;
            };
            let header = *record.header();
            // A gap carries the time of its first lost hit.
            if header.kind != RecordKind::GAP {
                note_newest(newest_ns, cpu, header.ts_ns);
            }
            sorter.push(record);
        })
    }

    /// The least of the CPUs' newest records: below it every ring that was not
    /// emptied has been read.
    fn oldest_newest_ns(&self) -> u64 {
        let seen = self.newest_ns.iter().copied().filter(|ns| *ns > 0);
        seen.min().unwrap_or(self.drained_ns)
    }

    fn release(&mut self, watermark_ns: u64) -> Result<(), SegmentError> {
        let Self {
            sorter,
            interpreter,
            encoder,
            segment,
            ..
        } = self;
        let mut written = Ok(());
        sorter.release(watermark_ns, |record| {
            interpreter.record(record, &mut |event, locations| {
                encode(event, locations, encoder, segment, &mut written);
            });
        });
        written
    }
}

/// Encodes an event, and writes the batch when it is full. After a failure the
/// batches go nowhere: the recording ends with it.
#[inline]
fn encode(
    event: &Event,
    locations: &Locations,
    encoder: &mut Encoder,
    segment: &mut ActiveSegment,
    written: &mut Result<(), SegmentError>,
) {
    if encoder.is_full() {
        let batch = encoder.cut();
        if written.is_ok() {
            *written = segment.write_batch(batch);
        }
    }
    encoder.event(event, locations);
}

fn note_newest(newest_ns: &mut Vec<u64>, cpu: u32, ts_ns: u64) {
    let index = cpu as usize;
    if newest_ns.len() <= index {
        newest_ns.resize(index + 1, 0);
    }
    newest_ns[index] = newest_ns[index].max(ts_ns);
}
