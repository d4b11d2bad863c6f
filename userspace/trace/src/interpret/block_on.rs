//! Calls of `block_on`.
//!
//! In: a thread's entries into runtimes and its leaves, with the stack pointer of the
//! function that does both. Out: one event for each pair. Never: an event for a call of
//! which one side was not seen: it began before the attach, was open at the end, or a
//! gap hid it.

use dial9_bpf_abi::record::BlockOn;

use super::Interpreter;
use super::lane::{Out, arrive};
use crate::event::Event;
use crate::location::Locations;
use crate::threads::OpenBlockOn;

impl Interpreter {
    pub(super) fn block_on(&mut self, begin: &BlockOn, out: &mut impl FnMut(&Event, &Locations)) {
        let BlockOn { header, sp } = *begin;
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let thread = self.threads.enter(header.tid);
        if !arrive(thread, header.ts_ns, out) {
            return;
        }
        // The stack shows that these are over.
        while thread.blocked.pop_if(|open| open.sp <= sp).is_some() {
            out.stats.unpaired_block_ons += 1;
        }
        thread.blocked.push(OpenBlockOn {
            sp,
            start_ns: header.ts_ns,
        });
    }

    pub(super) fn block_on_end(&mut self, end: &BlockOn, out: &mut impl FnMut(&Event, &Locations)) {
        let BlockOn { header, sp } = *end;
        let (tid, ts_ns) = (header.tid, header.ts_ns);
        let out = &mut Out::new(&mut self.stats, &self.locations, out);
        let Some(thread) = self.threads.get(tid) else {
            out.stats.unpaired_block_ons += 1;
            return;
        };
        if !arrive(thread, ts_ns, out) {
            return;
        }
        while thread.blocked.pop_if(|open| open.sp < sp).is_some() {
            out.stats.unpaired_block_ons += 1;
        }
        match thread.blocked.pop_if(|open| open.sp == sp) {
            Some(open) => out.event(&Event::BlockOn {
                ts_ns,
                duration_ns: ts_ns - open.start_ns,
                tid,
            }),
            None => out.stats.unpaired_block_ons += 1,
        }
        self.threads.forget_if_idle(tid);
    }
}
