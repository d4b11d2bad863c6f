//! What has been asked before.
//!
//! In: answers. Out: the same. Never: more memory than the limit.

use std::{collections::HashMap, mem::size_of, sync::Arc};

use crate::{Answer, Function};

/// Memory for answers, bytes; beyond it they are forgotten, all at once.
pub(crate) const MAX_BYTES: usize = 16 << 20;
/// What an entry takes besides its answer, about, bytes.
const ENTRY_BYTES: usize = 64;

/// Answers by file and address.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    files: HashMap<String, HashMap<u64, Arc<Answer>>>,
    bytes: usize,
}

impl Cache {
    pub(crate) fn get(&self, file: &str, address: u64) -> Option<Arc<Answer>> {
        self.files.get(file)?.get(&address).cloned()
    }

    pub(crate) fn put(&mut self, file: &str, address: u64, answer: Arc<Answer>) {
        self.bytes += size_of_answer(&answer);
        if self.bytes > MAX_BYTES {
            self.files.clear();
            self.bytes = size_of_answer(&answer);
        }
        let file = match self.files.get_mut(file) {
            Some(file) => file,
            None => self.files.entry(file.to_owned()).or_default(),
        };
        file.insert(address, answer);
    }
}

fn size_of_answer(answer: &Answer) -> usize {
    let functions = answer.iter().flat_map(|functions| functions.iter());
    let of_function =
        |function: &Function| size_of::<Function>() + function.name.len() + function.file.len();
    ENTRY_BYTES + functions.map(of_function).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unnamed;

    #[test]
    fn it_is_bounded() {
        let mut cache = Cache::default();
        let function = Function {
            name: "x".repeat(1 << 20).into(),
            file: "".into(),
            line: 0,
        };
        let answer: Arc<Answer> = Arc::new(Ok([function].into()));
        for address in 0..100 {
            cache.put("file", address, Arc::clone(&answer));
            assert!(cache.get("file", address).is_some() && cache.bytes <= MAX_BYTES);
        }
        assert!(cache.get("file", 0).is_none());
        cache.put("other", 1, Arc::new(Err(Unnamed::NoSymbol)));
        let found = cache.get("other", 1).expect("it is there");
        assert_eq!(*found, Err(Unnamed::NoSymbol));
    }
}
