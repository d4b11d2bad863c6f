//! The flight recorder: the last seconds of a recording in memory, until somebody
//! wants them.
//!
//! In: closed segments; what asks for a dump. Out: those of the window, into the
//! spool, each once. Never: more memory than the budget, for the window and for
//! what the disk has not taken yet; a segment on a disk that nobody asked for.
//!
//! - Asked by a signal, a dump begins at once; by the target, one window after the
//!   last dump at the earliest. It has everything since that dump, as far as the
//!   window and the budget reach.
//! - A dump ends at the time at which it began; the segment that has that time ends
//!   there.
//! - While one is under way, the next waits.

use std::{
    collections::VecDeque,
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use bytesize::ByteSize;
use dial9_bpf_trace::{
    clock::Anchor,
    line::Line,
    lock::DirectoryLock,
    rotate::{Policy, PolicyError},
    segment::ClosedSegment,
};
use signal_hook::{consts::SIGUSR1, flag};

use crate::{args::RecordArgs, dispatch::Dispatch, stderr};

/// Smallest budget: a segment of an eighth of it has a batch.
pub(crate) const LEAST_BYTES: u64 = 8 << 20;
/// Segments that a full budget has at least.
const PARTS: u64 = 8;
/// Segments that a window has at least.
const EPOCHS: u64 = 4;
/// Time between two attempts to give segments a file, ns.
const RETRY_NS: u64 = 1_000_000_000;

/// Set by SIGUSR1, which ends no recorder from now on.
///
/// # Errors
/// The system's.
pub(crate) fn asked() -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    flag::register(SIGUSR1, Arc::clone(&asked))?;
    Ok(asked)
}

/// What is kept, and when it is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// At least so much, if the budget has room for it.
    pub(crate) window: Duration,
    /// Memory for segments.
    pub(crate) bytes: u64,
    /// A poll that lasts so long asks for a dump.
    pub(crate) poll: Option<Duration>,
}

impl Settings {
    /// What was asked for.
    pub(crate) fn of(args: &RecordArgs) -> Option<Self> {
        args.on_demand.map(|window| Self {
            window,
            bytes: args.on_demand_bytes,
            poll: args.on_demand_poll,
        })
    }

    /// When segments end: often, so that what is kept is little more than the
    /// window.
    ///
    /// # Errors
    /// Never: epochs are whole seconds.
    pub(crate) fn policy(&self) -> Result<Policy, PolicyError> {
        let epoch = Duration::from_secs((self.window.as_secs() / EPOCHS).max(1));
        Policy::new(epoch, self.bytes / PARTS)
    }
}

/// What the flight recorder has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dumped {
    /// Dumps.
    pub(crate) dumps: u64,
    /// Events in their segments.
    pub(crate) events: u64,
}

/// A flight recorder.
#[derive(Debug)]
pub(crate) struct Flight {
    dir: PathBuf,
    settings: Settings,
    lock: Arc<DirectoryLock>,
    asked: Arc<AtomicBool>,
    /// The window, oldest first.
    held: VecDeque<ClosedSegment>,
    /// What the target asks for, and has to wait.
    waiting: Option<String>,
    /// The dump that is under way.
    dump: Option<Dump>,
    /// Before, the target asks in vain, `CLOCK_MONOTONIC` ns.
    quiet_until_ns: u64,
    /// Panics so far.
    panics: u64,
    /// Segments that have a file, as long as memory has them too.
    copied: Vec<(Weak<File>, u64)>,
    said: Vec<String>,
    dumped: Dumped,
    /// Dumps that a signal asked for.
    answered: u64,
}

/// A dump under way.
#[derive(Debug)]
struct Dump {
    reason: String,
    is_asked: bool,
    /// Its end, `CLOCK_MONOTONIC` ns.
    until_ns: u64,
    /// The segments, once they are whole, that have no file yet.
    leaving: VecDeque<ClosedSegment>,
    retry_ns: u64,
    is_failure_said: bool,
    /// Those that have one.
    placed: Vec<u64>,
    /// What it is, once it is whole.
    text: Option<String>,
    /// Segments that were lost before.
    lost_before: u64,
}

impl Dump {
    /// What there is to say, the first time that it has to wait for the disk.
    fn wait_for(&mut self, failure: &str) -> Option<String> {
        let is_said = std::mem::replace(&mut self.is_failure_said, true);
        (!is_said).then(|| format!("the dump waits: {failure}"))
    }
}

impl Flight {
    /// A flight recorder for a line in memory.
    pub(crate) fn new(
        dir: &Path,
        settings: Settings,
        lock: Arc<DirectoryLock>,
        asked: Arc<AtomicBool>,
    ) -> Self {
        let flight = Self {
            dir: dir.to_owned(),
            settings,
            lock,
            asked,
            held: VecDeque::new(),
            waiting: None,
            dump: None,
            quiet_until_ns: 0,
            panics: 0,
            copied: Vec::new(),
            said: Vec::new(),
            dumped: Dumped::default(),
            answered: 0,
        };
        flight.note("none yet");
        flight
    }

