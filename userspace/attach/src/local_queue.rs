//! Where the kernel side reads the depth of a worker's own queue.
//!
//! In: where a core has the address of its queue. Out: the word that says so. Never: a
//! judgement of what is read there, which is for who has found the queues.

use aya::maps::{Array, MapData};

use crate::{AttachError, Tracer, tracer::map_unreadable};

/// Where the depth of a worker's queue is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueReads {
    /// At parks and at their ends.
    AtParks,
    /// At each poll as well.
    AtPolls,
}

impl Tracer {
    /// From now on parks read the depth of the worker's queue, whose address is so many
    /// bytes behind the begin of the worker's core; a likely one is what a predecessor has
    /// told, if it has.
    ///
    /// # Errors
    /// [`AttachError::Kernel`] when the word cannot be read or written.
    pub fn read_queues(&mut self, offset: u64, is_likely: bool) -> Result<(), AttachError> {
        let mut run_queue: Array<&mut MapData, u64> = self
            .maps
            .get_mut("RUN_QUEUE")?
            .try_into()
            .map_err(|error| map_unreadable(&error))?;
        let told = run_queue
            .get(&0, 0)
            .map_err(|error| map_unreadable(&error))?;
        if is_likely && told != 0 {
            return Ok(());
        }
        run_queue
            .set(0, offset, 0)
            .map_err(|error| map_unreadable(&error))
    }
}
