//! Stacks of threads on their way to an event.
//!
//! In: samples with their frames, nearly in order of time. Out: the same, in order.
//! Never: an allocation once the buffers have grown; a frame that was not given.

use std::collections::VecDeque;
use std::fmt;

use dial9_bpf_abi::record::RecordKind;

/// Most frames of a callchain.
pub const MAX_FRAMES: usize = 1 << 10;

/// At what a stack was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The profile's clock ticked while the thread ran.
    OnCpu,
    /// The thread left its CPU, to wait.
    SwitchOut,
}

impl Moment {
    /// Dial9's number for it.
    pub(crate) const fn source(self) -> u8 {
        match self {
            Self::OnCpu => 0,
            Self::SwitchOut => 1,
        }
    }

    /// The kind of its records.
    pub const fn kind(self) -> RecordKind {
        match self {
            Self::OnCpu => RecordKind::CPU_SAMPLE,
            Self::SwitchOut => RecordKind::OFF_CPU_STACK,
        }
    }
}

/// How much of a stack there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it, to the thread's first function.
    Complete,
    /// It goes on behind what was copied, or behind [`MAX_FRAMES`].
    Truncated,
    /// No rule is known by which it would go on.
    Failed,
    /// The thread runs no user code.
    Kernel,
}

/// The name of a thread, as the kernel has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadName(pub [u8; 16]);

impl ThreadName {
    /// The name; `None` where it is empty or no UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        let name = self.0.split(|byte| *byte == 0).next()?;
        let name = std::str::from_utf8(name).ok()?;
        (!name.is_empty()).then_some(name)
    }
}

/// A sampled thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSample {
    /// When.
    pub ts_ns: u64,
    /// The thread.
    pub tid: u32,
    /// Its name at that moment.
    pub name: ThreadName,
    /// At what.
    pub moment: Moment,
    /// The CPU that it was on.
    pub cpu: u32,
    /// The worker that it is.
    pub worker: Option<u32>,
}

/// A sampled thread whose stack is unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// When, `CLOCK_MONOTONIC` ns.
    pub ts_ns: u64,
    /// The thread.
    pub tid: u32,
    /// Its name at that moment.
    pub name: ThreadName,
    /// At what.
    pub moment: Moment,
    /// The CPU that it was on.
    pub cpu: u32,
    /// How much of the stack there is.
    pub extent: Extent,
}

/// Samples that wait for the records before them.
#[derive(Default)]
pub(crate) struct Waiting {
    /// In order of time.
    samples: VecDeque<(Sampled, Vec<u64>)>,
    /// Buffers to use again.
    spare: Vec<Vec<u64>>,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("samples", &self.samples.len())
            .finish_non_exhaustive()
    }
}

impl Waiting {
    /// Adds a sample behind those of its time.
    pub(crate) fn push(&mut self, sampled: Sampled, frames: &[u64]) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(&frames[..frames.len().min(MAX_FRAMES)]);
        let is_later = |(other, _): &(Sampled, Vec<u64>)| other.ts_ns > sampled.ts_ns;
        let later = self.samples.iter().rev().take_while(|at| is_later(at));
        let at = self.samples.len() - later.count();
        self.samples.insert(at, (sampled, buffer));
    }

    /// Takes out the first one, if it is of before a time; its frames take the place of
    /// those in `frames`.
    pub(crate) fn pop_before(&mut self, ts_ns: u64, frames: &mut Vec<u64>) -> Option<Sampled> {
        let is_before = |(sampled, _): &mut (Sampled, _)| sampled.ts_ns < ts_ns;
        let (sampled, taken) = self.samples.pop_front_if(is_before)?;
        self.spare.push(std::mem::replace(frames, taken));
        Some(sampled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(ts_ns: u64, tid: u32) -> Sampled {
        Sampled {
            ts_ns,
            tid,
            name: ThreadName::default(),
            moment: Moment::OnCpu,
            cpu: 0,
            extent: Extent::Complete,
        }
    }

    #[test]
    fn samples_come_out_by_time_with_their_own_frames() {
        let mut waiting = Waiting::default();
        for (ts_ns, tid) in [(10, 1), (30, 2), (20, 3), (20, 4), (5, 5)] {
            waiting.push(sampled(ts_ns, tid), &[u64::from(tid); 3]);
        }
        let mut frames = Vec::new();
        let mut out = Vec::new();
        while let Some(sampled) = waiting.pop_before(30, &mut frames) {
            assert_eq!(frames, [u64::from(sampled.tid); 3]);
            out.push(sampled.tid);
        }
        assert_eq!(out, [5, 1, 3, 4]);
        waiting.push(sampled(1, 6), &[7]);
        assert_eq!(waiting.pop_before(2, &mut frames), Some(sampled(1, 6)));
        assert_eq!(frames, [7]);
    }

    #[test]
    fn a_name_ends_at_its_first_zero() {
        let name = |text: &[u8]| {
            let mut bytes = [0; 16];
            bytes[..text.len()].copy_from_slice(text);
            ThreadName(bytes)
        };
        assert_eq!(name(b"tokio-rt\0junk").as_str(), Some("tokio-rt"));
        assert_eq!(name(b"exactly-16-bytes").as_str(), Some("exactly-16-bytes"));
        assert_eq!(name(b"").as_str(), None);
        assert_eq!(name(&[0xff]).as_str(), None);
    }
}