    /// Tells a line what to look out for.
    pub(crate) fn prepare(&self, line: &mut Line) {
        if let Some(poll) = self.settings.poll {
            line.watch_polls(ns(poll));
        }
    }

    /// Takes a closed segment.
    pub(crate) fn take(&mut self, closed: ClosedSegment) {
        self.held.push_back(closed);
    }

    /// Memory that segments have, bytes, without the one that is being written.
    pub(crate) fn bytes(&self) -> u64 {
        let leaving = self.dump.iter().flat_map(|dump| &dump.leaving);
        let whole = self.held.iter().chain(leaving);
        let copied = self.copied.iter().map(|(_, bytes)| bytes);
        whole
            .map(|closed| closed.sealed().bytes)
            .chain(copied.copied())
            .sum()
    }

    /// What is due after a pass that began at `now`.
    pub(crate) fn turn(&mut self, line: &mut Line, dispatch: &mut Dispatch, now: Anchor) {
        self.copied.retain(|(memory, _)| memory.strong_count() > 0);
        self.look(line);
        self.begin(line, dispatch, now.mono_ns);
        self.collect(line);
        self.place(dispatch, now.mono_ns);
        self.conclude(dispatch);
        self.trim(line.bytes(), now.mono_ns);
    }

    /// What there is to say since this was last asked.
    pub(crate) fn said(&mut self) -> Option<String> {
        let said = std::mem::take(&mut self.said);
        (!said.is_empty()).then(|| said.join("\n"))
    }

    /// Asks a line that is about to end for what the target still waits for.
    pub(crate) fn want(&mut self, line: &mut Line, now_ns: u64) {
        self.look(line);
        if !self.is_collecting()
            && let Some(reason) = self.waiting.take()
        {
            line.want(now_ns, reason);
        }
    }

    /// Ends with the line: what is wanted, or under way, goes into the spool. Also
    /// returns why something does not.
    pub(crate) fn finish(
        mut self,
        is_wanted: bool,
        dispatch: &mut Dispatch,
    ) -> (Dumped, Option<String>) {
        let mut leaving = self
            .dump
            .take()
            .map_or_else(VecDeque::new, |dump| dump.leaving);
        if is_wanted && !self.held.is_empty() {
            stderr::say(format_args!("dumping {}", describe(&self.held)));
            self.dumped.dumps += 1;
            leaving.append(&mut self.held);
        }
        let mut failure = None;
        for mut closed in leaving {
            match closed.place(&self.dir) {
                Ok(()) => {
                    self.dumped.events += closed.events();
                    dispatch.hand_over(closed);
                }
                Err(error) => failure = Some(error.in_full()),
            }
        }
        (self.dumped, failure)
    }

    /// What the target asks for by itself.
    fn look(&mut self, line: &mut Line) {
        let poll = line.take_long_poll().map(|poll| poll.to_string());
        let panics = line.stats().events.panic;
        let has_panicked = panics > std::mem::replace(&mut self.panics, panics);
        let panic = has_panicked.then(|| "a panic".to_owned());
        self.waiting = self.waiting.take().or(panic).or(poll);
    }

    fn begin(&mut self, line: &mut Line, dispatch: &Dispatch, now_ns: u64) {
        if self.dump.is_some() {
            return;
        }
        let is_asked = self.asked.swap(false, Ordering::Relaxed);
        let reason = if is_asked {
            self.waiting = None;
            "SIGUSR1".to_owned()
        } else if now_ns >= self.quiet_until_ns
            && let Some(reason) = self.waiting.take()
        {
            reason
        } else {
            return;
        };
        line.want(now_ns, reason.clone());
        self.dump = Some(Dump {
            reason,
            is_asked,
            until_ns: now_ns,
            leaving: VecDeque::new(),
            retry_ns: 0,
            is_failure_said: false,
            placed: Vec::new(),
            text: None,
            lost_before: dispatch.tally().lost,
        });
    }

    /// The dump is whole once the segment of its end is closed.
    fn collect(&mut self, line: &mut Line) {
        let Some(dump) = self.dump.as_mut().filter(|dump| dump.text.is_none()) else {
            return;
        };
        if line.started().mono_ns < dump.until_ns {
            // It may have ended early, since it was large.
            line.want(dump.until_ns, dump.reason.clone());
            return;
        }
        // Another epoch may have ended since.
        let until_ns = dump.until_ns;
        let wanted =
            (self.held).partition_point(|closed| closed.sealed().started.mono_ns < until_ns);
        dump.leaving = self.held.drain(..wanted).collect();
        let text = format!("{}: {}", describe(&dump.leaving), dump.reason);
        self.said.push(format!("dumping {text}"));
        dump.text = Some(text);
        self.dumped.dumps += 1;
        self.quiet_until_ns = dump.until_ns.saturating_add(ns(self.settings.window));
    }

