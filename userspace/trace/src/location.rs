//! What a task is called in the trace.
//!
//! In: the target's task types, in the order of the vtables in each object's plan,
//! and the vtable words of records; the texts of panics. Out: small ids for names, so that an event carries
//! no string. Never: an empty name, a table that bad records can grow without
//! bound.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::declared::{Declarations, Values};
use crate::texts::{TextId, Texts};

/// A task type of an object; its position is the vtable's index in the plan.
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
/// Vtable addresses outside the plans that get a name of their own.
const MAX_STRANGERS: usize = 4096;

/// Names of task types, by id.
#[derive(Debug)]
pub struct Locations {
    names: Vec<Box<str>>,
    blocking: Vec<bool>,
    /// By the object's number.
    objects: Vec<Object>,
    by_address: HashMap<(u8, u64), LocationId, RandomState>,
    strangers: usize,
    texts: Texts,
    /// Frames of the sample that is being said.
    frames: Vec<u64>,
    declarations: Declarations,
    /// Values of the declared hit that is being said: of its begin, and of its end.
    values: (Values, Values),
}

/// A file with task types of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectTypes {
    /// What tells its types without a name from those of other objects; `None` for the
    /// executable.
    pub file: Option<String>,
    /// Run-time address of the file's link-time address 0.
    pub load_bias: u64,
    /// Its types.
    pub types: Vec<TaskType>,
}

#[derive(Debug)]
struct Object {
    file: Option<String>,
    load_bias: u64,
    /// Id of its first type.
    first: u32,
    types: usize,
}

impl Object {
    fn unnamed(&self, address: u64) -> Box<str> {
        match &self.file {
            Some(file) => format!("task@{file}+{address:#x}").into(),
            None => format!("task@{address:#x}").into(),
        }
    }
}

impl Locations {
    /// A table of the types of a target's only object. `load_bias` is the run-time
    /// address of the file's link-time address 0.
    ///
    /// # Panics
    ///
    /// With 2^32 types.
    pub fn new(types: &[TaskType], load_bias: u64) -> Self {
        Self::of_objects([ObjectTypes {
            file: None,
            load_bias,
            types: types.to_vec(),
        }])
    }

    /// A table of the types of these objects, which are numbered from 0.
    ///
    /// # Panics
    ///
    /// With 2^32 types.
    pub fn of_objects(objects: impl IntoIterator<Item = ObjectTypes>) -> Self {
        let mut locations = Self {
            names: vec!["task:not-polled".into(), "task:unknown-type".into()],
            blocking: vec![false, false],
            objects: Vec::new(),
            by_address: HashMap::default(),
            strangers: 0,
            texts: Texts::default(),
            frames: Vec::new(),
            declarations: Declarations::default(),
            values: Default::default(),
        };
        for object in objects {
            locations.add_object(object);
        }
        locations
    }

    /// Takes note of what probes are declared.
    pub fn declare(&mut self, declarations: Declarations) {
        self.declarations = declarations;
    }

    pub(crate) fn declarations(&self) -> &Declarations {
        &self.declarations
    }

    /// Values of the declared hit that is being said: of its begin, and of its end.
    pub(crate) fn values(&self) -> &(Values, Values) {
        &self.values
    }

    /// Where those of the next one go.
    pub(crate) fn values_mut(&mut self) -> (&mut Values, &mut Values) {
        let (first, second) = &mut self.values;
        (first, second)
    }

    /// Adds the types of one more object, of the next number.
    ///
    /// # Panics
    ///
    /// With 2^32 types, or 2^8 objects.
    pub fn add_object(&mut self, object: ObjectTypes) {
        let ObjectTypes {
            file,
            load_bias,
            types,
        } = object;
        let number = u8::try_from(self.objects.len()).expect("fewer than 2^8 objects");
        let object = Object {
            file,
            load_bias,
            first: self.next_id(),
            types: types.len(),
        };
        for task_type in types {
            let name = match task_type.name.as_deref() {
                Some(name) if !name.is_empty() => cut(name).into(),
                _ => object.unnamed(task_type.address),
            };
            let id = self.add(name, task_type.blocking);
            let address = task_type.address.wrapping_add(load_bias);
            self.by_address.insert((number, address), id);
        }
        self.objects.push(object);
    }

