//! Which files of the target are traced: each that has a Tokio of its own in it, be it
//! the executable, a plugin or an extension of an interpreter.
//!
//! In: a target. Out: its objects, numbered in the order in which they were found, and
//! what cannot be traced although it has a Tokio, and why. Never: a file scanned twice
//! while it stays mapped.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use dial9_bpf_attach::{
    AttachError, DebugFile, FileParts, Mapped, Object, Target,
    mapped::FileKey,
    object::{self, ObjectError},
};
use dial9_bpf_probes::{
    ScanError, add_unwinder, build_id_of,
    plan::{Binary, Plan, Probe},
    shares_tokio,
};

use crate::stderr;

/// Objects that have a number.
const MOST: usize = 1 << u8::BITS;

/// A Tokio of which no poll can be seen: a trace of it would be empty.
#[derive(Debug, thiserror::Error)]
#[error("no site for polls: {reason}; its symbols may tell")]
pub(crate) struct NoPolls {
    /// What was looked for and not found.
    reason: String,
}

/// An object of which the Tokio is in several files: they count tasks together, so that
/// ids by file would be wrong.
#[derive(Debug, thiserror::Error)]
#[error("it shares its Tokio with another file")]
struct SharedTokio;

/// What is traced of a target.
#[derive(Debug)]
pub(crate) struct Objects {
    /// By number; at least one.
    pub(crate) traced: Vec<Object>,
    /// What cannot be traced.
    pub(crate) unusable: Vec<Unusable>,
    /// The executable's GNU build id.
    pub(crate) build_id: Option<String>,
    /// The file with the executable's symbols, where they were taken out of it.
    pub(crate) debug_file: Option<File>,
}

impl Objects {
    /// Version of the executable's Tokio.
    pub(crate) fn tokio_version(&self) -> Option<&str> {
        let executable = self.traced.iter().find(|object| object.is_executable());
        executable.and_then(|object| object.plan().tokio_version.as_deref())
    }
}

/// A file that has, or may have, a Tokio and cannot be traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unusable {
    /// Its path as the target sees it.
    pub(crate) path: String,
    /// Why.
    pub(crate) reason: String,
}

/// What has changed since the last look.
#[derive(Debug)]
pub(crate) enum Change {
    /// An object is not mapped any more.
    Gone(u8),
    /// There is one more.
    Come(Box<Object>),
    /// There is a file that cannot be traced.
    Unusable(Unusable),
}

/// Looks at a target's files, each once.
#[derive(Debug)]
pub(crate) struct Scanner {
    no_single_step: bool,
    /// The file with the executable's symbols, where it was named.
    debug_file: Option<PathBuf>,
    /// Whether panics' messages are seen in the library that unwinds: once is enough.
    has_messages: bool,
    /// Whether the executable's Tokio is in a library, in part.
    executable_shares: bool,
    next: usize,
    /// The first objects that are not let go of when they are gone, since their links
    /// are not ours alone.
    kept: usize,
    /// Files that were on their way at the last look.
    pending: usize,
    /// Files looked at, where they are, and their objects' numbers.
    seen: HashMap<FileKey, (u64, Option<u8>)>,
}

impl Scanner {
    /// One that has looked at nothing.
    pub(crate) fn new(no_single_step: bool, debug_file: Option<PathBuf>) -> Self {
        Self {
            no_single_step,
            debug_file,
            has_messages: false,
            executable_shares: false,
            next: 0,
            kept: 0,
            pending: 0,
            seen: HashMap::new(),
        }
    }

    /// Everything that the target has mapped; the executable alone, without a site, where
    /// nothing of Tokio is wanted.
    ///
    /// # Errors
    /// When there is nothing to trace in it, or it cannot be looked at.
    pub(crate) fn all(&mut self, target: &Target, wants_tokio: bool) -> anyhow::Result<Objects> {
        let executable = target.read_executable()?;
        let build_id = build_id_of(&executable);
        if !wants_tokio {
            let plan = dial9_bpf_probes::scan(&executable).map(Plan::without_sites);
            return Ok(Objects {
                traced: vec![Object::of_executable(target, plan.unwrap_or_default())?],
                unusable: Vec::new(),
                build_id,
                debug_file: None,
            });
        }
        let debug_file = match &self.debug_file {
            Some(path) => Some(DebugFile::at(path, &executable)?),
            None => DebugFile::find(target, &executable),
        };
        let own = self.plan_of(target, &executable, debug_file.as_ref());
        self.executable_shares = own.is_ok() && shares_tokio(&executable);
        drop(executable);
        let mut objects = Objects {
            traced: Vec::new(),
            unusable: Vec::new(),
            build_id,
            debug_file: debug_file.as_ref().and_then(|found| found.file().ok()),
        };
        let failure = match own {
            Ok(plan) => {
                objects.traced.push(Object::of_executable(target, plan)?);
                self.next = 1;
                None
            }
            Err(error) => Some(error),
        };
        for change in self.changes(target)? {
            match change {
                Change::Come(object) => objects.traced.push(*object),
                Change::Unusable(unusable) => objects.unusable.push(unusable),
                Change::Gone(_) => {}
            }
        }
        match failure {
            Some(error) if objects.traced.is_empty() => {
                let unusable = objects.unusable.iter();
                let others = unusable.map(|of| format!("{}: {}", of.path, of.reason));
                let others: Vec<String> = others.collect();
                let error = match others.as_slice() {
                    [] => error,
                    _ => error.context(others.join("; ")),
                };
                Err(error.context(format!("nothing to trace in process {}", target.pid())))
            }
            Some(error) if !is_without_tokio(&error) => {
                objects.unusable.push(Unusable {
                    path: target.path().display().to_string(),
                    reason: format!("{error:#}"),
                });
                Ok(objects)
            }
            _ => Ok(objects),
        }
    }

