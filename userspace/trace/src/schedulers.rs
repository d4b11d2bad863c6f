//! The schedulers that ends of tasks have told of.
//!
//! In: the number of a list of tasks and the address of its scheduler, at each end of a
//! task. Out: each pair once, as long as it is not forgotten. Never: a judgement of
//! what is there: a `LocalSet` has a number as well.

use std::collections::VecDeque;

/// Numbers that are remembered: a program may make a `LocalSet` for every request.
const MOST: usize = 64;

/// What has been seen, and what nobody has asked for yet.
#[derive(Debug, Default)]
pub(crate) struct Schedulers {
    seen: VecDeque<u64>,
    fresh: Vec<(u64, u64)>,
}

impl Schedulers {
    /// A task of the list `number` ended, whose scheduler is there; 0 where it is not
    /// known.
    #[inline]
    pub(crate) fn see(&mut self, number: u64, address: u64) {
        if number == 0 || address == 0 || self.seen.contains(&number) {
            return;
        }
        if self.seen.len() == MOST {
            self.seen.pop_front();
        }
        self.seen.push_back(number);
        if self.fresh.len() < MOST {
            self.fresh.push((number, address));
        }
    }

    /// Hands over what is new since this was last asked.
    pub(crate) fn take(&mut self, each: impl FnMut((u64, u64))) {
        self.fresh.drain(..).for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_until_it_is_forgotten() {
        let mut schedulers = Schedulers::default();
        let mut told = Vec::new();
        for (number, address) in [(1, 0x100), (2, 0x200), (1, 0x100), (0, 0x300), (3, 0)] {
            schedulers.see(number, address);
        }
        schedulers.take(|pair| told.push(pair));
        assert_eq!(told, [(1, 0x100), (2, 0x200)]);
        for number in 3..3 + MOST as u64 {
            schedulers.see(number, 1);
            schedulers.see(2, 0x200);
            schedulers.take(|(number, _)| told.push((number, 0)));
        }
        let again = told[2..].iter().filter(|&&(number, _)| number == 2);
        assert_eq!(
            again.count(),
            1,
            "forgotten once, at the 64th of the others"
        );
        assert!(schedulers.seen.len() <= MOST);
    }
}
