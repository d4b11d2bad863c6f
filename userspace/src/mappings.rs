//! Where the target has code, and the files of it.
//!
//! In: what the target has mapped, looked at on a thread of its own. Out: its mappings,
//! also those that are gone, each with its file open: it may be replaced or removed, and
//! the target may exit, before names are wanted. Never: a look at the mappings while no
//! code came or went, as `looks` says.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use dial9_bpf_attach::{
    Mapped, Target, by_build_id,
    mapped::{self, FileKey},
};
use dial9_bpf_symbolize::{CodeFile, Placed};
use dial9_bpf_trace::{clock::monotonic_ns, mapping::Mapping};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::looks::{Looking, Looks};

/// Time between the first two looks at how much code the target has: a program that has
/// just begun loads its libraries now. It doubles, as `looks` says.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// Files that are kept open, at most.
const MAX_FILES: usize = 512;
/// Mappings that are remembered, at most; of more, those go first that are gone.
const MAX_MAPPINGS: usize = 4096;

/// The watch, and what it has found.
#[derive(Debug)]
pub(crate) struct Mappings {
    known: Arc<Known>,
    told: u64,
    /// Ends with this.
    _looking: Looking,
}

/// What is known of where the target has code.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    placed: Vec<Placed>,
    /// Changes so far.
    changes: u64,
}

/// What looks.
#[derive(Debug)]
struct Watch {
    target: Arc<Target>,
    known: Arc<Known>,
    /// The file with the executable's symbols.
    debug_file: Option<File>,
    files: HashMap<FileKey, Option<Arc<CodeFile>>>,
    /// When it looked, `CLOCK_MONOTONIC` ns; 0 before the first time.
    looked_ns: u64,
}

impl Mappings {
    /// Looks now, and goes on looking.
    ///
    /// # Errors
    /// The system's, when it has no thread left.
    pub(crate) fn start(target: &Arc<Target>, debug_file: Option<File>) -> io::Result<Self> {
        let looks = Looks::begin(target.pid());
        let known = Arc::new(Known::default());
        let mut watch = Watch {
            target: Arc::clone(target),
            known: Arc::clone(&known),
            debug_file,
            files: HashMap::new(),
            looked_ns: 0,
        };
        watch.look();
        watch.add_vdso();
        let look = move || {
            watch.look();
            true
        };
        Ok(Self {
            known,
            told: 0,
            _looking: Looking::start("dial9-mappings", looks, FIRST_LOOK, look)?,
        })
    }

    /// What is known, for whoever wants names.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known)
    }

    /// All mappings, if there is something that was not told yet.
    pub(crate) fn news(&mut self) -> Option<Vec<Mapping>> {
        let state = self.known.lock();
        let is_new = std::mem::replace(&mut self.told, state.changes) != state.changes;
        is_new.then(|| {
            let placed = state.placed.iter();
            placed.map(|placed| placed.mapping.clone()).collect()
        })
    }
}

