//! Bytes of records that are of no fixed length, from their ring to their event.
//!
//! In: bytes with the time of their record, in the order in which they come. Out: the same
//! by a handle, until everything of their time has been told. Never: an allocation once the
//! buffer has grown.

use std::collections::VecDeque;

/// Where a record's bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Bytes that came before, since the start.
    at: u64,
    bytes: u16,
}

/// Bytes that wait.
#[derive(Debug, Default)]
pub(crate) struct Payloads {
    bytes: Vec<u8>,
    /// Those that have gone from the front.
    gone: u64,
    /// Time and end of each that is there.
    ends: VecDeque<(u64, u64)>,
}

impl Payloads {
    /// Keeps bytes, at most 2^16 less one of them.
    pub(crate) fn push(&mut self, ts_ns: u64, bytes: &[u8]) -> Payload {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let at = self.gone + self.bytes.len() as u64;
        self.bytes.extend_from_slice(&bytes[..length.into()]);
        self.ends.push_back((ts_ns, at + u64::from(length)));
        Payload { at, bytes: length }
    }

    /// The bytes; none of what has gone.
    pub(crate) fn get(&self, payload: Payload) -> &[u8] {
        let start = payload.at.checked_sub(self.gone);
        let start = start.and_then(|start| usize::try_from(start).ok());
        let rest = start.and_then(|start| self.bytes.get(start..));
        rest.and_then(|rest| rest.get(..payload.bytes.into()))
            .unwrap_or_default()
    }

    /// Everything of before a time has been told: lets go of it, as far as nothing newer
    /// came before it.
    pub(crate) fn forget(&mut self, before_ns: u64) {
        let mut end = self.gone;
        while let Some((_, of)) = self.ends.pop_front_if(|(ts_ns, _)| *ts_ns < before_ns) {
            end = of;
        }
        let dead = usize::try_from(end - self.gone).unwrap_or(usize::MAX);
        // Moving what is left must not cost more than what has gone.
        if dead * 2 >= self.bytes.len() {
            self.bytes.drain(..dead.min(self.bytes.len()));
            self.gone = end;
        } else if dead > 0 {
            // It goes the next time.
            self.ends.push_front((0, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_until_their_time_is_over() {
        let mut payloads = Payloads::default();
        let first = payloads.push(10, b"one");
        let second = payloads.push(30, b"second");
        let third = payloads.push(20, b"");
        payloads.forget(15);
        assert_eq!(payloads.get(second), b"second");
        assert_eq!(payloads.get(third), b"");
        payloads.forget(40);
        assert_eq!(payloads.get(first), b"");
        assert_eq!(payloads.get(second), b"");
        let again = payloads.push(50, b"again");
        assert_eq!(payloads.get(again), b"again");
        assert_eq!(payloads.bytes.len(), 5);
    }

    #[test]
    fn a_buffer_stays_small_however_many_come() {
        let mut payloads = Payloads::default();
        for ts_ns in 0..10_000 {
            let payload = payloads.push(ts_ns, &[7; 100]);
            assert_eq!(payloads.get(payload), [7; 100]);
            payloads.forget(ts_ns.saturating_sub(10));
        }
        assert!(payloads.bytes.len() < 10_000, "{}", payloads.bytes.len());
    }
}
