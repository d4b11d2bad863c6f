//! The whole line, from ring bytes to a checked file.
#![expect(clippy::unwrap_used, reason = "a test")]

mod synthetic;

use std::collections::HashMap;
use std::path::Path;

use dial9_bpf_abi::loss::LossCause;
use dial9_bpf_abi::record::{Gap, RecordHeader, RecordKind};
use dial9_bpf_trace::check::{Report, Stage, check_bytes, check_file};
use dial9_bpf_trace::clock::Anchor;
use dial9_bpf_trace::decode::Record;
use dial9_bpf_trace::encode::Encoder;
use dial9_bpf_trace::interpret::Interpreter;
use dial9_bpf_trace::loss::LossLedger;
use dial9_bpf_trace::metadata::{Metadata, TOKIO, Target};
use dial9_bpf_trace::segment::{ActiveSegment, Owner, Seal, SealedSegment};
use dial9_bpf_trace::sort::Sorter;
use synthetic::Stream;

fn metadata() -> Metadata {
    Metadata {
        service: Some("synthetic".into()),
        instance: None,
        host: Some("here".into()),
        boot_id: "abcd-4242".into(),
        version: "0.1.0".into(),
        available_parallelism: Some(2),
        tokio_version: Some("1.48.0".into()),
        target: Target {
            pid: 4242,
            start_ticks: 99,
            exe: "/srv/app".into(),
            build_id: None,
        },
        forked: 0,
        untold_absences: 0,
        mappings: Vec::new(),
        machine: Vec::new(),
        devices: std::collections::BTreeMap::new(),
        threads: std::collections::BTreeMap::new(),
        tells_waits: false,
        profile_hz: None,
        off_cpu_stacks: None,
        stacks_left_out: 0,
        signals: vec![TOKIO],
        facts: Vec::new(),
        absent: vec![("spawn".into(), "not in this binary".into())],
        objects: Vec::new(),
    }
}

/// A recording of a synthetic target, segment by segment.
struct Recording {
    stream: Box<dyn Iterator<Item = (u32, Record)>>,
    sorter: Sorter,
    interpreter: Interpreter,
    encoder: Encoder,
    losses: LossLedger,
    now_ns: u64,
}

impl Recording {
    fn new(stream: impl Iterator<Item = (u32, Record)> + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            sorter: Sorter::new(),
            interpreter: Interpreter::new(synthetic::locations()),
            encoder: Encoder::new(),
            losses: LossLedger::new(),
            now_ns: 1_000_000_000_000,
        }
    }

    fn anchor(&self) -> Anchor {
        Anchor {
            mono_ns: self.now_ns,
            unix_ns: 1_800_000_000_000_000_000 + self.now_ns,
        }
    }

    fn segment(&mut self, dir: &Path, rounds: usize, records: usize) -> SealedSegment {
        let metadata = metadata();
        let mut segment =
            ActiveSegment::create(&dir.into(), Owner::default(), &metadata, self.anchor()).unwrap();
        let mut bytes = Vec::new();
        for _ in 0..rounds {
            // As from rings: CPU by CPU.
            let mut round: Vec<_> = self.stream.by_ref().take(records).collect();
            round.sort_by_key(|&(cpu, _)| cpu);
            for (_, record) in &round {
                bytes.clear();
                record.encode(&mut bytes);
                self.sorter.push(Record::decode(&bytes).unwrap());
                self.now_ns = self.now_ns.max(record.header().ts_ns);
            }
            let Self {
                sorter,
                interpreter,
                encoder,
                now_ns,
                ..
            } = self;
            sorter.release(*now_ns, |record| {
                interpreter.record(record, &mut |event, locations| {
                    if encoder.is_full() {
                        segment.write_batch(encoder.cut()).unwrap();
                    }
                    encoder.event(event, locations);
                });
            });
            segment.write_batch(encoder.cut()).unwrap();
        }
        let Self {
            interpreter,
            encoder,
            ..
        } = self;
        interpreter.rotate(&mut |event, locations| encoder.event(event, locations));
        segment.write_batch(self.encoder.cut()).unwrap();
        self.losses
            .read(0, RecordKind::WAKE, LossCause::RingFull, rounds as u64);
        segment
            .seal(Seal {
                metadata: &metadata,
                runtimes: &self.interpreter.runtimes(),
                losses: &self.losses.close_segment(),
                undecoded: 0,
                is_complete: true,
                anchor: self.anchor(),
            })
            .unwrap()
    }
}