    /// From now on the objects so far are never gone: loaded again, they are what they
    /// were.
    pub(crate) fn keep(&mut self) {
        self.kept = self.next;
    }

    /// Whether a file was on its way in or out at the last look.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// What has changed since this was last asked.
    ///
    /// # Errors
    /// [`AttachError`] when the process is gone or may not be looked at.
    pub(crate) fn changes(&mut self, target: &Target) -> Result<Vec<Change>, AttachError> {
        let files = Mapped::all(target.pid())?;
        let mut changes = Vec::new();
        self.pending = 0;
        let kept = self.kept;
        self.seen.retain(|key, (start, number)| {
            let is_there = |file: &Mapped| file.key() == key && file.start() == *start;
            let is_kept = number.is_some_and(|number| usize::from(number) < kept);
            let stays = is_kept || files.iter().any(is_there);
            if let (false, Some(number)) = (stays, *number) {
                changes.push(Change::Gone(number));
            }
            stays
        });
        for file in &files {
            if !self.seen.contains_key(file.key()) {
                changes.extend(self.look_at(target, file));
            }
        }
        Ok(changes)
    }

    fn look_at(&mut self, target: &Target, mapped: &Mapped) -> Option<Change> {
        let number = u8::try_from(self.next);
        let found = match self.object(target, mapped) {
            Ok(_) if number.is_err() => Err(format!("there are {MOST} others before it")),
            Ok(None) => Ok(None),
            Ok(Some(object)) => Ok(Some(object)),
            // It is on its way in or out: the next look tells.
            Err(error) if is_unmapped(&error) => {
                self.pending += 1;
                return None;
            }
            Err(error) => Err(format!("{error:#}")),
        };
        let start = mapped.start();
        let mut note = |number| self.seen.insert(mapped.key().clone(), (start, number));
        match (found, number) {
            (Ok(Some(object)), Ok(number)) => {
                note(Some(number));
                self.next += 1;
                Some(Change::Come(Box::new(object.numbered(number))))
            }
            (Err(reason), _) => {
                note(None);
                Some(Change::Unusable(Unusable {
                    path: mapped.path().display().to_string(),
                    reason,
                }))
            }
            _ => {
                note(None);
                None
            }
        }
    }

    /// The object that a file is; `None` for the executable, and for what has no Tokio.
    fn object(&mut self, target: &Target, mapped: &Mapped) -> anyhow::Result<Option<Object>> {
        if target.is_executable(mapped) {
            return Ok(None);
        }
        let file = mapped.open().context("it cannot be opened")?;
        let parts = read(&file).context("it cannot be read")?;
        let had_messages = self.has_messages;
        let plan = match self.plan_of(target, &parts, None) {
            Ok(plan) => plan,
            Err(error) if is_without_tokio(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.executable_shares || shares_tokio(&parts) {
            return Err(SharedTokio.into());
        }
        let plan = match DebugFile::find(target, &parts) {
            Some(found) => {
                self.has_messages = had_messages;
                self.plan_of(target, &parts, Some(&found))?
            }
            None => plan,
        };
        drop(parts);
        Ok(Some(Object::of_mapped(target, mapped, file, plan)?))
    }

    fn plan_of(
        &mut self,
        target: &Target,
        parts: &FileParts,
        debug_file: Option<&DebugFile>,
    ) -> anyhow::Result<Plan> {
        if let Some(file) = debug_file {
            stderr::say(format_args!("debug file: {}", file.path().display()));
        }
        let mut plan = with_polls(dial9_bpf_attach::scan(parts, debug_file)?)?;
        if !self.has_messages {
            add_unwinder(&mut plan, target.read_unwinder().as_deref());
        }
        if self.no_single_step {
            plan = plan.without_single_step();
        }
        let in_unwinder = |site: &_| matches!(site, Binary::Unwinder);
        self.has_messages |= plan.sites.iter().any(|site| in_unwinder(&site.binary));
        Ok(plan)
    }
}

fn read(file: &File) -> std::io::Result<FileParts> {
    object::read(file)
}

fn is_without_tokio(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(
            ScanError::NotTokio { .. }
                | ScanError::NotElf { .. }
                | ScanError::UnsupportedClass { .. }
                | ScanError::UnsupportedArchitecture { .. }
        )
    )
}

fn is_unmapped(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ObjectError::NotMapped))
}

fn with_polls(plan: Plan) -> Result<Plan, NoPolls> {
    if plan.sites.iter().any(|site| site.probe == Probe::PollStart) {
        return Ok(plan);
    }
    let miss = plan
        .misses
        .into_iter()
        .find(|of| of.probe == Probe::PollStart);
    Err(NoPolls {
        reason: miss.map_or_else(String::new, |miss| miss.reason),
    })
}

/// The name by which an object's task types are told from the executable's.
pub(crate) fn file_name(object: &Object) -> Option<String> {
    if object.is_executable() {
        return None;
    }
    let name = object.path().file_name().map(Path::new);
    name.map(|name| name.display().to_string())
}
