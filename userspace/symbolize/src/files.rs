//! The files that a target has, or had, code of.
//!
//! In: open files; what a segment says of its mappings. Out: the file of a mapping. Never:
//! another file than the one that was mapped.

use std::{
    fs::{File, Metadata, OpenOptions},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    sync::Arc,
};

use dial9_bpf_trace::mapping::Mapping;
use rustix::fs::{OFlags, major, minor};

use crate::elf::Layout;

/// A file with code, kept open: it may be gone by the time at which names are wanted.
#[derive(Debug)]
pub struct CodeFile {
    file: File,
    layout: Layout,
    /// The file with its symbols and debug information, where they were taken out of it.
    debug_file: Option<File>,
    key: String,
}

/// A mapping and its file.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The mapping.
    pub mapping: Mapping,
    /// Its file; `None` where it could not be opened.
    pub file: Option<Arc<CodeFile>>,
}

impl CodeFile {
    /// A program or a library; `None` for what is neither.
    pub fn new(file: File) -> Option<Self> {
        let layout = Layout::read(&file)?;
        let id = file.metadata().ok()?;
        let key = match &layout.build_id {
            Some(build_id) => build_id.clone(),
            None => format!("{} {}", device(&id), id.ino()),
        };
        Some(Self {
            file,
            layout,
            debug_file: None,
            key,
        })
    }

    /// The same with the file that has its symbols, if that is its own by the build id
    /// or `is_sure`.
    #[must_use]
    pub fn with_debug_file(mut self, debug_file: File, is_sure: bool) -> Self {
        let is_same = || {
            let build_id = Layout::read(&debug_file).and_then(|layout| layout.build_id);
            build_id.is_some() && build_id == self.layout.build_id
        };
        if is_sure || is_same() {
            self.debug_file = Some(debug_file);
        }
        self
    }

    /// Its GNU build id, lower-case hex.
    pub fn build_id(&self) -> Option<&str> {
        self.layout.build_id.as_deref()
    }

    /// Its code: offset in the file and length, bytes.
    pub fn code(&self) -> impl Iterator<Item = (u64, u64)> {
        self.layout.code()
    }

    /// What tells it from others: the build id, else device and inode.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The file to look for names in; `None` when it was overwritten meanwhile.
    pub(crate) fn with_names(&self) -> Option<&File> {
        let is_same = Layout::read(&self.file).as_ref() == Some(&self.layout);
        is_same.then(|| self.debug_file.as_ref().unwrap_or(&self.file))
    }

    /// Address, as the file has it, of the code at an offset of it.
    pub(crate) fn address_of(&self, file_offset: u64) -> Option<u64> {
        self.layout.address_of(file_offset)
    }

    fn is_of(&self, mapping: &Mapping) -> bool {
        match (&self.layout.build_id, &mapping.build_id) {
            (Some(own), Some(mapped)) => own == mapped,
            (None, None) => self
                .file
                .metadata()
                .is_ok_and(|file| file.ino() == mapping.inode && device(&file) == mapping.device),
            _ => false,
        }
    }
}

impl Placed {
    /// The file of a mapping that a segment tells: one of those that are known, or else
    /// the one at its path, if that is still the same.
    pub(crate) fn find(mapping: Mapping, known: &[Self]) -> Self {
        let files = known.iter().filter_map(|known| known.file.as_ref());
        let file = files.into_iter().find(|file| file.is_of(&mapping)).cloned();
        let file = file.or_else(|| by_path(&mapping).map(Arc::new));
        Self { mapping, file }
    }
}

fn by_path(mapping: &Mapping) -> Option<CodeFile> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(&mapping.path)
        .ok()?;
    let is_file = file.metadata().is_ok_and(|file| file.is_file());
    let found = is_file.then(|| CodeFile::new(file))??;
    found.is_of(mapping).then_some(found)
}

/// A file's device as `/proc/PID/maps` writes it.
fn device(file: &Metadata) -> String {
    let device = file.dev();
    format!("{:02x}:{:02x}", major(device), minor(device))
}
