//! The maps of a target's programs, by name.
//!
//! In: what the loader made, or what a predecessor kept. Out: maps. Never: a
//! difference between the two.

use std::collections::BTreeMap;

use aya::{Ebpf, maps::Map};

use crate::AttachError;

/// Maps by their names in the object, those of sections without the dot.
#[derive(Debug, Default)]
pub(crate) struct Maps(BTreeMap<String, Map>);

impl Maps {
    /// Those of a loaded object.
    pub(crate) fn of(ebpf: &mut Ebpf) -> Self {
        let names: Vec<String> = ebpf.maps().map(|(name, _)| name.to_owned()).collect();
        let maps = names.iter().filter_map(|name| {
            let map = ebpf.take_map(name)?;
            Some((name.trim_start_matches('.').to_owned(), map))
        });
        Self(maps.collect())
    }

    /// Takes one more.
    pub(crate) fn insert(&mut self, name: String, map: Map) {
        self.0.insert(name, map);
    }

    /// # Errors
    /// [`AttachError::Object`] when there is none of this name.
    pub(crate) fn get(&self, name: &str) -> Result<&Map, AttachError> {
        self.0.get(name).ok_or_else(|| absent(name))
    }

    /// # Errors
    /// As [`Maps::get`].
    pub(crate) fn get_mut(&mut self, name: &str) -> Result<&mut Map, AttachError> {
        self.0.get_mut(name).ok_or_else(|| absent(name))
    }

    /// Takes one out.
    ///
    /// # Errors
    /// As [`Maps::get`].
    pub(crate) fn take(&mut self, name: &str) -> Result<Map, AttachError> {
        self.0.remove(name).ok_or_else(|| absent(name))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Map)> {
        self.0.iter().map(|(name, map)| (name.as_str(), map))
    }
}

/// The object lacks something.
pub(crate) fn absent(name: &str) -> AttachError {
    AttachError::Object {
        reason: format!("no {name}"),
    }
}