#[track_caller]
fn assert_sound(path: &Path) -> Report {
    let report = check_file(path).unwrap();
    assert!(report.is_sound(), "{}", report.render());
    report
}

#[test]
fn segments_of_a_recording_are_sound_also_compressed() {
    // Set, the files stay there for other readers.
    let kept = std::env::var_os("DIAL9_BPF_KEEP");
    let temporary = tempfile::tempdir().unwrap();
    let dir = kept.as_deref().map_or(temporary.path(), Path::new);
    let mut recording = Recording::new(Stream::new(2, 64, 50));
    for _ in 0..3 {
        let sealed = recording.segment(dir, 8, 10_000);
        let report = assert_sound(&sealed.path);
        assert_eq!(report.workers.len(), 2);
        assert_eq!(report.metadata["runtime.tokio"], "0,1");
        assert_eq!(report.events["LossEvent"], 1);
        let compressed = sealed.compress(&[]).unwrap();
        assert_eq!(assert_sound(&compressed.path).events, report.events);
        assert_eq!(compressed.raw_bytes, report.raw_bytes);
    }
    let stats = recording.interpreter.stats();
    assert_eq!(
        stats.records.hits(),
        239_999,
        "the newest record waits for its watermark"
    );
    assert_eq!(
        (stats.stray_ends, stats.out_of_order, stats.unended_polls),
        (0, 0, 0)
    );
    assert_eq!(recording.sorter.late(), 0);
}

/// Loses every 97th record as a full ring would.
fn lossy(stream: Stream) -> impl Iterator<Item = (u32, Record)> {
    let mut lost = HashMap::<u32, Gap>::new();
    (0_u64..)
        .zip(stream)
        .flat_map(move |(nth, (cpu, record))| {
            let RecordHeader { tid, ts_ns, .. } = *record.header();
            if nth % 97 == 0 {
                let header = RecordHeader {
                    kind: RecordKind::GAP,
                    flags: 0,
                    tid,
                    ts_ns,
                };
                lost.entry(tid).or_insert(Gap { header, lost: 0 }).lost += 1;
                return [None, None];
            }
            [
                lost.remove(&tid).map(|gap| (cpu, Record::Gap(gap))),
                Some((cpu, record)),
            ]
        })
        .flatten()
}

#[test]
fn a_recording_with_losses_is_sound() {
    // Set, the files stay there for other readers.
    let kept = std::env::var_os("DIAL9_BPF_KEEP");
    let temporary = tempfile::tempdir().unwrap();
    let dir = kept.as_deref().map_or(temporary.path(), Path::new);
    let mut recording = Recording::new(lossy(Stream::new(2, 64, 50)));
    for _ in 0..2 {
        let report = assert_sound(&recording.segment(dir, 8, 10_000).path);
        assert!(report.events["GapEvent"] > 100, "{}", report.render());
        assert!(
            report.events["BlockingTaskEvent"] > 10,
            "{}",
            report.render()
        );
    }
    let stats = recording.interpreter.stats();
    assert!(
        stats.polls_cut_by_gap > 0 && stats.ends_after_gap > 0,
        "{stats:?}"
    );
    assert_eq!(
        (stats.stray_ends, stats.out_of_order, stats.unended_polls),
        (0, 0, 0)
    );
}

#[test]
fn a_file_cut_anywhere_keeps_its_whole_batches() {
    let dir = tempfile::tempdir().unwrap();
    let sealed = Recording::new(Stream::new(2, 64, 50)).segment(dir.path(), 3, 12);
    let whole = std::fs::read(&sealed.path).unwrap();
    let headers = whole
        .windows(5)
        .enumerate()
        .filter(|(_, bytes)| bytes == b"TRC\0\x01");
    let batches: Vec<usize> = headers.map(|(at, _)| at).collect();
    assert_eq!(batches.len(), 7);
    for cut in 5..whole.len() {
        let report = check_bytes(&whole[..cut], Stage::Active);
        let last = *batches.iter().rfind(|&&at| at <= cut).unwrap();
        assert!(report.whole_bytes >= last as u64, "cut at {cut}");
        assert!(report.whole_bytes <= cut as u64);
        let salvaged = usize::try_from(report.whole_bytes).unwrap();
        let problems = check_bytes(&whole[..salvaged], Stage::Active).problems;
        assert!(
            !problems.iter().any(|line| line.contains("do not decode")),
            "{problems:?}"
        );
    }
}
