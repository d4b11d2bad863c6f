//! An object: a file of the target with a Tokio of its own in it, be it the
//! executable, a plugin or an extension of an interpreter.
//!
//! In: the file and its plan. Out: where its sites are for the kernel, and where it
//! is in the target's memory. Never: another file at the same path.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use dial9_bpf_probes::plan::{Binary, Plan, Site};

use crate::{AttachError, FileParts, Target, mapped::Mapped};

/// A file of the target that has a Tokio.
#[derive(Debug)]
pub struct Object {
    number: u8,
    path: PathBuf,
    load_bias: u64,
    plan: Plan,
    file: File,
    unwinder: Option<File>,
    is_executable: bool,
}

/// Why a file with a Tokio cannot be an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// It is mapped twice.
    #[error(transparent)]
    LoadedTwice(#[from] crate::mapped::LoadedTwice),
    /// It is not mapped any more.
    #[error("its code is not mapped")]
    NotMapped,
}

impl Object {
    /// The target's executable, as object 0.
    ///
    /// # Errors
    /// [`AttachError::NoProcess`] when the process is gone, [`AttachError::Proc`]
    /// when its mappings cannot be read or do not have the code.
    pub fn of_executable(target: &Target, plan: Plan) -> Result<Self, AttachError> {
        let failed = |source| AttachError::Proc {
            path: target.path().display().to_string(),
            source,
        };
        let load_bias = match first_site(&plan) {
            Some(site) => target
                .code_address(site.file_offset)?
                .wrapping_sub(site.address),
            None => 0,
        };
        Ok(Self {
            number: 0,
            path: target.path().clone(),
            load_bias,
            plan,
            file: target.executable().try_clone().map_err(failed)?,
            unwinder: target.unwinder(),
            is_executable: true,
        })
    }

    /// A file that the target has mapped, as object 0 for the time being.
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn of_mapped(
        target: &Target,
        mapped: &Mapped,
        file: File,
        plan: Plan,
    ) -> Result<Self, ObjectError> {
        let site = first_site(&plan).ok_or(ObjectError::NotMapped)?;
        let address = mapped.address_of(site.file_offset)?;
        let address = address.ok_or(ObjectError::NotMapped)?;
        Ok(Self {
            number: 0,
            path: mapped.path().to_owned(),
            load_bias: address.wrapping_sub(site.address),
            plan,
            file,
            unwinder: target.unwinder(),
            is_executable: false,
        })
    }

    /// The same with another number: what its records are told by.
    #[must_use]
    pub fn numbered(mut self, number: u8) -> Self {
        self.number = number;
        self.plan = self.plan.numbered(number);
        self
    }

    /// Its number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The path that it has or had, as the process sees it; for messages only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Run-time address of the file's link-time address 0.
    pub fn load_bias(&self) -> u64 {
        self.load_bias
    }

    /// Its sites and task types.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether it is the target's executable.
    pub fn is_executable(&self) -> bool {
        self.is_executable
    }

    /// A path that leads to the very file with these sites; valid while `self` lives.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when the target has no such file.
    pub(crate) fn link_to(&self, binary: Binary) -> io::Result<String> {
        let file = match (binary, &self.unwinder) {
            (Binary::Scanned, _) => &self.file,
            (Binary::Unwinder, Some(file)) => file,
            (Binary::Unwinder, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }
}

/// What a scan reads of a file that the target has mapped.
///
/// # Errors
/// When it cannot be read or is over 16 GiB.
pub fn read(file: &File) -> io::Result<FileParts> {
    FileParts::read(file)
}

fn first_site(plan: &Plan) -> Option<&Site> {
    plan.sites
        .iter()
        .find(|site| site.binary == Binary::Scanned)
}
