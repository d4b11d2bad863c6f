//! Where tasks are spawned: what Tokio itself says inside, and what the binary says.
//!
//! In: both recordings. Out: how many tasks have a place with us, and each that has not
//! the one of inside among them. Never: a text of ours that is no place.

use std::collections::BTreeSet;

use crate::{compare::Tally, read::Recording};

/// Every place of ours is the one of inside; of several, one is. A task without a place
/// is none that differs.
pub(crate) fn compare(inside: &Recording, outside: &Recording, tally: &mut Tally) {
    let mut different = BTreeSet::new();
    for (task, ours) in &outside.places {
        let Some(truth) = inside.places.get(task) else {
            continue;
        };
        let places: Vec<_> = places_of(ours).collect();
        let is_told = match places.as_slice() {
            [] => continue,
            [place] => place == truth,
            several => several.iter().any(|place| truth.ends_with(place)),
        };
        if !is_told {
            different.insert((truth, ours));
        }
        tally.placed += 1;
        tally.of_several += usize::from(places.len() > 1);
    }
    for pair in different {
        tally.differ(|| format!("a place: inside and outside {pair:?}"));
    }
}

/// The places in a label: behind the type, with bars between them.
fn places_of(label: &str) -> impl Iterator<Item = &str> {
    let places = label
        .rsplit_once(" at ")
        .map_or(label, |(_, places)| places);
    places.split(" | ").filter(|place| place.contains(".rs:"))
}
