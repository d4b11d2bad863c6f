//! Declared probes: files → what is attached, and what its events are.
//!
//! In: probe files, and a target. Out: definitions and sites for the kernel side, shapes for
//! the trace, and what resolved to nothing. Never: a site that is a guess: a pattern stands
//! for the functions whose names it is of.

use std::{
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
};

use dial9_bpf_abi::declared::MAX_DEFINITIONS;
use dial9_bpf_attach::{
    DebugFile, FileParts, Mapped, Target,
    declared::{Declared, DeclaredSite, Places},
    object,
};
use dial9_bpf_probes::{declared::Code, plan::InstructionClass};
use dial9_bpf_spec::{
    Dialect, Emit, Exit, Filter, MAX_TESTS, Moment, Object, Place, Probe, Program, Spec,
};
use dial9_bpf_trace::{
    declared::{Declarations, Shape},
    stored_hits::is_own,
};

mod cost;
mod shape;
mod sites;

pub(crate) use cost::{facts, paid};
use sites::Found;

/// Largest probe file, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A probe file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbesError {
    /// It is no probe file.
    #[error("{path}:{reason}")]
    Wrong {
        /// Its path.
        path: String,
        /// Line, column, and what is wrong.
        reason: String,
    },
    /// It cannot be read.
    #[error("{path}: {reason}")]
    Unreadable {
        /// Its path.
        path: String,
        /// Why.
        reason: String,
    },
    /// What `--where` says cannot be asked of the probes.
    #[error("--where:{reason}")]
    Where {
        /// Line, column, and what is wrong.
        reason: String,
    },
    /// Its name does not say what it is.
    #[error("{path}: a probe file is called *.uprobes")]
    Extension {
        /// Its path.
        path: String,
    },
}

/// Declared probes that resolve to nothing, where that is not to be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unresolved(String);

/// Reads probe files.
///
/// # Errors
/// [`ProbesError`].
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Probe>, ProbesError> {
    let mut probes: Vec<Probe> = Vec::new();
    for path in paths {
        let wrong = |line: usize, reason: String| ProbesError::Wrong {
            path: path.display().to_string(),
            reason: format!("{line}: {reason}"),
        };
        for probe in read_one(path)?.probes {
            if let Emit::Source(source) = &probe.emit {
                let reason =
                    format!("{probe} is to `emit {source}`: here there are `event` and `span`");
                return Err(wrong(probe.line, reason));
            }
            if is_own(probe.event()) {
                let reason = format!(
                    "{probe}: {:?} is an event of the trace itself",
                    probe.event()
                );
                return Err(wrong(probe.line, reason));
            }
            if let Some(other) = probes.iter().find(|other| other.event() == probe.event()) {
                let reason = format!(
                    "{probe} and {other} emit the same event, {:?}",
                    probe.event()
                );
                return Err(wrong(probe.line, reason));
            }
            probes.push(probe);
        }
    }
    Ok(probes)
}

/// Narrows probes: of those that have all values of the filter, the hits count of which it
/// is true as well.
///
/// # Errors
/// [`ProbesError::Where`] when no probe has them, with the error that stands farthest.
pub(crate) fn narrow(probes: &mut [Probe], text: &str) -> Result<(), ProbesError> {
    let wrong = |reason: String| ProbesError::Where { reason };
    let mut errors = Vec::new();
    let mut is_asked = false;
    for probe in probes {
        let filter = match Filter::parse(text, &probe.values) {
            Ok(filter) => filter,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        is_asked = true;
        let whole = match probe.filter.take() {
            Some(own) => Filter::All(vec![own, filter]),
            None => filter,
        };
        if whole.tests() > MAX_TESTS {
            let tests = whole.tests();
            let reason = format!(" {probe} would make {tests} comparisons, of {MAX_TESTS} at most");
            return Err(wrong(reason));
        }
        probe.filter = Some(whole);
    }
    match errors
        .into_iter()
        .max_by_key(|error| (error.line, error.column))
    {
        Some(error) if !is_asked => Err(wrong(error.to_string())),
        _ => Ok(()),
    }
}

fn read_one(path: &Path) -> Result<Spec, ProbesError> {
    let shown = || path.display().to_string();
    // Notes are not looked for: a file of them would be of probes that are nowhere.
    if path
        .extension()
        .is_none_or(|extension| extension != "uprobes")
    {
        return Err(ProbesError::Extension { path: shown() });
    }
    let unreadable = |reason: String| ProbesError::Unreadable {
        path: shown(),
        reason,
    };
    let metadata = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
    if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
        return Err(unreadable("no file of at most 1 MiB".to_owned()));
    }
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    Spec::parse(&text, Dialect::Uprobes).map_err(|error| ProbesError::Wrong {
        path: shown(),
        reason: error.to_string(),
    })
}

