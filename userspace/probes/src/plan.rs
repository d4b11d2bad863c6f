//! The plan: which sites of a binary are probed, by which program, with which
//! cookie, and what has no usable site.

use std::collections::BTreeSet;

use dial9_bpf_abi::cookie::Cookie;

/// What a hit at a site means; each has one kernel program and one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Probe {
    /// Entry of a task's poll function.
    PollStart,
    /// After a call to a poll function.
    PollEnd,
    /// A task was woken through its waker.
    Wake,
    /// A task was bound to a runtime.
    Spawn,
    /// A task reached its end.
    Terminate,
    /// A worker is about to park.
    Park,
    /// A worker came back from a park.
    Unpark,
    /// A thread panics; tells where.
    Panic,
    /// A thread begins to unwind; tells the panic's message.
    PanicMessage,
    /// A thread has entered a runtime to block on a future.
    BlockOn,
    /// A thread leaves it.
    BlockOnEnd,
}

impl Probe {
    /// Every probe, in the order in which reports list them.
    pub const ALL: [Self; 11] = [
        Self::PollStart,
        Self::PollEnd,
        Self::Wake,
        Self::Spawn,
        Self::Terminate,
        Self::Park,
        Self::Unpark,
        Self::Panic,
        Self::PanicMessage,
        Self::BlockOn,
        Self::BlockOnEnd,
    ];

    /// The probe's name in reports and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PollStart => "poll-start",
            Self::PollEnd => "poll-end",
            Self::Wake => "wake",
            Self::Spawn => "spawn",
            Self::Terminate => "terminate",
            Self::Park => "park",
            Self::Unpark => "unpark",
            Self::Panic => "panic",
            Self::PanicMessage => "panic-message",
            Self::BlockOn => "block-on",
            Self::BlockOnEnd => "block-on-end",
        }
    }

    /// Whether a recording goes on without it where the kernel refuses it.
    pub const fn is_optional(self) -> bool {
        matches!(self, Self::Panic | Self::PanicMessage)
    }
}

/// A file with sites; those of one probe are all in the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// The one that was scanned.
    Scanned,
    /// The library that unwinds the target's stacks.
    Unwinder,
}

/// How the kernel executes the probed instruction; this decides what a hit
/// costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstructionClass {
    /// `nop`, `jmp`, `jcc`: emulated, nothing written.
    Emulated,
    /// `push`, `call`: emulated, and the kernel writes the user stack.
    EmulatedStack,
    /// Everything else: executed out of line under a debug trap.
    SingleStepped,
}

/// One place to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What a hit here means.
    pub probe: Probe,
    /// The file that has it.
    pub binary: Binary,
    /// Offset in the file as the kernel counts it, bytes.
    pub file_offset: u64,
    /// Link-time virtual address.
    pub address: u64,
    /// How the kernel executes the instruction here.
    pub class: InstructionClass,
    /// The instruction in Intel syntax.
    pub instruction: String,
    /// What the program is told at each hit.
    pub cookie: Cookie,
    /// Demangled name of the function around the site, where a symbol gives it.
    pub function: Option<String>,
    /// Whose parks it is of; `None` for the other probes.
    pub scheduler: Option<Scheduler>,
}

/// A task vtable: one for each (future type, scheduler type).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskVtable {
    /// Link-time virtual address; the run-time address less the load bias.
    pub address: u64,
    /// Link-time virtual address of the poll function.
    pub poll: u64,
    /// Offset of the task id in the task header, bytes.
    pub id_offset: u16,
    /// Whether its tasks are closures of the blocking pool.
    pub blocking: bool,
    /// The future's type, where a v0 symbol, debug information or the symbols of its
    /// functions spell it; where it may be one of several, all of them.
    pub task_type: Option<String>,
    /// The places where its tasks are spawned, as `file:line:column`: all of them, or
    /// none where that is not known.
    pub spawned_at: Vec<String>,
}

/// A probe without a usable site, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    /// What will be absent from the trace.
    pub probe: Probe,
    /// One line: what was looked for and not found.
    pub reason: String,
}

/// What a scan of a binary found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Sites to probe, sorted by probe and file offset, no offset twice for one
    /// probe.
    pub sites: Vec<Site>,
    /// Task vtables, sorted by address; `Cookie::vtable` is an index into this.
    pub vtables: Vec<TaskVtable>,
    /// What is absent, whole or in part.
    pub misses: Vec<Miss>,
    /// Tokio's version, from the source paths in the binary.
    pub tokio_version: Option<String>,
    /// GNU build id, lower-case hex.
    pub build_id: Option<String>,
    /// Whether the binary, or its debug file, has a symbol table.
    pub has_symbols: bool,
    /// Why task types have no name, where some have none.
    pub untyped: Option<String>,
}

