//! The texts of panics.
//!
//! In: texts. Out: small ids for them, so that an event carries no text. Never:
//! more than `MAX_TEXTS` of them; an event is written when it is said, so only
//! what waits for its event has to be kept.

use std::collections::VecDeque;

/// Texts kept; the oldest give way.
pub(crate) const MAX_TEXTS: usize = 4096;
/// What a text reads as that has given way.
pub(crate) const NOT_KEPT: &str = "(not kept)";

/// A text of a panic: how many came before it, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextId(u32);

/// The last texts.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    kept: VecDeque<String>,
    first: u32,
}

impl Texts {
    /// Keeps a text.
    pub(crate) fn add(&mut self, text: &str) -> TextId {
        let mut buffer = String::new();
        if self.kept.len() == MAX_TEXTS
            && let Some(oldest) = self.kept.pop_front()
        {
            self.first = self.first.wrapping_add(1);
            buffer = oldest;
            buffer.clear();
        }
        buffer.push_str(text);
        self.kept.push_back(buffer);
        let newest = u32::try_from(self.kept.len() - 1).expect("they are few");
        TextId(self.first.wrapping_add(newest))
    }

    /// The text.
    pub(crate) fn get(&self, TextId(id): TextId) -> &str {
        let at = id.wrapping_sub(self.first) as usize;
        self.kept.get(at).map_or(NOT_KEPT, String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_are_kept() {
        let mut texts = Texts {
            first: u32::MAX - 1,
            ..Texts::default()
        };
        let ids: Vec<TextId> = (0..=MAX_TEXTS).map(|i| texts.add(&i.to_string())).collect();
        assert_eq!(texts.get(ids[0]), NOT_KEPT);
        for at in [1, 2, 3, MAX_TEXTS] {
            assert_eq!(texts.get(ids[at]), at.to_string());
        }
        assert_eq!(texts.kept.len(), MAX_TEXTS);
    }
}