/// What declared probes come to in a target.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// What is attached.
    pub(crate) declared: Declared,
    /// What its events are.
    pub(crate) declarations: Declarations,
    /// Of each probe what was found, in the order of the files.
    pub(crate) rows: Vec<Row>,
}

/// What was found of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its provider and name.
    pub(crate) probe: String,
    /// Its event.
    pub(crate) event: String,
    /// Sites of its hits or begins.
    pub(crate) begins: Vec<InstructionClass>,
    /// Sites of its ends.
    pub(crate) ends: Vec<InstructionClass>,
    /// Ends that are seen by return probes.
    pub(crate) uretprobes: usize,
    /// What is missing.
    pub(crate) misses: Vec<String>,
    /// Indices of its definitions: of hits or begins, and of ends.
    pub(crate) definitions: [Option<u16>; 2],
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.ends.len() + self.uretprobes;
        write!(f, "{}: {} sites", self.probe, self.begins.len() + ends)?;
        let sites = self.begins.iter().chain(&self.ends);
        let stepped = sites.filter(|class| **class == InstructionClass::SingleStepped);
        match stepped.count() {
            0 => {}
            stepped => write!(f, ", {stepped} of them single-stepped")?,
        }
        for miss in &self.misses {
            write!(f, "; missing: {miss}")?;
        }
        Ok(())
    }
}

impl Resolved {
    /// Says which probes resolve to nothing.
    ///
    /// # Errors
    /// [`Unresolved`].
    fn check_strictly(&self) -> Result<(), Unresolved> {
        let missing = self.rows.iter().filter(|row| !row.misses.is_empty());
        let missing: Vec<String> = missing.map(ToString::to_string).collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(Unresolved(missing.join(", ")))
        }
    }
}

/// A file of the target that probes are looked for in.
struct Candidate {
    mapped: Option<Mapped>,
    file: File,
    name: String,
    parts: FileParts,
    debug_file: Option<DebugFile>,
}

impl Candidate {
    fn is_of(&self, object: &Object) -> bool {
        match object {
            Object::Any => true,
            Object::Exe => self.mapped.is_none(),
            Object::Named(pattern) => {
                let name = Path::new(&self.name).file_name();
                let name = name.and_then(|name| name.to_str());
                name.is_some_and(|name| pattern.matches(name))
            }
        }
    }
}

/// Looks for probes in a target's files.
///
/// # Errors
/// When the target cannot be looked at, or a probe cannot be run, or is to be somewhere and
/// is not.
pub(crate) fn resolve(
    target: &Target,
    probes: &[Probe],
    (debug_file, is_strict): (Option<&Path>, bool),
) -> anyhow::Result<Resolved> {
    if probes.is_empty() {
        return Ok(Resolved::default());
    }
    let candidates = candidates(target, probes, debug_file)?;
    let mut codes = Vec::new();
    for candidate in &candidates {
        let debug_file = candidate.debug_file.as_ref().map(|file| &**file.parts());
        codes.push(Code::parse(&candidate.parts, debug_file));
    }
    let mut making = Making::default();
    for (event, probe) in probes.iter().enumerate() {
        let mut found = Found::default();
        for place in &probe.places {
            found.look_for(probe, place, &candidates, &codes);
        }
        making.add(event, probe, found)?;
    }
    let shapes: Vec<Shape> = probes.iter().map(shape::of).collect();
    let places = making.places(&candidates)?;
    let resolved = Resolved {
        declarations: Declarations::new(shapes, &making.programs),
        declared: Declared {
            definitions: making.definitions,
            places,
        },
        rows: making.rows,
    };
    if is_strict {
        resolved.check_strictly()?;
    }
    Ok(resolved)
}

