//! Names for segments, as the courier asks for them.
//!
//! In: sealed segments; what is known of the target's files. Out: what goes behind each.
//! Never: a failure that keeps a segment.

use std::{
    fmt::Write as _,
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
};

use dial9_bpf_attach::Target;
use dial9_bpf_ship::courier::Names;
use dial9_bpf_symbolize::{DebugInfo, Helper, Naming, Symbolizer};
use dial9_bpf_trace::{clock::monotonic_ns, metadata::Metadata, segment::SealedSegment};

use crate::{
    args::RecordArgs,
    mappings::{Known, Mappings},
    plan_report::thousands,
    stderr,
};

/// What is missing where nobody knows where the target has code.
const NAMES: &str = "names";

/// Names of one recording's segments, and of those that its predecessors left.
#[derive(Debug)]
struct SegmentNames {
    symbolizer: Mutex<(Symbolizer, Naming)>,
    known: Arc<Known>,
    /// When the recording began, `CLOCK_MONOTONIC` ns.
    since_ns: u64,
}

/// The watch for what callchains are named by, where there are callchains.
///
/// # Errors
/// The system's, which is said: there are no names then.
pub(crate) fn mappings_of(
    args: &RecordArgs,
    target: &Arc<Target>,
    debug_file: Option<File>,
) -> io::Result<Option<Mappings>> {
    if !args.has_callchains() {
        return Ok(None);
    }
    let started = Mappings::start(target, debug_file);
    if let Err(error) = &started {
        stderr::say(format_args!("missing: {NAMES}: {error}"));
    }
    started.map(Some)
}

/// Who names the addresses in segments, of which the metadata tells where the target has
/// code.
pub(crate) fn of(
    args: &RecordArgs,
    mappings: &mut io::Result<Option<Mappings>>,
    metadata: &mut Metadata,
) -> Option<Arc<dyn Names>> {
    match mappings {
        Ok(Some(mappings)) => {
            metadata.mappings = mappings.news().unwrap_or_default();
            let debug_info = args.debug_info.into();
            let names = SegmentNames::new(mappings.known(), debug_info, monotonic_ns());
            Some(Arc::new(names))
        }
        Ok(None) => None,
        Err(error) => {
            let absent = (NAMES.to_owned(), error.to_string());
            metadata.absent.push(absent);
            None
        }
    }
}

impl SegmentNames {
    /// Those of a target whose files are known.
    fn new(known: Arc<Known>, debug_info: DebugInfo, since_ns: u64) -> Self {
        let helper = Helper {
            // The very file, also when it was replaced.
            program: "/proc/self/exe".into(),
            args: vec!["symbolize".into()],
        };
        let symbolizer = Symbolizer::new(helper, debug_info);
        Self {
            symbolizer: Mutex::new((symbolizer, Naming::default())),
            known,
            since_ns,
        }
    }
}

impl Names for SegmentNames {
    fn tail(&self, segment: &SealedSegment) -> Vec<u8> {
        let work = || {
            let known = self.known.placed();
            let mut symbolizer = self
                .symbolizer
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let (symbolizer, naming) = &mut *symbolizer;
            let tail = symbolizer.tail(&segment.path, &known, self.since_ns)?;
            naming.add(&tail.naming);
            Ok(tail.bytes)
        };
        let failure = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(bytes)) => return bytes,
            Ok(Err(error)) => io::Error::to_string(&error),
            // The panic's hook has said why.
            Err(_) => "a fault of our own".to_owned(),
        };
        let path = segment.path.display();
        stderr::say(format_args!("no names for {path}: {failure}"));
        Vec::new()
    }

    fn said(&self) -> Option<String> {
        let symbolizer = self
            .symbolizer
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        describe(&symbolizer.1)
    }
}

fn describe(naming: &Naming) -> Option<String> {
    let Naming { named, unnamed } = naming;
    let all = named + unnamed.values().sum::<u64>();
    if all == 0 {
        return None;
    }
    let mut text = format!("{} of {}", thousands(*named), thousands(all));
    for (at, (reason, count)) in unnamed.iter().enumerate() {
        let before = if at == 0 { "; without: " } else { ", " };
        write!(text, "{before}{} {reason}", thousands(*count)).expect("to a string");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use dial9_bpf_symbolize::Unnamed;

    use super::*;

    #[test]
    fn what_is_said_of_names() {
        assert_eq!(describe(&Naming::default()), None);
        let unnamed = [(Unnamed::NoSymbol, 20), (Unnamed::NoFile, 3)];
        let naming = Naming {
            named: 1200,
            unnamed: unnamed.into(),
        };
        let said = "1,200 of 1,223; without: 3 no-file, 20 no-symbol";
        assert_eq!(describe(&naming).as_deref(), Some(said));
    }
}
