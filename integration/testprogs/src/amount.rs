//! How much work a program does.
//!
//! In: a share of the usual amount. Out: numbers. Never: none of something.

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Of the usual amount.
    pub percent: u64,
}

impl Amount {
    /// So much of what is `number` usually.
    pub fn of(self, number: u64) -> u64 {
        (number * self.percent / 100).max(1)
    }
}
