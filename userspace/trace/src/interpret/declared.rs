//! Hits of declared probes.
//!
//! In: what was read, and of calls the stack pointer at the function's begin. Out: an event
//! of the probe's own, of a call when it returns. Never: an event for a call of which one
//! side was not seen: it began before the attach, was open at the end, its frame was left
//! otherwise, or a gap hid it.

use dial9_bpf_abi::declared::{Declared, FLAG_UNPAIRED};

use super::Interpreter;
use super::lane::{Out, arrive};
use crate::declared::Moment;
use crate::event::{DeclaredHit, Event};
use crate::location::Locations;
use crate::payloads::Payload;
use crate::threads::{OpenCall, Thread};

impl Interpreter {
    /// Keeps what is behind a record until it is told.
    pub(crate) fn keep_payload(&mut self, ts_ns: u64, bytes: &[u8]) -> Payload {
        self.payloads.push(ts_ns, bytes)
    }

    /// Lets go of what is behind records of before a time.
    pub(crate) fn forget_payloads(&mut self, before_ns: u64) {
        self.payloads.forget(before_ns);
    }

    pub(super) fn declared(
        &mut self,
        record: &Declared,
        payload: Payload,
        out: &mut impl FnMut(&Event, &Locations),
    ) {
        let header = record.header;
        let (tid, ts_ns) = (header.tid, header.ts_ns);
        let Some((event, moment)) = self.locations.declarations().of(record.definition) else {
            self.stats.unknown_definitions += 1;
            return;
        };
        let bytes = self.payloads.get(payload);
        let thread = match moment {
            Moment::Begin => Some(self.threads.enter(tid)),
            Moment::Hit | Moment::End => self.threads.get(tid),
        };
        let mut nobody = Thread::default();
        let thread = thread.unwrap_or(&mut nobody);
        let mut arriving = Out::new(&mut self.stats, &self.locations, out);
        if !arrive(thread, ts_ns, &mut arriving) {
            return;
        }
        let duration_ns = match moment {
            Moment::Hit => {
                let (first, _) = self.locations.values_mut();
                first.set(record.present, &record.fields, bytes);
                None
            }
            Moment::Begin => {
                // The stack shows that these are over. Others at the same place are of other
                // probes of the same function.
                let is_over = |call: &OpenCall| {
                    let is_same = call.definition == record.definition;
                    call.sp < record.sp || call.sp == record.sp && is_same
                };
                let over = thread.calls.extract_if(.., |call| is_over(call));
                self.stats.unpaired_calls += over.count() as u64;
                if header.flags & FLAG_UNPAIRED != 0 {
                    self.stats.unpaired_calls += 1;
                    return;
                }
                let mut call = OpenCall {
                    sp: record.sp,
                    definition: record.definition,
                    start_ns: ts_ns,
                    values: thread.spare_values.pop().unwrap_or_default(),
                };
                call.values.set(record.present, &record.fields, bytes);
                thread.calls.push(call);
                return;
            }
            Moment::End => {
                while thread.calls.pop_if(|call| call.sp < record.sp).is_some() {
                    self.stats.unpaired_calls += 1;
                }
                let begin = record.definition.wrapping_sub(1);
                let is_it = |call: &OpenCall| call.sp == record.sp && call.definition == begin;
                let Some(at) = thread.calls.iter().rposition(is_it) else {
                    self.stats.unpaired_calls += 1;
                    return;
                };
                let call = thread.calls.remove(at);
                let (first, second) = self.locations.values_mut();
                thread
                    .spare_values
                    .push(std::mem::replace(first, call.values));
                second.set(record.present, &record.fields, bytes);
                Some(ts_ns - call.start_ns)
            }
        };
        let mut out = Out::new(&mut self.stats, &self.locations, out);
        out.event(&Event::Declared(DeclaredHit {
            ts_ns,
            event,
            duration_ns,
        }));
        self.threads.forget_if_idle(tid);
    }
}