    /// The type at an index of an object's plan.
    #[inline]
    pub(crate) fn of_index(&self, object: u8, index: u64) -> LocationId {
        match (self.objects.get(usize::from(object)), u32::try_from(index)) {
            (Some(object), Ok(index)) if (index as usize) < object.types => {
                LocationId(object.first + index)
            }
            _ => LocationId::UNKNOWN_TYPE,
        }
    }

    /// The type of an object's vtable at a run-time address; one outside the plan is
    /// named by its offset.
    pub(crate) fn of_address(&mut self, object: u8, address: u64) -> LocationId {
        if let Some(&id) = self.by_address.get(&(object, address)) {
            return id;
        }
        let Some(of) = self.objects.get(usize::from(object)) else {
            return LocationId::UNKNOWN_TYPE;
        };
        if self.strangers == MAX_STRANGERS {
            return LocationId::UNKNOWN_TYPE;
        }
        let name = of.unnamed(address.wrapping_sub(of.load_bias));
        let id = self.add(name, false);
        self.strangers += 1;
        self.by_address.insert((object, address), id);
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

    /// The frames of the sample that is being said, leaf first; those of the kernel are
    /// before the others.
    pub fn frames(&self) -> &[u64] {
        &self.frames
    }

    /// Where the frames of the next sample go.
    pub(crate) fn frames_mut(&mut self) -> &mut Vec<u64> {
        &mut self.frames
    }

    /// Number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    fn add(&mut self, name: Box<str>, blocking: bool) -> LocationId {
        let id = self.next_id();
        self.names.push(name);
        self.blocking.push(blocking);
        LocationId(id)
    }

    fn next_id(&self) -> u32 {
        u32::try_from(self.names.len()).expect("fewer than 2^32 task types")
    }
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
            let id = locations.of_index(0, index);
            assert_eq!(locations.of_address(0, address), id);
            assert_eq!(locations.name(id), name);
        }
        assert!(locations.is_blocking(locations.of_index(0, 1)));
    }

    #[test]
    fn objects_have_types_of_their_own_whenever_they_come() {
        let mut locations = locations();
        let stranger = locations.of_address(0, 0x5000_3000);
        let types = vec![TaskType {
            name: None,
            address: 0x1000,
            blocking: true,
        }];
        locations.add_object(ObjectTypes {
            file: Some("plugin.so".to_owned()),
            // Where the executable is, too.
            load_bias: 0x5000_0000,
            types,
        });
        let id = locations.of_index(1, 0);
        assert_eq!(locations.of_address(1, 0x5000_1000), id);
        assert_eq!(locations.name(id), "task@plugin.so+0x1000");
        assert!(locations.is_blocking(id));
        let other = locations.of_address(1, 0x5000_3000);
        assert_eq!(locations.name(other), "task@plugin.so+0x3000");
        assert_eq!(
            locations.of_address(0, 0x5000_1000),
            locations.of_index(0, 0)
        );
        assert_eq!(locations.name(stranger), "task@0x3000");
        assert_eq!(locations.of_index(1, 1), LocationId::UNKNOWN_TYPE);
        assert_eq!(locations.of_index(2, 0), LocationId::UNKNOWN_TYPE);
        assert_eq!(
            locations.of_address(2, 0x5000_1000),
            LocationId::UNKNOWN_TYPE
        );
    }

    #[test]
    fn a_stranger_is_named_by_its_offset_and_strangers_are_bounded() {
        let mut locations = locations();
        let id = locations.of_address(0, 0x5000_3000);
        assert_eq!(locations.name(id), "task@0x3000");
        for address in 0..10_000 {
            locations.of_address(0, address);
        }
        assert_eq!(locations.len(), 4 + MAX_STRANGERS);
        assert_eq!(locations.of_address(0, 9_999), LocationId::UNKNOWN_TYPE);
        assert_eq!(locations.of_index(0, 2), LocationId::UNKNOWN_TYPE);
        assert_eq!(locations.of_index(0, u64::MAX), LocationId::UNKNOWN_TYPE);
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
        assert_eq!(locations.name(locations.of_index(0, 0)), "task@0x10");
        assert_eq!(
            locations.name(locations.of_index(0, 1)).len(),
            MAX_NAME_BYTES
        );
    }
}
