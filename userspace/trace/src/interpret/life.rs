//! How threads panic and how the target ends.
//!
//! In: panics, the pieces of their texts, signals, the exit. Out: one event for
//! each panic, with its message if that follows, and one for the end. Never: a
//! text of which a piece is missing; a message for a panic on the other side of a
//! gap, of a poll's end, or of the thread's next panic.
//!
//! A panic comes in two parts: std tells where it is, then runs its hook, and
//! then the unwinder tells the payload. A panic that is resumed has the second
//! part only, one that aborts the first.

use std::collections::{BTreeMap, HashMap};

use dial9_bpf_abi::record::{Exit, Panic, RecordHeader, Signal, Text};
use dial9_bpf_abi::text::{End, Piece};
use foldhash::fast::RandomState;

use super::Interpreter;
use super::lane::{Out, visit};
use crate::event::{Ended, Event, PanicPlace, Panicked, TargetEnd};
use crate::location::Locations;
use crate::texts::TextId;
use crate::threads::Work;

/// Panicking threads that are known at a time.
const MOST: usize = 1024;
/// Signals whose address is that of a fault: `SIGILL`, `SIGTRAP`, `SIGBUS`,
/// `SIGFPE`, `SIGSEGV`.
const FAULTS: [u32; 5] = [4, 5, 7, 8, 11];
/// `SI_KERNEL` (include/uapi/asm-generic/siginfo.h): the kernel's, with no address.
const SI_KERNEL: i32 = 0x80;
/// The largest signal.
const MAX_SIGNAL: u32 = 64;

/// What is known of the target's panics and its end.
#[derive(Debug, Default)]
pub(super) struct Life {
    panicking: HashMap<u32, Panicking, RandomState>,
    /// The first thread that got each signal, by its number.
    signals: BTreeMap<u8, Fatal>,
    end: Option<TargetEnd>,
}

impl Life {
    pub(super) fn end(&self) -> Option<&TargetEnd> {
        self.end.as_ref()
    }
}

/// A thread that panics.
#[derive(Debug)]
struct Panicking {
    panicked: Panicked,
    file: Pieces,
    message: Pieces,
    /// Its event has been said.
    is_told: bool,
}

impl Panicking {
    fn new(panicked: Panicked) -> Self {
        Self {
            panicked,
            file: Pieces::of(panicked.ts_ns),
            message: Pieces::default(),
            is_told: false,
        }
    }
}

/// A signal that may end the target.
#[derive(Clone, Copy, Debug)]
struct Fatal {
    tid: u32,
    fault_address: Option<u64>,
    panic: Option<(PanicPlace, Option<TextId>)>,
}

/// The pieces of a text, as far as they have come.
#[derive(Debug, Default)]
struct Pieces {
    /// The time of all of them; `None` before the first and after the last.
    ts_ns: Option<u64>,
    next: u8,
    bytes: Vec<u8>,
}

impl Pieces {
    fn of(ts_ns: u64) -> Self {
        Self {
            ts_ns: Some(ts_ns),
            ..Self::default()
        }
    }

    /// Takes a piece; false if it is not the next one.
    fn take(&mut self, ts_ns: u64, piece: Piece, bytes: &[u8]) -> bool {
        if self.ts_ns != Some(ts_ns) || self.next != piece.index {
            return false;
        }
        self.bytes.extend(bytes.iter().take(piece.bytes.into()));
        self.next = self.next.saturating_add(1);
        if piece.end != End::Open {
            self.ts_ns = None;
        }
        true
    }