impl Known {
    /// Every mapping with its file.
    pub(crate) fn placed(&self) -> Vec<Placed> {
        self.lock().placed.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Takes note of what came and what is gone. Of a process that ends, what was known
    /// stays as it was.
    fn look(&mut self) {
        let now_ns = monotonic_ns();
        let since_ns = std::mem::replace(&mut self.looked_ns, now_ns);
        let files = Mapped::all(self.target.pid()).unwrap_or_default();
        if files.is_empty() || !self.target.is_same() {
            return;
        }
        let mut found = Vec::new();
        for file in &files {
            let code = self.file(file);
            let key = file.key();
            found.extend(file.code().map(|(at, offset)| {
                Placed {
                    mapping: Mapping {
                        start: at.start,
                        end: at.end,
                        offset,
                        device: key.device().to_owned(),
                        inode: key.inode(),
                        build_id: code
                            .as_ref()
                            .and_then(|code| code.build_id())
                            .map(Into::into),
                        since_ns,
                        until_ns: None,
                        path: file.path().display().to_string(),
                    },
                    file: code.clone(),
                }
            }));
        }
        self.known.lock().take(found, now_ns);
    }

    fn file(&mut self, mapped: &Mapped) -> Option<Arc<CodeFile>> {
        if let Some(known) = self.files.get(mapped.key()) {
            return known.clone();
        }
        if self.files.len() >= MAX_FILES {
            return None;
        }
        let file = mapped.open().ok().and_then(CodeFile::new);
        let file = file.map(|file| Arc::new(self.with_debug_file(file, mapped)));
        self.files.insert(mapped.key().clone(), file.clone());
        file
    }

    fn with_debug_file(&self, file: CodeFile, mapped: &Mapped) -> CodeFile {
        let own = self.debug_file.as_ref();
        let own = own.filter(|_| self.target.is_executable(mapped));
        if let Some(own) = own.and_then(|own| own.try_clone().ok()) {
            return file.with_debug_file(own, true);
        }
        let found = file.build_id().and_then(|id| by_build_id(&self.target, id));
        match found {
            Some(found) => file.with_debug_file(found, false),
            None => file,
        }
    }

    /// The code that the kernel maps into the target.
    fn add_vdso(&self) {
        let Some((start, image)) = mapped::vdso(self.target.pid()) else {
            return;
        };
        let Some(file) = in_memory(&image).and_then(CodeFile::new) else {
            return;
        };
        let mapping = Mapping {
            start,
            end: start + image.len() as u64,
            device: "00:00".to_owned(),
            build_id: file.build_id().map(Into::into),
            path: "[vdso]".to_owned(),
            ..Mapping::default()
        };
        let mut state = self.known.lock();
        state.changes += 1;
        state.placed.push(Placed {
            mapping,
            file: Some(Arc::new(file)),
        });
    }
}

fn in_memory(image: &[u8]) -> Option<File> {
    let file = memfd_create("dial9-vdso", MemfdFlags::CLOEXEC).ok()?;
    let mut file = File::from(file);
    file.write_all(image).ok()?;
    Some(file)
}

impl State {
    /// Takes note of all that is there at this time.
    fn take(&mut self, found: Vec<Placed>, now_ns: u64) {
        let place = |placed: &Placed| {
            let mapping = &placed.mapping;
            let file = (mapping.device.clone(), mapping.inode);
            (mapping.start, mapping.end, mapping.offset, file)
        };
        let mut found: HashMap<_, _> = found.into_iter().map(|new| (place(&new), new)).collect();
        let mut changes = 0;
        for known in &mut self.placed {
            // The kernel's own stays.
            let is_there = known.mapping.until_ns.is_none() && known.mapping.inode != 0;
            if is_there && found.remove(&place(known)).is_none() {
                known.mapping.until_ns = Some(now_ns);
                changes += 1;
            }
        }
        changes += found.len() as u64;
        let mut came: Vec<Placed> = found.into_values().collect();
        came.sort_by_key(|placed| placed.mapping.start);
        self.placed.extend(came);
        self.changes += changes;
        while self.placed.len() > MAX_MAPPINGS {
            let is_gone = |placed: &Placed| placed.mapping.until_ns.is_some();
            let first = self.placed.iter().position(is_gone);
            self.placed.remove(first.unwrap_or(self.placed.len() - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(start: u64, since_ns: u64) -> Placed {
        Placed {
            mapping: Mapping {
                start,
                end: start + 0x1000,
                inode: 7,
                since_ns,
                ..Mapping::default()
            },
            file: None,
        }
    }

    #[test]
    fn what_is_gone_is_remembered_with_its_time() {
        let mut state = State::default();
        state.take(vec![placed(0x1000, 0), placed(0x2000, 0)], 10);
        state.take(vec![placed(0x1000, 10), placed(0x3000, 10)], 20);
        let times = |placed: &Placed| {
            let mapping = &placed.mapping;
            (mapping.start, mapping.since_ns, mapping.until_ns)
        };
        let known: Vec<_> = state.placed.iter().map(times).collect();
        assert_eq!(
            known,
            [(0x1000, 0, None), (0x2000, 0, Some(20)), (0x3000, 10, None)]
        );
        assert_eq!(state.changes, 4);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut state = State::default();
        for round in 0..MAX_MAPPINGS as u64 + 50 {
            state.take(vec![placed(round << 12, round)], round + 1);
        }
        assert_eq!(state.placed.len(), MAX_MAPPINGS);
        let last = state.placed.last().expect("there are some");
        assert_eq!(last.mapping.until_ns, None);
    }

    #[test]
    fn our_own_code_is_found_with_its_files() {
        let target = Arc::new(Target::open(std::process::id()).expect("ours"));
        let mut mappings = Mappings::start(&target, None).expect("a thread");
        let told = mappings.news().expect("it is new");
        let own = std::env::current_exe().expect("we run");
        let own = own.display().to_string();
        let here = our_own_code_is_found_with_its_files as fn() as usize as u64;
        let of_here = told.iter().find(|mapping| mapping.has(here));
        assert_eq!(
            of_here.map(|mapping| mapping.path.as_str()),
            Some(own.as_str())
        );
        assert_eq!(mappings.news(), None);
        let placed = mappings.known().placed();
        let vdso = placed.iter().find(|placed| placed.mapping.path == "[vdso]");
        assert!(vdso.is_some_and(|vdso| vdso.file.is_some()));
        assert!(placed.iter().all(|placed| placed.file.is_some()));
    }
}
