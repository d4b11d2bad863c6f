//! The record of a stack, from its bytes.
//!
//! In: the bytes of an entry of the ring of stacks. Out: what is in front, the frames of
//! the kernel, the bytes of the user stack. Never: a panic, a copy.

use dial9_bpf_abi::record::RecordKind;
use dial9_bpf_abi::stack::{FLAG_BREAKPOINT, FLAG_NO_USER, KERNEL_FRAMES, Stack};

use super::{DecodeError, halves, header};
use crate::stacks::{Moment, ThreadName};

/// A thread's stack as it was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedStack<'a> {
    /// When, `CLOCK_MONOTONIC` ns.
    pub ts_ns: u64,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub name: ThreadName,
    /// At what.
    pub moment: Moment,
    /// The CPU that it was on.
    pub cpu: u32,
    /// Return addresses in the kernel, leaf first; words in the machine's order.
    kernel: &'a [u8],
    /// Where it is in user code; `None` for a thread that runs none.
    pub user: Option<UserStack<'a>>,
}

/// Registers of user code, and what its stack pointer points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserStack<'a> {
    /// Instruction pointer.
    pub ip: u64,
    /// Whether a breakpoint is right before it.
    pub is_behind_breakpoint: bool,
    /// Stack pointer: address of the first byte.
    pub sp: u64,
    /// Frame pointer.
    pub bp: u64,
    /// The stack from there up.
    pub bytes: &'a [u8],
}

/// Bytes of [`Stack`].
const HEAD_BYTES: usize = size_of::<Stack>();

impl<'a> CopiedStack<'a> {
    /// Reads one entry of the ring of stacks.
    ///
    /// # Errors
    ///
    /// Every [`DecodeError`]; the bytes are untrusted.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let length = bytes.len();
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Err(DecodeError::NoHeader { bytes: length });
        };
        let (words, _) = head.as_chunks::<8>();
        let word = |index: usize| u64::from_ne_bytes(words[index]);
        let header = header(word(0), word(1));
        let moment = match header.kind {
            RecordKind::CPU_SAMPLE => Moment::OnCpu,
            RecordKind::OFF_CPU_STACK => Moment::SwitchOut,
            RecordKind(kind) => return Err(DecodeError::UnknownKind { kind }),
        };
        let mut name = [0; 16];
        name.copy_from_slice(&head[40..56]);
        let [cpu, frames] = halves(word(7));
        let [user_bytes, _] = halves(word(8));
        let frames = frames as usize;
        let kernel_bytes = frames.saturating_mul(8);
        let expected = kernel_bytes.saturating_add(user_bytes as usize);
        if frames > KERNEL_FRAMES || rest.len() != expected {
            let kind = header.kind.0;
            return Err(DecodeError::Length {
                kind,
                bytes: length,
            });
        }
        let (kernel, stack) = rest.split_at(kernel_bytes);
        let user = UserStack {
            ip: word(2),
            is_behind_breakpoint: header.flags & FLAG_BREAKPOINT != 0,
            sp: word(3),
            bp: word(4),
            bytes: stack,
        };
        Ok(Self {
            ts_ns: header.ts_ns,
            tid: header.tid,
            name: ThreadName(name),
            moment,
            cpu,
            kernel,
            user: (header.flags & FLAG_NO_USER == 0).then_some(user),
        })
    }

    /// Return addresses in the kernel, leaf first.
    pub fn kernel(&self) -> impl Iterator<Item = u64> + use<'a> {
        let (words, _) = self.kernel.as_chunks::<8>();
        words.iter().map(|word| u64::from_ne_bytes(*word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: RecordKind, kernel: &[u64], user: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&kind.0.to_ne_bytes());
        bytes.extend_from_slice(&0_u16.to_ne_bytes());
        bytes.extend_from_slice(&7_u32.to_ne_bytes());
        for word in [99_u64, 0x40_1000, 0x7ffe_0000, 0x7ffe_0010] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(b"tokio-rt-worker\0");
        bytes.extend_from_slice(&3_u32.to_ne_bytes());
        bytes.extend_from_slice(&u32::try_from(kernel.len()).unwrap().to_ne_bytes());
        bytes.extend_from_slice(&u32::try_from(user.len()).unwrap().to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for frame in kernel {
            bytes.extend_from_slice(&frame.to_ne_bytes());
        }
        bytes.extend_from_slice(user);
        bytes
    }

    #[test]
    fn a_stack_of_the_kernel_and_of_user_code() {
        let bytes = entry(RecordKind::CPU_SAMPLE, &[u64::MAX, 5], &[1, 2, 3]);
        let stack = CopiedStack::decode(&bytes).unwrap();
        assert_eq!((stack.ts_ns, stack.tid, stack.cpu), (99, 7, 3));
        assert_eq!(stack.name.as_str(), Some("tokio-rt-worker"));
        assert_eq!(stack.kernel().collect::<Vec<_>>(), [u64::MAX, 5]);
        let user = UserStack {
            ip: 0x40_1000,
            is_behind_breakpoint: false,
            sp: 0x7ffe_0000,
            bp: 0x7ffe_0010,
            bytes: &[1, 2, 3],
        };
        assert_eq!(stack.user, Some(user));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(0..=255_u8, 0..200)) {
            let _ = CopiedStack::decode(&bytes);
            let mut whole = entry(RecordKind::OFF_CPU_STACK, &[1], &[2; 40]);
            for (at, byte) in bytes.iter().enumerate().take(whole.len() - 16) {
                whole[16 + at] ^= byte;
            }
            let _ = CopiedStack::decode(&whole);
        }
    }

    #[test]
    fn flags_tell_of_what_is_before_the_instruction_and_of_no_user_code() {
        let mut bytes = entry(RecordKind::CPU_SAMPLE, &[], &[]);
        bytes[2..4].copy_from_slice(&FLAG_BREAKPOINT.to_ne_bytes());
        let user = CopiedStack::decode(&bytes).unwrap().user;
        assert!(user.unwrap().is_behind_breakpoint);
        bytes[2..4].copy_from_slice(&FLAG_NO_USER.to_ne_bytes());
        assert_eq!(CopiedStack::decode(&bytes).unwrap().user, None);
    }

    #[test]
    fn what_is_too_short_is_no_stack() {
        let bytes = entry(RecordKind::CPU_SAMPLE, &[1], &[2; 8]);
        for end in 0..bytes.len() {
            assert!(CopiedStack::decode(&bytes[..end]).is_err(), "{end}");
        }
        let other = entry(RecordKind::WAKE, &[], &[]);
        assert!(CopiedStack::decode(&other).is_err());
    }
}