    /// Gives the segments of the dump a file and hands them on.
    fn place(&mut self, dispatch: &mut Dispatch, now_ns: u64) {
        let Some(dump) = self.dump.as_mut().filter(|dump| now_ns >= dump.retry_ns) else {
            return;
        };
        while let Some(mut closed) = dump.leaving.pop_front() {
            if let Err(error) = closed.place(&self.dir) {
                dump.leaving.push_front(closed);
                dump.retry_ns = now_ns.saturating_add(RETRY_NS);
                self.said.extend(dump.wait_for(&error.in_full()));
                return;
            }
            let sealed = closed.sealed();
            dump.placed.push(sealed.index);
            let memory = closed.memory().map(|memory| (memory, sealed.bytes));
            self.copied.extend(memory);
            self.dumped.events += closed.events();
            dispatch.hand_over(closed);
        }
    }

    /// The dump is over once it is known what became of every segment.
    fn conclude(&mut self, dispatch: &Dispatch) {
        let tally = dispatch.tally();
        if let Some(dump) = &mut self.dump {
            let failed = dump
                .placed
                .iter()
                .find_map(|index| tally.failure_of(*index));
            let said = failed.and_then(|failure| dump.wait_for(failure));
            self.said.extend(said);
        }
        let is_over = |dump: &mut Dump| {
            dump.text.is_some()
                && dump.leaving.is_empty()
                && dump.placed.iter().all(|index| tally.is_settled(*index))
        };
        let Some(dump) = self.dump.take_if(is_over) else {
            return;
        };
        self.answered += u64::from(dump.is_asked);
        let lost = tally.lost - dump.lost_before;
        let lost = if lost > 0 {
            format!("; {lost} of them are lost")
        } else {
            String::new()
        };
        self.note(&format!("{}{lost}", dump.text.unwrap_or_default()));
    }

    /// Whether the present window belongs to a dump.
    fn is_collecting(&self) -> bool {
        self.dump.as_ref().is_some_and(|dump| dump.text.is_none())
    }

    /// Forgets what is older than the window, or has no room. What a dump that is
    /// under way will take goes only for want of room.
    fn trim(&mut self, active_bytes: u64, now_ns: u64) {
        let is_wanted = self.is_collecting();
        let since_ns = now_ns.saturating_sub(ns(self.settings.window));
        let is_old = |closed: &mut ClosedSegment| closed.sealed().ended.mono_ns < since_ns;
        while !is_wanted && self.held.pop_front_if(is_old).is_some() {}
        while self.bytes() + active_bytes > self.settings.bytes && self.held.pop_front().is_some() {
        }
    }

    /// Writes it down for `dial9-bpf dump`.
    fn note(&self, text: &str) {
        let noted = Noted {
            answered: self.answered,
            text: text.to_owned(),
        };
        // Who asked for it waits in vain then, and says so.
        let _ = self.lock.note(&noted.to_string());
    }
}

/// What a flight recorder writes into its lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// Dumps that a signal asked for.
    pub(crate) answered: u64,
    /// The last dump, one line.
    pub(crate) text: String,
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on-demand {} {}", self.answered, self.text)
    }
}

impl FromStr for Noted {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let noted = line.strip_prefix("on-demand ");
        let (answered, text) = noted
            .and_then(|noted| noted.split_once(' '))
            .context("not a flight recorder's")?;
        Ok(Self {
            answered: answered.parse()?,
            text: text.to_owned(),
        })
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Segments, oldest first, in a few words.
fn describe(segments: &VecDeque<ClosedSegment>) -> String {
    let (Some(first), Some(last)) = (segments.front(), segments.back()) else {
        return "nothing".to_owned();
    };
    let bytes: u64 = segments.iter().map(|closed| closed.sealed().bytes).sum();
    let (from_ns, to_ns) = (first.sealed().started.mono_ns, last.sealed().ended.mono_ns);
    let time = Duration::from_nanos(to_ns.saturating_sub(from_ns));
    format!(
        "the last {:.1} s ({} segments, {})",
        time.as_secs_f64(),
        segments.len(),
        ByteSize(bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read() {
        let noted = Noted {
            answered: 3,
            text: "the last 2.0 s: a panic".to_owned(),
        };
        let read = noted.to_string().parse::<Noted>().expect("it is one");
        assert_eq!(read, noted);
        for other in ["", "on-demand", "on-demand x y", "on-demand 1"] {
            assert!(other.parse::<Noted>().is_err(), "{other:?}");
        }
    }
}
