//! The code that the target has mapped, for unwinding.
//!
//! In: what is mapped, looked at on a thread of its own. Out: its unwind tables, all of
//! them, whenever they have changed. Never: more than [`MAX_BYTES`] of them; a look at the
//! mappings while no code came or went, as `looks` says.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
};

use dial9_bpf_attach::{
    Mapped,
    mapped::{self, FileKey},
};
use dial9_bpf_unwind::{Mapping, Module};

use crate::looks::{LOOK, Looking, Looks};

/// Most bytes of unwind tables.
const MAX_BYTES: u64 = 256 << 20;

/// Where the recording thread hears of it.
#[derive(Debug)]
pub(crate) struct Watch {
    news: Receiver<Vec<Arc<Module>>>,
    /// Ends with this.
    _looking: Looking,
}

impl Watch {
    /// What is mapped now, and a watch for what comes.
    ///
    /// # Errors
    /// The system's, when it has no thread left.
    pub(crate) fn start(pid: u32) -> io::Result<(Vec<Arc<Module>>, Self)> {
        let looks = Looks::begin(pid);
        let mut code = Code::of(pid);
        let modules = code.look().unwrap_or_default();
        let (tell, news) = mpsc::channel();
        let look = move || code.look().is_none_or(|modules| tell.send(modules).is_ok());
        let watch = Self {
            news,
            _looking: Looking::start("dial9-code", looks, LOOK, look)?,
        };
        Ok((modules, watch))
    }

    /// All that is mapped, if that has changed.
    pub(crate) fn hear(&self) -> Option<Vec<Arc<Module>>> {
        self.news.try_iter().last()
    }
}

/// A file, and where its first code is.
type Place = (FileKey, u64);

/// What is known of the target's code.
struct Code {
    pid: u32,
    /// Files that have tables, and those that have not.
    known: HashMap<Place, Vec<Arc<Module>>>,
    vdso: Vec<Arc<Module>>,
}

impl Code {
    fn of(pid: u32) -> Self {
        Self {
            pid,
            known: HashMap::new(),
            vdso: vdso(pid),
        }
    }

    /// All modules, if they have changed.
    fn look(&mut self) -> Option<Vec<Arc<Module>>> {
        // Of a process that is gone the recording thread hears by itself.
        let files = Mapped::all(self.pid).ok()?;
        let place = |file: &Mapped| (file.key().clone(), file.start());
        let before = self.known.len();
        self.known
            .retain(|known, _| files.iter().any(|file| place(file) == *known));
        let mut has_changed = self.known.len() != before;
        for file in &files {
            if !self.known.contains_key(&place(file)) {
                has_changed = true;
                let modules = self.read(file);
                self.known.insert(place(file), modules);
            }
        }
        has_changed.then(|| self.modules().cloned().collect())
    }

    fn modules(&self) -> impl Iterator<Item = &Arc<Module>> {
        self.known.values().flatten().chain(&self.vdso)
    }

    /// The tables of a file; none where it has none, or there is no room.
    fn read(&self, file: &Mapped) -> Vec<Arc<Module>> {
        let mapping = |(addresses, offset)| Mapping { addresses, offset };
        let mappings: Vec<Mapping> = file.code().map(mapping).collect();
        let Ok(opened) = file.open() else {
            return Vec::new();
        };
        let modules = Module::of_file(&opened, &mappings).unwrap_or_default();
        let taken: u64 = self.modules().map(|module| module.bytes()).sum();
        let wanted: u64 = modules.iter().map(Module::bytes).sum();
        if taken + wanted > MAX_BYTES {
            return Vec::new();
        }
        modules.into_iter().map(Arc::new).collect()
    }
}

fn vdso(pid: u32) -> Vec<Arc<Module>> {
    let Some((start, image)) = mapped::vdso(pid) else {
        return Vec::new();
    };
    let mapping = Mapping {
        addresses: start..start + image.len() as u64,
        offset: 0,
    };
    let modules = Module::of_bytes(&image, &[mapping]).unwrap_or_default();
    modules.into_iter().map(Arc::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_code_has_tables_and_is_told_once() {
        let mut code = Code::of(std::process::id());
        assert_eq!(code.vdso.len(), 1);
        let modules = code.look().expect("all is new");
        let own = Code::look as *const () as u64;
        let is_own = |module: &Arc<Module>| module.code().contains(&own);
        assert_eq!(modules.iter().filter(|module| is_own(module)).count(), 1);
        assert!(modules.iter().all(|module| module.bytes() > 0));
        assert!(code.look().is_none());
    }
}
