//! Copied stacks to samples, on the recording thread.
//!
//! In: the ring of stacks, and news of the target's code. Out: samples with their frames,
//! in the line. Never: a symbol lookup, a file, a lock; more than a few us a stack.

use dial9_bpf_attach::{Tracer, rings::Drained};
use dial9_bpf_trace::{
    decode::{CopiedStack, UserStack},
    line::Line,
    stacks::{Extent, MAX_FRAMES, Sampled},
};
use dial9_bpf_unwind::{Registers, Unwinder, Unwound};

use crate::code::Watch;

/// Unwinds a target's stacks.
#[derive(Debug)]
pub(crate) struct Profile {
    unwinder: Unwinder,
    watch: Watch,
    frames: Vec<u64>,
}

impl Profile {
    /// For a process.
    ///
    /// # Errors
    /// The system's, when it has no thread left.
    pub(crate) fn of(pid: u32) -> std::io::Result<Self> {
        let (modules, watch) = Watch::start(pid)?;
        Ok(Self {
            unwinder: Unwinder::of(modules),
            watch,
            frames: Vec::with_capacity(MAX_FRAMES),
        })
    }

    /// Takes what is in the ring of stacks.
    pub(crate) fn pass(&mut self, tracer: &mut Tracer, line: &mut Line) -> Drained {
        if let Some(modules) = self.watch.hear() {
            self.unwinder = Unwinder::of(modules);
        }
        tracer.drain_stacks(|bytes| match CopiedStack::decode(bytes) {
            Ok(stack) => {
                let sampled = self.unwind(&stack);
                line.stack(sampled, &self.frames);
            }
            Err(_) => line.undecoded_stack(),
        })
    }

    fn unwind(&mut self, stack: &CopiedStack<'_>) -> Sampled {
        self.frames.clear();
        self.frames.extend(stack.kernel());
        let extent = match stack.user {
            None => Extent::Kernel,
            Some(UserStack { ip, sp, bp, bytes }) => {
                let registers = Registers { ip, sp, bp };
                let limit = MAX_FRAMES - self.frames.len();
                let unwound = self
                    .unwinder
                    .unwind(registers, bytes, limit, &mut self.frames);
                match unwound {
                    Unwound::Complete => Extent::Complete,
                    Unwound::Truncated => Extent::Truncated,
                    Unwound::Failed => Extent::Failed,
                }
            }
        };
        Sampled {
            ts_ns: stack.ts_ns,
            tid: stack.tid,
            name: stack.name,
            moment: stack.moment,
            cpu: stack.cpu,
            extent,
        }
    }
}