    /// The text; `None` if it is no UTF-8. One that is cut may end in a letter's
    /// midst.
    fn text(&self, end: End) -> Option<&str> {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => Some(text),
            Err(error) if end == End::Cut && error.error_len().is_none() => {
                std::str::from_utf8(&self.bytes[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        }
    }
}

impl Interpreter {
    pub(super) fn panic(&mut self, panic: &Panic, out: &mut impl FnMut(&Event, &Locations)) {
        let Panic {
            header,
            line,
            column,
        } = *panic;
        let at = PanicPlace {
            file: None,
            line,
            column,
        };
        self.begin(header, at, out);
    }

    pub(super) fn text(&mut self, text: &Text, out: &mut impl FnMut(&Event, &Locations)) {
        let Text { header, bytes } = text;
        let Some(piece) = Piece::unpack(header.flags) else {
            self.stats.stray_pieces += 1;
            return;
        };
        if piece.is_message && piece.index == 0 {
            self.begin_message(*header, out);
        }
        let panicking = self.life.panicking.get_mut(&header.tid);
        let Some(panicking) = panicking.filter(|panicking| !panicking.is_told) else {
            self.stats.stray_pieces += 1;
            return;
        };
        let pieces = if piece.is_message {
            &mut panicking.message
        } else {
            &mut panicking.file
        };
        if !pieces.take(header.ts_ns, piece, bytes) {
            self.stats.stray_pieces += 1;
        } else if piece.end != End::Open {
            self.end_text(header.tid, piece, out);
        }
    }

    pub(super) fn signal(&mut self, signal: &Signal, out: &mut impl FnMut(&Event, &Locations)) {
        let Signal {
            header,
            number,
            code,
            address,
        } = *signal;
        visit(
            &mut self.threads,
            header,
            &mut Out::new(&mut self.stats, &self.locations, out),
        );
        let panic = self.get_over(header.tid, out);
        let is_fault = FAULTS.contains(&number) && 0 < code && code < SI_KERNEL;
        let fatal = Fatal {
            tid: header.tid,
            fault_address: is_fault.then_some(address),
            panic: panic.map(|panicked| (panicked.at, panicked.message)),
        };
        if number <= MAX_SIGNAL
            && let Ok(number) = u8::try_from(number)
        {
            self.life.signals.entry(number).or_insert(fatal);
        }
    }

    pub(super) fn exit(&mut self, exit: &Exit, out: &mut impl FnMut(&Event, &Locations)) {
        let Exit { header, status } = *exit;
        if self.life.end.is_some() {
            return;
        }
        self.get_over_all(out);
        let how = Ended::of_status(status);
        let fatal = match how {
            Ended::Signal { number, .. } => self.life.signals.get(&number).copied(),
            Ended::Exit { .. } => None,
        };
        let end = TargetEnd {
            ts_ns: header.ts_ns,
            how,
            tid: fatal.map(|fatal| fatal.tid),
            fault_address: fatal.and_then(|fatal| fatal.fault_address),
            panic: fatal.and_then(|fatal| fatal.panic),
        };
        self.life.end = Some(end);
        Out::new(&mut self.stats, &self.locations, out).event(&Event::TargetEnd(end));
    }

    /// The thread is past its last panic, if it had one: that is said, if it has
    /// not been yet. Returns it.
    #[inline]
    pub(super) fn get_over(
        &mut self,
        tid: u32,
        out: &mut impl FnMut(&Event, &Locations),
    ) -> Option<Panicked> {
        if self.life.panicking.is_empty() {
            return None;
        }
        let panicking = self.life.panicking.remove(&tid)?;
        if !panicking.is_told {
            self.tell(&panicking.panicked, out);
        }
        Some(panicking.panicked)
    }

    /// The same for every thread.
    pub(super) fn get_over_all(&mut self, out: &mut impl FnMut(&Event, &Locations)) {
        let mut waiting: Vec<Panicked> = self
            .life
            .panicking
            .drain()
            .filter(|(_, panicking)| !panicking.is_told)
            .map(|(_, panicking)| panicking.panicked)
            .collect();
        waiting.sort_unstable_by_key(|panicked| (panicked.ts_ns, panicked.tid));
        for panicked in &waiting {
            self.tell(panicked, out);
        }
    }

    /// A message begins: of the panic that waits for one, otherwise of one that is
    /// resumed or whose place is not known.
    fn begin_message(&mut self, header: RecordHeader, out: &mut impl FnMut(&Event, &Locations)) {
        let waits = |panicking: &Panicking| {
            !panicking.is_told && panicking.message.ts_ns.is_none() && panicking.message.next == 0
        };
        if !self.life.panicking.get(&header.tid).is_some_and(waits) {
            self.begin(header, PanicPlace::default(), out);
        }
        if let Some(panicking) = self.life.panicking.get_mut(&header.tid) {
            panicking.message = Pieces::of(header.ts_ns);
        }
    }

    fn begin(
        &mut self,
        header: RecordHeader,
        at: PanicPlace,
        out: &mut impl FnMut(&Event, &Locations),
    ) {
        self.get_over(header.tid, out);
        if self.life.panicking.len() == MOST {
            self.get_over_all(out);
        }
        let (task_id, worker) = self.polled(header, out);
        let panicked = Panicked {
            ts_ns: header.ts_ns,
            tid: header.tid,
            task_id,
            worker,
            at,
            message: None,
            is_message_cut: false,
        };
        let panicking = Panicking::new(panicked);
        self.life.panicking.insert(header.tid, panicking);
    }

    /// The text is there. A message is the last that a panic waits for.
    fn end_text(&mut self, tid: u32, piece: Piece, out: &mut impl FnMut(&Event, &Locations)) {
        let Some(panicking) = self.life.panicking.get_mut(&tid) else {
            return;
        };
        let panicked = &mut panicking.panicked;
        if piece.is_message {
            if piece.end != End::NoText {
                let text = panicking.message.text(piece.end);
                self.stats.unreadable_texts += u64::from(text.is_none());
                panicked.message = text.map(|text| self.locations.add_text(text));
                panicked.is_message_cut = text.is_some() && piece.end == End::Cut;
            }
            panicking.is_told = true;
            let panicked = *panicked;
            self.tell(&panicked, out);
        } else {
            // A part of a path is no path.
            let text = panicking
                .file
                .text(piece.end)
                .filter(|_| piece.end == End::Whole);
            self.stats.unreadable_texts += u64::from(text.is_none());
            panicked.at.file = text.map(|text| self.locations.add_text(text));
        }
    }

    fn tell(&mut self, panicked: &Panicked, out: &mut impl FnMut(&Event, &Locations)) {
        Out::new(&mut self.stats, &self.locations, out).event(&Event::Panic(*panicked));
    }

    /// The task that the thread polls, or 0, and the worker that polls it.
    fn polled(
        &mut self,
        header: RecordHeader,
        out: &mut impl FnMut(&Event, &Locations),
    ) -> (u64, Option<u32>) {
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        visit(&mut self.threads, header, out);
        let open = self
            .threads
            .get(header.tid)
            .and_then(|thread| thread.open.last());
        match open {
            Some(poll) => match poll.work {
                Work::Task { worker } => (poll.task_id, Some(worker)),
                Work::Closure { .. } => (poll.task_id, None),
                Work::WorkerLoop { .. } => (0, None),
            },
            None => (0, None),
        }
    }
}
