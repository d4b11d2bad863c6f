//! Task vtables, by their shape.
//!
//! In: the words of the data segments that point to code. Out: one
//! [`TaskVtable`] for each (future, scheduler) pair. Never: symbols; Tokio
//! before 1.24, whose vtables have no offsets (`runtime/task/raw.rs`).
//!
//! The shape, in every version from 1.24 to 1.54: seven code pointers (poll,
//! schedule, dealloc, `try_read_output`, `drop_join_handle_slow`,
//! `drop_abort_handle`, shutdown), then the offsets of trailer, scheduler and
//! task id from the header, which are plain words.

use dial9_bpf_abi::cookie::BY_VTABLE;

use crate::elf::Image;
use crate::error::ScanError;
use crate::plan::TaskVtable;

const WORD: u64 = 8;
const FUNCTIONS: usize = 7;
/// More task types than any real program has.
const MAX_VTABLES: usize = 1 << 16;

/// A task vtable and what the plan does not need of it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) vtable: TaskVtable,
    /// Address of the shutdown function.
    pub(crate) shutdown: u64,
    /// Addresses of all its functions, in their order.
    functions: [u64; FUNCTIONS],
}

impl Found {
    /// Addresses of its functions, each once.
    pub(crate) fn functions(&self) -> impl Iterator<Item = u64> {
        let functions = self.functions.iter().enumerate();
        let is_first =
            |(slot, function): &(usize, &u64)| !self.functions[..*slot].contains(function);
        functions.filter(is_first).map(|(_, &function)| function)
    }
}

/// All task vtables, sorted by address.
///
/// # Errors
///
/// `NotTokio` if there is none, `TooBig` if there are too many.
pub(crate) fn find(image: &Image<'_>) -> Result<Vec<Found>, ScanError> {
    let words = image.code_pointers();
    let found: Vec<_> = words
        .windows(FUNCTIONS)
        .filter(|run| run[FUNCTIONS - 1].0.wrapping_sub(run[0].0) == 6 * WORD)
        .filter(|run| run[0].0 % WORD == 0)
        .filter_map(|run| {
            let (id_offset, blocking) = task_layout(image, run[0].0)?;
            let (address, poll) = run[0];
            Some(Found {
                vtable: TaskVtable {
                    address,
                    poll,
                    id_offset,
                    blocking,
                    task_type: None,
                    spawned_at: Vec::new(),
                },
                shutdown: run[FUNCTIONS - 1].1,
                functions: std::array::from_fn(|slot| run[slot].1),
            })
        })
        .take(MAX_VTABLES + 1)
        .collect();
    match found.len() {
        0 => Err(ScanError::NotTokio {
            pointers: words.len(),
        }),
        count if count > MAX_VTABLES => {
            let (count, limit) = (count as u64, MAX_VTABLES as u64);
            Err(ScanError::TooBig {
                part: "task vtables",
                count,
                limit,
            })
        }
        _ => Ok(found),
    }
}

/// The one offset of the task id, bytes; [`BY_VTABLE`] where tasks differ, as with
/// futures of more than a word's alignment.
pub(crate) fn common_id_offset(mut offsets: impl Iterator<Item = u16>) -> u16 {
    let first = offsets.next();
    first
        .filter(|&first| offsets.all(|offset| offset == first))
        .unwrap_or(BY_VTABLE)
}

/// Offset of the task id, and whether the scheduler is the blocking pool's.
///
/// The id follows the scheduler. Schedulers of async tasks are one `Arc`;
/// `BlockingSchedule` has no size up to 1.37 and two words since
/// (`runtime/blocking/schedule.rs`).
fn task_layout(image: &Image<'_>, vtable: u64) -> Option<(u16, bool)> {
    let offset = |slot: u64| {
        let address = vtable.checked_add(slot * WORD)?;
        let value = image.word(address)?;
        let is_plain = image
            .code_pointers()
            .binary_search_by_key(&address, |word| word.0)
            .is_err();
        (is_plain && value % WORD == 0).then_some(value)
    };
    let (trailer, scheduler, id) = (offset(7)?, offset(8)?, offset(9)?);
    let fits = (24..=256).contains(&scheduler)
        && (scheduler..=scheduler + 128).contains(&id)
        && (id + WORD..1 << 24).contains(&trailer);
    fits.then(|| Some((u16::try_from(id).ok()?, id != scheduler + WORD)))?
}