fn candidates(
    target: &Target,
    probes: &[Probe],
    debug_file: Option<&Path>,
) -> anyhow::Result<Vec<Candidate>> {
    let parts = target.read_executable()?;
    let debug_file = match debug_file {
        Some(path) => Some(DebugFile::at(path, &parts)?),
        None => DebugFile::find(target, &parts),
    };
    let mut candidates = vec![Candidate {
        mapped: None,
        file: target.executable().try_clone()?,
        name: target.path().display().to_string(),
        debug_file,
        parts,
    }];
    let places = || probes.iter().flat_map(|probe| &probe.places);
    let wants_others = places().any(|place| match place {
        Place::Function { object, .. } | Place::Address { object, .. } => *object != Object::Exe,
        Place::Note => true,
        Place::Discovered(_) => false,
    });
    if !wants_others {
        return Ok(candidates);
    }
    for mapped in Mapped::all(target.pid())? {
        if target.is_executable(&mapped) {
            continue;
        }
        // What cannot be read has nothing to probe: the probe then says what it lacks.
        let Ok(file) = mapped.open() else { continue };
        let Ok(parts) = object::read(&file) else {
            continue;
        };
        candidates.push(Candidate {
            name: mapped.path().display().to_string(),
            mapped: Some(mapped),
            file,
            parts,
            debug_file: None,
        });
    }
    Ok(candidates)
}

/// What is being put together.
#[derive(Default)]
struct Making {
    definitions: Vec<dial9_bpf_abi::declared::Definition>,
    /// Which event each program makes.
    programs: Vec<usize>,
    /// Begins and hits, and ends, with the candidate that they are in.
    begins: Vec<(usize, DeclaredSite)>,
    ends: Vec<(usize, DeclaredSite)>,
    uretprobes: Vec<(usize, DeclaredSite)>,
    rows: Vec<Row>,
}

impl Making {
    fn add(&mut self, event: usize, probe: &Probe, found: Found) -> anyhow::Result<()> {
        let program = Program::of(probe, None)?;
        let first = self.definitions.len();
        let needed = first + 1 + usize::from(program.second.is_some());
        anyhow::ensure!(
            needed <= MAX_DEFINITIONS as usize,
            "more than {MAX_DEFINITIONS} moments of declared probes"
        );
        self.definitions.push(program.first);
        self.definitions.extend(program.second);
        self.programs.push(event);
        let index = u16::try_from(first).expect("few definitions");
        let (at_entry, at_return) = match probe.moment {
            Moment::Entry => (Some(index), None),
            Moment::Return(_) => (None, Some(index)),
            Moment::Call(_) => (Some(index), Some(index + 1)),
        };
        let mut row = Row {
            probe: probe.to_string(),
            event: probe.event().to_owned(),
            begins: Vec::new(),
            ends: Vec::new(),
            uretprobes: 0,
            misses: found.misses,
            definitions: [at_entry, at_return],
        };
        let site = |definition, place: &dial9_bpf_probes::declared::Place| DeclaredSite {
            definition,
            file_offset: place.file_offset,
            pushed: place.pushed,
            semaphore: 0,
        };
        for at in &found.functions {
            if let Some(definition) = at_entry {
                row.begins.push(at.entry.class);
                self.begins
                    .push((at.candidate, site(definition, &at.entry)));
            }
            let Some(definition) = at_return else {
                continue;
            };
            if probe.moment.exit() == Some(Exit::Uretprobe) {
                row.uretprobes += 1;
                self.uretprobes
                    .push((at.candidate, site(definition, &at.begin)));
            } else {
                row.ends.extend(at.exits.iter().map(|place| place.class));
                let ends = at
                    .exits
                    .iter()
                    .map(|place| (at.candidate, site(definition, place)));
                self.ends.extend(ends);
            }
        }
        self.rows.push(row);
        Ok(())
    }

    /// The sites by file, ends before begins.
    fn places(&self, candidates: &[Candidate]) -> std::io::Result<Vec<Places>> {
        let mut places = Vec::new();
        let kinds = [
            (&self.ends, false),
            (&self.uretprobes, true),
            (&self.begins, false),
        ];
        for (sites, is_return) in kinds {
            for (number, candidate) in candidates.iter().enumerate() {
                let of = sites.iter().filter(|(of, _)| *of == number);
                let sites: Vec<DeclaredSite> = of.map(|(_, site)| *site).collect();
                if !sites.is_empty() {
                    places.push(Places {
                        file: candidate.file.try_clone()?,
                        name: candidate.name.clone(),
                        is_return,
                        sites,
                    });
                }
            }
        }
        Ok(places)
    }
}
