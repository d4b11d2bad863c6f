//! Where the functions of a probe are.

use dial9_bpf_probes::{
    ScanError,
    declared::{Code, Function, Place as Site},
};
use dial9_bpf_spec::{Exit, Object, Place, Probe};

use super::Candidate;

/// Functions that one pattern may stand for.
const MOST: usize = 4096;

/// A function that is probed.
#[derive(Debug)]
pub(super) struct At {
    /// Which file it is in.
    pub(super) candidate: usize,
    /// Its first instruction.
    pub(super) begin: Site,
    /// Where its begin is probed.
    pub(super) entry: Site,
    /// Its returns, where they are wanted.
    pub(super) exits: Vec<Site>,
}

/// What was found of a probe.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) functions: Vec<At>,
    pub(super) misses: Vec<String>,
}

impl Found {
    /// Looks for one of its places.
    pub(super) fn look_for(
        &mut self,
        probe: &Probe,
        place: &Place,
        candidates: &[Candidate],
        codes: &[Result<Code<'_>, ScanError>],
    ) {
        let (object, what) = match place {
            Place::Function {
                pattern, object, ..
            } => (object, format!("{pattern:?}")),
            Place::Address { address, object } => (object, format!("{address:#x}")),
            Place::Note => (&Object::Any, format!("a note {probe}")),
            Place::Discovered(_) => return,
        };
        let before = self.functions.len() + self.misses.len();
        let files = candidates.iter().zip(codes).enumerate();
        let files = files.filter(|(_, (candidate, _))| candidate.is_of(object));
        let mut looked_in = Vec::new();
        for (number, (candidate, code)) in files {
            match code {
                Ok(code) => self.look_in(probe, place, (number, code)),
                Err(error) => self.misses.push(format!("{}: {error}", candidate.name)),
            }
            let symbols = match code {
                Ok(code) if !code.has_symbols() => " (which has no symbols)",
                _ => "",
            };
            looked_in.push(format!("{}{symbols}", candidate.name));
        }
        if self.functions.len() + self.misses.len() == before {
            let place = match looked_in.as_slice() {
                [] => "no such file is mapped".to_owned(),
                [one] => format!("not in {one}"),
                several => format!("in none of {} files", several.len()),
            };
            self.misses.push(format!("{what}: {place}"));
        }
    }

    fn look_in(&mut self, probe: &Probe, place: &Place, (number, code): (usize, &Code<'_>)) {
        match place {
            Place::Address { address, .. } => {
                if let Some(entry) = code.place(*address) {
                    self.functions.push(At {
                        candidate: number,
                        begin: entry.clone(),
                        entry,
                        exits: Vec::new(),
                    });
                }
            }
            Place::Function {
                pattern, offset, ..
            } => {
                let functions = code.functions(pattern);
                if functions.len() > MOST {
                    let count = functions.len();
                    self.misses.push(format!(
                        "{pattern:?} is of {count} functions, and {MOST} can be probed"
                    ));
                    return;
                }
                for function in &functions {
                    self.add(probe, function, *offset, (number, code));
                }
            }
            Place::Note | Place::Discovered(_) => {}
        }
    }

    fn add(
        &mut self,
        probe: &Probe,
        function: &Function,
        offset: u64,
        (number, code): (usize, &Code<'_>),
    ) {
        let begin = code.place(function.address.saturating_add(offset));
        let entry = if offset == 0 {
            code.entry(function, probe.registers())
        } else {
            begin.clone()
        };
        let (Some(begin), Some(entry)) = (begin, entry) else {
            let reason = "the kernel lets no probe on its instruction";
            self.misses.push(format!("{}: {reason}", function.name));
            return;
        };
        let mut exits = Vec::new();
        if probe.moment.exit() == Some(Exit::Instructions) {
            let found = code.exits(function);
            if !found.is_whole || found.places.is_empty() {
                let reason = "its returns are not found";
                self.misses.push(format!("{}: {reason}", function.name));
                return;
            }
            if found.jumps > 0 {
                let jumps = found.jumps;
                let reason = format!("it also ends by {jumps} jumps, which are not seen");
                self.misses.push(format!("{}: {reason}", function.name));
            }
            exits = found.places;
        }
        self.functions.push(At {
            candidate: number,
            begin,
            entry,
            exits,
        });
    }
}