impl Plan {
    /// The plan as that of the target's object of this number.
    #[must_use]
    pub fn numbered(mut self, object: u8) -> Self {
        for site in &mut self.sites {
            site.cookie.object = object;
        }
        self
    }

    /// The plan without sites that the kernel has to single-step. A poll end
    /// among them takes all polls with it: a poll that begins and cannot end is
    /// worse than none. So is a park; those of the two kinds of runtime go apart.
    /// Where the end of a task is not seen any more, no task id is remembered.
    #[must_use]
    pub fn without_single_step(mut self) -> Self {
        let is_stepped = |site: &Site| site.class == InstructionClass::SingleStepped;
        let stepped_ends = self
            .sites
            .iter()
            .any(|site| site.probe == Probe::PollEnd && is_stepped(site));
        let stepped_block_ons = self.sites.iter().any(|site| {
            matches!(site.probe, Probe::BlockOn | Probe::BlockOnEnd) && is_stepped(site)
        });
        let stepped_parks = self.sites.iter().filter(|site| is_stepped(site));
        let stepped_parks: BTreeSet<Scheduler> =
            stepped_parks.filter_map(|site| site.scheduler).collect();
        let unpaired: BTreeSet<u64> = self
            .sites
            .iter()
            .filter(|site| {
                let scheduler = site.scheduler;
                scheduler.is_some_and(|scheduler| stepped_parks.contains(&scheduler))
            })
            .map(|site| site.address)
            .collect();
        for probe in Probe::ALL {
            let of_polls = matches!(probe, Probe::PollStart | Probe::PollEnd);
            let of_block_ons = matches!(probe, Probe::BlockOn | Probe::BlockOnEnd);
            let of_parks = matches!(probe, Probe::Park | Probe::Unpark);
            let goes = |site: &Site| {
                let is_unpaired = (of_polls && stepped_ends)
                    || (of_block_ons && stepped_block_ons)
                    || (of_parks && unpaired.contains(&site.address));
                site.probe == probe && (is_stepped(site) || is_unpaired)
            };
            let gone = self.sites.iter().filter(|site| goes(site)).count();
            let all = self.sites.iter().filter(|site| site.probe == probe).count();
            if gone > 0 {
                self.sites.retain(|site| !goes(site));
                let reason = format!("{gone} of {all} sites need single-stepping");
                self.misses.push(Miss { probe, reason });
            }
            if gone > 0 && probe == Probe::Terminate {
                self.sites
                    .iter_mut()
                    .for_each(|site| site.cookie.remembers = false);
            }
        }
        self
    }

    /// What is known of the binary, with nothing to probe.
    #[must_use]
    pub fn without_sites(mut self) -> Self {
        self.sites.clear();
        self.misses.clear();
        self
    }
}

/// A kind of runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheduler {
    /// All of it on the thread that blocks on it.
    CurrentThread,
    /// With threads of its own.
    MultiThread,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(probe: Probe, address: u64, class: InstructionClass, scheduler: Scheduler) -> Site {
        Site {
            probe,
            binary: Binary::Scanned,
            file_offset: address,
            address,
            class,
            instruction: String::new(),
            cookie: Cookie::EMPTY,
            function: None,
            scheduler: Some(scheduler),
        }
    }

    #[test]
    fn parks_without_an_end_go_and_those_of_the_other_runtime_stay() {
        use InstructionClass::{Emulated, SingleStepped};
        use Scheduler::{CurrentThread, MultiThread};
        let plan = Plan {
            sites: vec![
                site(Probe::Park, 1, Emulated, MultiThread),
                site(Probe::Unpark, 2, Emulated, MultiThread),
                site(Probe::Park, 3, Emulated, CurrentThread),
                site(Probe::Unpark, 4, SingleStepped, CurrentThread),
                site(Probe::Unpark, 5, Emulated, CurrentThread),
            ],
            vtables: Vec::new(),
            misses: Vec::new(),
            tokio_version: None,
            build_id: None,
            has_symbols: true,
            untyped: None,
        };
        let plan = plan.without_single_step();
        let left: Vec<u64> = plan.sites.iter().map(|site| site.address).collect();
        assert_eq!(left, [1, 2]);
        let missed: Vec<Probe> = plan.misses.iter().map(|miss| miss.probe).collect();
        assert_eq!(missed, [Probe::Park, Probe::Unpark]);
    }
}
