//! The names of a segment.
//!
//! In: a sealed segment's file; the files that are known. Out: what goes behind its last
//! batch, and how many addresses have a name. Never: a wait longer than `SEGMENT_TIME`;
//! a second try with what the helper died over.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use dial9_bpf_trace::{
    mapping::Mapping,
    symbols::{Called, Symbol},
};

use crate::{
    Answer, CodeFile, DebugInfo, Helper, Placed, Unnamed,
    cache::Cache,
    places::{Place, place},
    wire::Source,
};

/// The longest that a segment waits for its names.
const SEGMENT_TIME: Duration = Duration::from_secs(20);
/// The longest that one file is looked at, with or without its debug information.
const FILE_TIME: Duration = Duration::from_secs(5);
/// The kernel, as the cache has it.
const KERNEL: &str = "kernel";
/// The kernel's name for its present run.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The same in the metadata of a segment.
const BOOT_ID_KEY: &str = "kernel.boot_id";
const HIDDEN: &str = "the kernel hides its addresses (kernel.kptr_restrict, CAP_SYSLOG)";

/// How many addresses have a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Those with one.
    pub named: u64,
    /// Those without, by reason.
    pub unnamed: BTreeMap<Unnamed, u64>,
}

/// What goes behind a segment's last batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Whole batches; nothing where there is no callchain.
    pub bytes: Vec<u8>,
    /// What is in it.
    pub naming: Naming,
    /// The most memory that a helper had, what it had mapped included, KiB; 0 without
    /// one.
    pub helper_kib: u32,
}

/// Names one segment after the other.
#[derive(Debug)]
pub struct Symbolizer {
    helper: Helper,
    debug_info: DebugInfo,
    cache: Cache,
    /// Files of which the debug information was too much.
    without_debug_info: HashSet<String>,
    /// Files that were too much.
    given_up: HashSet<String>,
    /// The most memory that a helper had for the present segment, KiB.
    helper_kib: u32,
}

/// A file, and addresses in it and in the callchains.
type Asked<'a> = (&'a CodeFile, Vec<(u64, u64)>);

/// Answers so far, by address, and what is still to be asked.
#[derive(Debug, Default)]
struct Answers<'a> {
    known: BTreeMap<u64, Arc<Answer>>,
    /// By file.
    asked: HashMap<&'a str, Asked<'a>>,
    of_kernel: Vec<(u64, u64)>,
}

impl Naming {
    /// Adds those of another segment.
    pub fn add(&mut self, other: &Self) {
        self.named += other.named;
        for (reason, count) in &other.unnamed {
            *self.unnamed.entry(*reason).or_default() += count;
        }
    }

    fn of(answers: &BTreeMap<u64, Arc<Answer>>) -> Self {
        let mut naming = Self::default();
        for answer in answers.values() {
            match &**answer {
                Ok(_) => naming.named += 1,
                Err(reason) => *naming.unnamed.entry(*reason).or_default() += 1,
            }
        }
        naming
    }

    /// What the metadata says of it.
    fn entries(&self) -> Vec<(String, String)> {
        let entry = |name: String, value: String| (format!("dial9-bpf.{name}"), value);
        let mut entries = vec![entry("symbols.named".into(), self.named.to_string())];
        for (reason, count) in &self.unnamed {
            let key = format!("symbols.unnamed.{reason}");
            entries.push(entry(key, count.to_string()));
        }
        if self.unnamed.contains_key(&Unnamed::KernelHidden) {
            entries.push(entry("absent.kernel-names".into(), HIDDEN.into()));
        }
        entries
    }
}

impl Symbolizer {
    /// One that has asked for nothing yet.
    pub fn new(helper: Helper, debug_info: DebugInfo) -> Self {
        Self {
            helper,
            debug_info,
            cache: Cache::default(),
            without_debug_info: HashSet::new(),
            given_up: HashSet::new(),
            helper_kib: 0,
        }
    }

    /// Names a segment. `known` are the mappings of the target that has been recorded
    /// since `since_ns`, `CLOCK_MONOTONIC`; those of older segments are as they tell.
    ///
    /// # Errors
    /// The system's, where the segment cannot be read; nothing else is an error.
    pub fn tail(&mut self, path: &Path, known: &[Placed], since_ns: u64) -> io::Result<Tail> {
        let called = Called::read(path)?;
        if called.addresses.is_empty() {
            return Ok(Tail::default());
        }
        let placed = placed(&called, known, since_ns);
        let mut answers = Answers::default();
        for &address in &called.addresses {
            self.look_up(address, &placed, &mut answers);
        }
        self.helper_kib = 0;
        let deadline = Instant::now() + SEGMENT_TIME;
        for (key, (file, asked)) in std::mem::take(&mut answers.asked) {
            let found = self.of_file((key, file), &asked, deadline);
            self.note(key, &asked, found, &mut answers);
        }
        let asked = std::mem::take(&mut answers.of_kernel);
        let found = self.of_kernel(&called, &asked, deadline);
        self.note(KERNEL, &asked, found, &mut answers);
        let mut naming = Naming::of(&answers.known);
        if called.is_cut {
            naming.unnamed.insert(Unnamed::TooMany, 1);
        }
        let mut symbols = answers.known.iter().flat_map(symbols);
        let bytes = called.tail(naming.entries(), &mut symbols);
        Ok(Tail {
            bytes,
            naming,
            helper_kib: self.helper_kib,
        })
    }

