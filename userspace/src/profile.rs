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
    /// How many of them are the kernel's.
    kernel: usize,
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
            kernel: 0,
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
        self.kernel = self.frames.len();
        let extent = match &stack.user {
            None => Extent::Kernel,
            Some(user) => self.follow(user),
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

    /// Appends the frames of a user stack. A thread in a breakpoint's trap is at the
    /// breakpoint, whose rule may differ from that of the address behind it.
    fn follow(&mut self, user: &UserStack<'_>) -> Extent {
        let extent = self.append(user, user.ip);
        if extent != Extent::Failed || !user.is_behind_breakpoint {
            return extent;
        }
        let failed = self.frames.len();
        let again = self.append(user, user.ip.wrapping_sub(1));
        if again == Extent::Failed {
            self.frames.truncate(failed);
            return extent;
        }
        self.frames.drain(self.kernel..failed);
        again
    }

    fn append(&mut self, user: &UserStack<'_>, ip: u64) -> Extent {
        let UserStack { sp, bp, bytes, .. } = *user;
        let limit = MAX_FRAMES.saturating_sub(self.frames.len());
        let registers = Registers { ip, sp, bp };
        match (self.unwinder).unwind(registers, bytes, limit, &mut self.frames) {
            Unwound::Complete => Extent::Complete,
            Unwound::Truncated => Extent::Truncated,
            Unwound::Failed => Extent::Failed,
        }
    }
}
