//! The depth of a worker's own queue.
//!
//! In: a program whose only worker has a queue that is as deep as the program makes it.
//! Out: equal numbers at polls and at the ends of parks, wherever the segment says that
//! they are measured. Never: a tolerance.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use dial9_bpf_integration::{
    Attach, Build, TestProgram, output_dir, require_root,
    segment::{sealed_segments, unpacked},
};
use dial9_trace_format::{
    decoder::{Decoder, RawEvent},
    types::FieldValueRef,
};

/// What a worker did, and the depth that is told with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Parks,
    Wakes,
    /// The task, and which of its polls it is, from 0.
    Polls(u64, u64),
}

/// One segment.
#[derive(Debug, Default)]
struct Told {
    turns: Vec<(Turn, u64)>,
    /// The last of each key.
    metadata: BTreeMap<String, String>,
}

impl Told {
    fn count(&self, name: &str) -> u64 {
        let key = format!("dial9-bpf.local_queue.{name}");
        let count = self.metadata.get(&key).map(|count| count.parse());
        count.map_or(0, |count| count.expect("a number"))
    }

    /// What dial9's readers go by.
    fn is_measured(&self) -> bool {
        self.metadata["tokio.local_queue"] == "true"
    }
}

/// What the program says: the depth at each poll of a task, by the task and the poll.
type Truth = HashMap<(u64, u64), u64>;

/// The truth, and the segments.
fn recorded(build: Build, polls: bool) -> (Truth, Vec<Told>) {
    require_root();
    let output = output_dir();
    let path = output.path().join("truth.tsv");
    let mut program = TestProgram::start_with("deep", build, |command| {
        command.arg(&path);
    });
    let mut attach = Attach::to(program.pid(), output.path())
        .arg("--rotate")
        .arg("1s");
    if polls {
        attach = attach.arg("--local-queue").arg("polls");
    }
    let tracer = attach.attached();
    program.ask("go", "done");
    tracer.interrupt().expect(0);
    program.say("end");
    assert!(program.exit().success());
    let parse = |line: &str| {
        let mut numbers = line
            .split('\t')
            .map(|field| field.parse().expect("a number"));
        let [task, poll, depth] = [(); 3].map(|()| numbers.next().expect("three numbers"));
        ((task, poll), depth)
    };
    let truth = fs::read_to_string(&path).expect("it is written");
    let truth = truth.lines().map(parse).collect();
    let mut polled = HashMap::new();
    let segments = sealed_segments(output.path());
    let told = segments.iter().map(|path| read(path, &mut polled));
    (truth, told.collect())
}

fn read(path: &Path, polled: &mut HashMap<u64, u64>) -> Told {
    let bytes = unpacked(path).expect("it can be read");
    let mut decoder = Decoder::new(&bytes).expect("it has a header");
    let mut told = Told::default();
    let read = decoder.for_each_event(|event| {
        let turn = match event.name {
            "PollStartEvent" => {
                let task = number(&event, "task_id");
                let next = polled.entry(task).or_default();
                *next += 1;
                Turn::Polls(task, *next - 1)
            }
            "WorkerParkEvent" => Turn::Parks,
            "WorkerUnparkEvent" => Turn::Wakes,
            "SegmentMetadataEvent" => {
                for field in event.fields {
                    if let FieldValueRef::StringMap(entries) = field {
                        let entries = entries.iter();
                        let entries = entries.map(|(key, value)| (key.into(), value.into()));
                        told.metadata.extend(entries);
                    }
                }
                return;
            }
            _ => return,
        };
        told.turns.push((turn, number(&event, "local_queue")));
    });
    read.expect("it decodes");
    told
}

fn number(event: &RawEvent<'_, '_>, name: &str) -> u64 {
    let mut fields = event.field_names().zip(event.fields);
    match fields.find(|(field, _)| *field == name) {
        Some((_, FieldValueRef::Varint(number))) => *number,
        other => panic!("{name} of {} is {other:?}", event.name),
    }
}

/// What should be told of the end of a park, where the program knows: as much as of the
/// poll that follows, if that is of a task that the worker's driver has woken.
fn of_wake(next: Option<&(Turn, u64)>, truth: &Truth) -> Option<u64> {
    match next?.0 {
        Turn::Polls(task, 1) => truth.get(&(task, 1)).copied(),
        _ => None,
    }
}

/// The largest depths, at polls and at ends of parks, that are told as they should be;
/// where nothing is measured a 0 is as good.
fn expect_equal(told: &Told, truth: &Truth, is_measured: [bool; 2]) -> [u64; 2] {
    let mut largest = [0; 2];
    for (index, (turn, depth)) in told.turns.iter().enumerate() {
        let (of, expected) = match turn {
            Turn::Parks => (1, Some(0)),
            Turn::Wakes => (1, of_wake(told.turns.get(index + 1), truth)),
            Turn::Polls(task, poll) => (0, truth.get(&(*task, *poll)).copied()),
        };
        let Some(expected) = expected else { continue };
        let is_right = *depth == expected || (*depth == 0 && !is_measured[of]);
        assert!(is_right, "{turn:?}: {depth}, and there are {expected}");
        largest[of] = largest[of].max(*depth);
    }
    largest
}

fn expect_at_polls(build: Build) {
    let (truth, segments) = recorded(build, true);
    let measured: Vec<&Told> = segments.iter().filter(|told| told.is_measured()).collect();
    let mut largest = [0; 2];
    for told in &segments {
        let of = expect_equal(told, &truth, [told.is_measured(); 2]);
        if told.is_measured() {
            largest = [0, 1].map(|side| largest[side].max(of[side]));
        }
        let others = told.count("other_parks") + told.count("other_polls");
        let all = told.count("measured_parks") + told.count("measured_polls");
        assert_eq!(told.is_measured(), others == 0 && all > 0);
    }
    assert!(!measured.is_empty(), "{segments:#?}");
    assert_eq!(largest, [11; 2], "of twelve tasks one is in the LIFO slot");
}

#[test]
fn at_polls_of_a_plain_build() {
    expect_at_polls(Build::Plain);
}

#[test]
fn at_polls_of_a_stripped_build() {
    expect_at_polls(Build::Stripped);
}

#[test]
fn at_parks_where_nothing_else_is_asked_for() {
    let (truth, segments) = recorded(Build::Plain, false);
    let mut ends = Vec::new();
    for told in &segments {
        assert!(!told.is_measured(), "its polls are not");
        assert_eq!(told.count("measured_polls"), 0);
        let are_all = told.count("measured_parks") > 0 && told.count("other_parks") == 0;
        let [at_polls, at_ends] = expect_equal(told, &truth, [false, are_all]);
        assert_eq!(at_polls, 0, "nothing was read");
        ends.extend(are_all.then_some(at_ends));
    }
    assert_eq!(ends.iter().max(), Some(&11));
}