    fn look_up<'a>(&self, address: u64, placed: &'a [Placed], answers: &mut Answers<'a>) {
        let (key, at) = match place(address, placed) {
            Ok(Place::File(file, at)) => (file.key(), at),
            Ok(Place::Kernel) => (KERNEL, address),
            Err(reason) => {
                answers.known.insert(address, Arc::new(Err(reason)));
                return;
            }
        };
        if let Some(answer) = self.cache.get(key, at) {
            answers.known.insert(address, answer);
            return;
        }
        match place(address, placed) {
            Ok(Place::File(file, at)) => {
                let asked = answers.asked.entry(key).or_insert((file, Vec::new()));
                asked.1.push((at, address));
            }
            _ => answers.of_kernel.push((at, address)),
        }
    }

    fn of_file(
        &mut self,
        (key, file): (&str, &CodeFile),
        asked: &[(u64, u64)],
        deadline: Instant,
    ) -> Vec<Answer> {
        let Some(names) = file.with_names() else {
            return vec![Err(Unnamed::NoFile); asked.len()];
        };
        if self.given_up.contains(key) {
            return Vec::new();
        }
        let addresses: Vec<u64> = asked.iter().map(|&(at, _)| at).collect();
        let file_deadline = || deadline.min(Instant::now() + FILE_TIME);
        let mut answers = Vec::new();
        if self.debug_info == DebugInfo::Auto && !self.without_debug_info.contains(key) {
            let source = (Some(names), Source::DebugInfo);
            let done;
            (answers, done) = self.helper.ask(source, &addresses, file_deadline());
            if let Ok(kib) = done {
                self.helper_kib = self.helper_kib.max(kib);
                return answers;
            }
            self.without_debug_info.insert(key.to_owned());
        }
        let rest = &addresses[answers.len()..];
        let source = (Some(names), Source::Symbols);
        let (found, done) = self.helper.ask(source, rest, file_deadline());
        answers.extend(found);
        match done {
            Ok(kib) => self.helper_kib = self.helper_kib.max(kib),
            Err(_) if Instant::now() < deadline => {
                self.given_up.insert(key.to_owned());
            }
            Err(_) => {}
        }
        answers
    }

    fn of_kernel(
        &mut self,
        called: &Called,
        asked: &[(u64, u64)],
        deadline: Instant,
    ) -> Vec<Answer> {
        if asked.is_empty() {
            return Vec::new();
        }
        let told = |(key, _): &&(String, String)| key == BOOT_ID_KEY;
        let told = called.metadata.iter().find(told).map(|(_, id)| id.as_str());
        let running = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        if told != Some(running.trim()) {
            return vec![Err(Unnamed::KernelGone); asked.len()];
        }
        let addresses: Vec<u64> = asked.iter().map(|&(at, _)| at).collect();
        let deadline = deadline.min(Instant::now() + FILE_TIME);
        let source = (None, Source::Kernel);
        let (found, done) = self.helper.ask(source, &addresses, deadline);
        self.helper_kib = self.helper_kib.max(done.unwrap_or(0));
        found
    }

    /// Takes note of answers, and of those that did not come.
    fn note(
        &mut self,
        key: &str,
        asked: &[(u64, u64)],
        found: Vec<Answer>,
        answers: &mut Answers<'_>,
    ) {
        let mut found = found.into_iter().map(Arc::new);
        for &(at, address) in asked {
            let answer = found.next();
            if let Some(answer) = &answer {
                self.cache.put(key, at, Arc::clone(answer));
            }
            let answer = answer.unwrap_or_else(|| Arc::new(Err(Unnamed::Failed)));
            answers.known.insert(address, answer);
        }
    }
}

/// The mappings of a segment's time, with their files.
fn placed(called: &Called, known: &[Placed], since_ns: u64) -> Vec<Placed> {
    let (from_ns, to_ns) = called.range_ns;
    let is_known = |told: &_| known.iter().any(|known| same_place(&known.mapping, told));
    let is_own = to_ns >= since_ns;
    let mut told = called.mappings();
    told.retain(|told| !(is_own && is_known(told)));
    let told = told.into_iter().map(|told| Placed::find(told, known));
    let own = known.iter().filter(|_| is_own).cloned();
    let mut placed: Vec<Placed> = told.chain(own).collect();
    placed.retain(|placed| placed.mapping.is_of(from_ns, to_ns));
    placed
}

/// Whether it is the same mapping, of which one may be known to be gone since.
fn same_place(one: &Mapping, other: &Mapping) -> bool {
    (one.start, one.end, one.offset, one.inode, one.since_ns)
        == (
            other.start,
            other.end,
            other.offset,
            other.inode,
            other.since_ns,
        )
        && (&one.device, &one.build_id) == (&other.device, &other.build_id)
}

fn symbols<'a>((address, answer): (&u64, &'a Arc<Answer>)) -> impl Iterator<Item = Symbol<'a>> {
    let address = *address;
    let functions = answer.iter().flat_map(|functions| functions.iter());
    functions.zip(0..).map(move |(function, depth)| Symbol {
        address,
        depth,
        name: &function.name,
        file: &function.file,
        line: function.line.into(),
    })
}
