//! What a task is called in the trace.
//!
//! In: the target's task types, in the order of the plan's vtables, and the
//! vtable words of records; the texts of panics. Out: small ids for names, so that an event carries
//! no string. Never: an empty name, a table that bad records can grow without
//! bound.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::texts::{TextId, Texts};

/// A task type of the target; its position is the vtable's index in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskType {
    /// Where its tasks are spawned, or the future's type, where known.
    pub name: Option<String>,
    /// Link-time virtual address of the vtable.
    pub address: u64,
    /// Whether its tasks are closures of the blocking pool.
    pub blocking: bool,
}

/// Index of a name in [`Locations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocationId(pub(crate) u32);

impl LocationId {
    /// Nothing but wakes or the end of the task was seen.
    pub const NOT_POLLED: Self = Self(0);
    /// The record's vtable word names no type.
    pub const UNKNOWN_TYPE: Self = Self(1);
}

/// Longest name written, bytes; the rest of a longer one is cut.
pub const MAX_NAME_BYTES: usize = 16 << 10;
/// Vtable addresses outside the plan that get a name of their own.
const MAX_STRANGERS: usize = 4096;
/// First id of the plan's types.
const FIRST_TYPE: u32 = 2;

/// Names of task types, by id.
#[derive(Debug)]
pub struct Locations {
    names: Vec<Box<str>>,
    blocking: Vec<bool>,
    by_address: HashMap<u64, LocationId, RandomState>,
    load_bias: u64,
    /// Types of the plan; ids above belong to strangers.
    types: usize,
    texts: Texts,
}

impl Locations {
    /// A table of the target's types. `load_bias` is the run-time address of
    /// the file's link-time address 0.
    ///
    /// # Panics
    ///
    /// With 2^32 types.
    pub fn new(types: &[TaskType], load_bias: u64) -> Self {
        let mut locations = Self {
            names: vec!["task:not-polled".into(), "task:unknown-type".into()],
            blocking: vec![false, false],
            by_address: HashMap::default(),
            load_bias,
            types: types.len(),
            texts: Texts::default(),
        };
        for task_type in types {
            let name = match task_type.name.as_deref() {
                Some(name) if !name.is_empty() => cut(name).into(),
                _ => unnamed(task_type.address),
            };
            let id = locations.add(name, task_type.blocking);
            locations
                .by_address
                .insert(task_type.address.wrapping_add(load_bias), id);
        }
        locations
    }

    /// The type at an index of the plan.
    #[inline]
    pub(crate) fn of_index(&self, index: u64) -> LocationId {
        match u32::try_from(index) {
            Ok(index) if (index as usize) < self.types => LocationId(index + FIRST_TYPE),
            _ => LocationId::UNKNOWN_TYPE,
        }
    }

    /// The type of a vtable at a run-time address; one outside the plan is
    /// named by its offset.
    pub(crate) fn of_address(&mut self, address: u64) -> LocationId {
        if let Some(&id) = self.by_address.get(&address) {
            return id;
        }
        if self.names.len() >= self.types + FIRST_TYPE as usize + MAX_STRANGERS {
            return LocationId::UNKNOWN_TYPE;
        }
        let id = self.add(unnamed(address.wrapping_sub(self.load_bias)), false);
        self.by_address.insert(address, id);
        id
    }

    /// Whether tasks of the type are closures of the blocking pool.
    #[inline]
    pub(crate) fn is_blocking(&self, id: LocationId) -> bool {
        self.blocking[id.0 as usize]
    }

    /// The name, never empty.
    pub fn name(&self, id: LocationId) -> &str {
        &self.names[id.0 as usize]
    }

    /// Keeps a text of a panic.
    pub(crate) fn add_text(&mut self, text: &str) -> TextId {
        self.texts.add(text)
    }

    /// The text of a panic.
    pub fn text(&self, id: TextId) -> &str {
        self.texts.get(id)
    }

    /// Number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    fn add(&mut self, name: Box<str>, blocking: bool) -> LocationId {
        let id = u32::try_from(self.names.len()).expect("fewer than 2^32 task types");
        self.names.push(name);
        self.blocking.push(blocking);
        LocationId(id)
    }
}

fn unnamed(offset: u64) -> Box<str> {
    format!("task@{offset:#x}").into()
}

fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locations() -> Locations {
        let named = TaskType {
            name: Some("app::serve".into()),
            address: 0x1000,
            blocking: false,
        };
        let unnamed = TaskType {
            name: None,
            address: 0x2000,
            blocking: true,
        };
        Locations::new(&[named, unnamed], 0x5000_0000)
    }

    #[test]
    fn an_index_and_an_address_give_the_same_type() {
        let mut locations = locations();
        for (index, address, name) in [
            (0, 0x5000_1000, "app::serve"),
            (1, 0x5000_2000, "task@0x2000"),
        ] {
            let id = locations.of_index(index);
            assert_eq!(locations.of_address(address), id);
            assert_eq!(locations.name(id), name);
        }
        assert!(locations.is_blocking(locations.of_index(1)));
    }

    #[test]
    fn a_stranger_is_named_by_its_offset_and_strangers_are_bounded() {
        let mut locations = locations();
        let id = locations.of_address(0x5000_3000);
        assert_eq!(locations.name(id), "task@0x3000");
        for address in 0..10_000 {
            locations.of_address(address);
        }
        assert_eq!(locations.len(), 4 + MAX_STRANGERS);
        assert_eq!(locations.of_address(9_999), LocationId::UNKNOWN_TYPE);
        assert_eq!(locations.of_index(2), LocationId::UNKNOWN_TYPE);
        assert_eq!(locations.of_index(u64::MAX), LocationId::UNKNOWN_TYPE);
    }

    #[test]
    fn a_name_is_never_empty_and_never_endless() {
        let long = "é".repeat(MAX_NAME_BYTES);
        let types = [
            TaskType {
                name: Some(String::new()),
                address: 16,
                blocking: false,
            },
            TaskType {
                name: Some(long),
                address: 32,
                blocking: false,
            },
        ];
        let locations = Locations::new(&types, 0);
        assert_eq!(locations.name(locations.of_index(0)), "task@0x10");
        assert_eq!(locations.name(locations.of_index(1)).len(), MAX_NAME_BYTES);
    }
}
