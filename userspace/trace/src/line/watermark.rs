//! Up to when every record has been read.
//!
//! In: the newest record of each ring, pass by pass. Out: a time below which
//! nothing more comes but late records. Never: a time that a pass has not
//! proved.

/// How far a pass over the rings came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Every record that was submitted before the pass has been read.
    All,
    /// There is more to read.
    Part,
    /// A record is reserved and not submitted yet: it, and those behind it, come
    /// in a later pass.
    Blocked,
}

/// What the passes over the rings have proved.
#[derive(Debug, Default)]
pub(super) struct Watermark {
    /// Newest record of each CPU in this pass, ns; 0 where there was none.
    newest_ns: Vec<u64>,
    /// When the last pass that emptied the rings began: everything older has
    /// been read.
    emptied_ns: u64,
}

impl Watermark {
    /// Begins a pass.
    pub(super) fn begin(&mut self) {
        self.newest_ns.fill(0);
    }

    /// A record of a CPU's ring.
    #[inline]
    pub(super) fn note(&mut self, cpu: u32, ts_ns: u64) {
        let index = cpu as usize;
        if self.newest_ns.len() <= index {
            self.newest_ns.resize(index + 1, 0);
        }
        let newest_ns = &mut self.newest_ns[index];
        *newest_ns = ts_ns.max(*newest_ns);
    }

    /// Ends a pass that began at `began_ns`.
    pub(super) fn end(&mut self, began_ns: u64, pass: Pass) -> u64 {
        match pass {
            Pass::All => std::mem::replace(&mut self.emptied_ns, began_ns),
            Pass::Blocked => self.emptied_ns,
            // The rings that were not emptied have been read up to their newest.
            Pass::Part => {
                let seen = self.newest_ns.iter().copied().filter(|ns| *ns > 0);
                seen.min().unwrap_or(self.emptied_ns)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_proves_what_the_one_before_emptied_or_what_every_ring_has_passed() {
        let mut watermark = Watermark::default();
        watermark.begin();
        assert_eq!(watermark.end(100, Pass::All), 0);
        watermark.begin();
        watermark.note(3, 140);
        watermark.note(3, 130);
        watermark.note(0, 160);
        assert_eq!(watermark.end(150, Pass::Part), 140);
        watermark.begin();
        assert_eq!(watermark.end(170, Pass::Part), 100);
        watermark.begin();
        watermark.note(3, 180);
        assert_eq!(watermark.end(190, Pass::Blocked), 100);
        assert_eq!(watermark.end(200, Pass::All), 100);
        assert_eq!(watermark.end(210, Pass::All), 200);
    }
}
