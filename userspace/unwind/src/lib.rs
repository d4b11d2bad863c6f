//! From a copied stack to its frames.
//!
//! In: the unwind tables of the files that a process has mapped as code; registers and the
//! bytes behind the stack pointer. Out: frames, leaf first, and whether they are all. Never:
//! a frame that no table leads to: where there is none, the stack ends and says so; a look
//! at the process; a symbol.

mod module;

use std::sync::Arc;

use framehop::{
    Error, FrameAddress, MayAllocateDuringUnwind, Unwinder as _,
    x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64},
};

pub use module::{Mapping, Module, ModuleError};

use module::{Cover, Tables};

/// The registers that unwinding begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer, or whatever the code has in its register.
    pub bp: u64,
}

/// How far a stack was followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwound {
    /// To the function that has no caller: the process's or the thread's first.
    Complete,
    /// To where the bytes end, or the limit of frames.
    Truncated,
    /// To code that no table covers, or whose rule gives no address of code.
    Failed,
}

/// The code of one process.
pub struct Unwinder {
    /// By address.
    modules: Vec<Arc<Module>>,
    tables: UnwinderX86_64<Tables, MayAllocateDuringUnwind>,
    cache: CacheX86_64<MayAllocateDuringUnwind>,
}

impl std::fmt::Debug for Unwinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unwinder")
            .field("modules", &self.modules.len())
            .finish_non_exhaustive()
    }
}

impl Default for Unwinder {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl Unwinder {
    /// One that knows these modules.
    pub fn of(mut modules: Vec<Arc<Module>>) -> Self {
        modules.sort_unstable_by_key(|module| module.code().start);
        let mut tables = UnwinderX86_64::new();
        for module in &modules {
            tables.add_module(module.tables());
        }
        Self {
            modules,
            tables,
            cache: CacheX86_64::new(),
        }
    }

    /// Appends the frames of a stack of which there are `bytes` from the stack pointer up,
    /// leaf first, at most `limit`: the instruction pointer, then return addresses less 1,
    /// which are in the calls that they are of.
    pub fn unwind(
        &mut self,
        registers: Registers,
        bytes: &[u8],
        limit: usize,
        frames: &mut Vec<u64>,
    ) -> Unwound {
        let Registers { ip, sp, bp } = registers;
        let mut read = |address: u64| word(bytes, sp, address).ok_or(());
        let registers = UnwindRegsX86_64::new(ip, sp, bp);
        let modules = &self.modules;
        let mut unwinding = self
            .tables
            .iter_frames(ip, registers, &mut self.cache, &mut read);
        for _ in 0..limit {
            let frame = match unwinding.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Unwound::Complete,
                Err(Error::CouldNotReadStack(address)) if address >= sp => {
                    return Unwound::Truncated;
                }
                Err(_) => return Unwound::Failed,
            };
            let address = frame.address_for_lookup();
            let cover = cover(modules, address);
            let is_leaf = matches!(frame, FrameAddress::InstructionPointer(_));
            // The leaf is where the thread is; another address that is not code is none.
            if is_leaf || cover != Cover::NoCode {
                frames.push(address);
            }
            if cover != Cover::Table {
                // The library would go on by the frame pointer, which is a guess.
                return Unwound::Failed;
            }
        }
        Unwound::Truncated
    }
}

fn cover(modules: &[Arc<Module>], address: u64) -> Cover {
    let at = modules.partition_point(|module| module.code().start <= address);
    let module = at.checked_sub(1).and_then(|at| modules.get(at));
    module.map_or(Cover::NoCode, |module| module.cover(address))
}

/// The word at an address of the stack.
fn word(bytes: &[u8], sp: u64, address: u64) -> Option<u64> {
    let from = usize::try_from(address.checked_sub(sp)?).ok()?;
    let word = bytes.get(from..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests;
