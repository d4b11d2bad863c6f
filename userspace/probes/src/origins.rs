//! Where tasks are spawned: the places in source code, of each task type.
//!
//! In: every function's instructions, once, and the task vtables. Out: the locations
//! that the functions which spawn a type are given, all of them or none. Never: the
//! nearest location, or one of several.
//!
//! `spawn` and its kind are `#[track_caller]`: they are given a [`Location`] for the
//! panic outside of a runtime, also in a stripped file. Tokio draws the task's id first
//! (`task/spawn.rs`: `Id::next`, an atomic addition to one word), then looks for the
//! runtime, then builds the task's cell, which has the vtable. Between the id and the
//! cell nothing but Tokio's code runs, and what is given a location there is that
//! panic, or `Handle::current` up to 1.25. So: from the instruction that loads a vtable
//! up through the callers to the function that draws the id; on its ways between the
//! two the location is a constant, or an argument of the function, which its callers
//! pass. Where the runtime is at hand, as with `Handle::spawn`, nothing can panic and
//! the compiler leaves the location out: then there is none.
//!
//! A closure of the blocking pool is built first and panics when there is no thread
//! for it (`runtime/blocking/pool.rs`), so that its location is looked for behind the
//! cell, and is taken only where it is an argument.

mod calls;
mod flow;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use iced_x86::{Code, Instruction};

use self::calls::{Calls, number_around};
use self::flow::{Between, Flow, Value};
use crate::code;
use crate::elf::Image;
use crate::locations::{self, Location};
use crate::vtables::Found;

/// More places than this are as good as none.
const MAX_LOCATIONS: usize = 8;
/// Calls between the place that spawns and the vtable.
const MAX_DEPTH: usize = 9;
/// Instructions that load a vtable; there are one to three for each.
const MAX_LOADS: usize = 1 << 18;
/// Functions with an atomic addition.
const MAX_ADDITIONS: usize = 1 << 16;
/// Steps through instructions, of all functions that are followed.
const MAX_STEPS: usize = 1 << 24;
/// Functions above one vtable that are looked at for its counter.
const MAX_ABOVE: usize = 64;
/// `Id::next` where it is a function of its own.
const MAX_NEXT_BYTES: u64 = 128;

type Places<'data> = BTreeSet<Location<'data>>;

/// Collects what spawns while it is shown the program's functions.
#[derive(Debug)]
pub(crate) struct Origins {
    calls: Calls,
    /// Addresses of the vtables, sorted.
    vtables: Vec<u64>,
    /// Places that load a vtable, and its index.
    loads: Vec<(u64, usize)>,
    /// Functions with an atomic addition.
    additions: BTreeSet<u64>,
}

impl Origins {
    pub(crate) fn new(image: &Image<'_>, found: &[Found]) -> Self {
        Self {
            calls: Calls::of(image),
            vtables: found.iter().map(|found| found.vtable.address).collect(),
            loads: Vec::new(),
            additions: BTreeSet::new(),
        }
    }

    /// Looks at one function.
    pub(crate) fn visit(
        &mut self,
        image: &Image<'_>,
        range: &Range<u64>,
        instructions: &[Instruction],
    ) {
        for (index, instruction) in instructions.iter().enumerate() {
            match instruction.code() {
                Code::Lea_r64_m | Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 => {
                    self.load(instruction);
                }
                Code::Xadd_rm64_r64
                    if flow::is_addition(instruction) && self.additions.len() < MAX_ADDITIONS =>
                {
                    self.additions.insert(range.start);
                }
                _ => {}
            }
            let next = instructions.get(index + 1);
            self.calls.visit(image, range, instruction, next);
        }
    }

    fn load(&mut self, instruction: &Instruction) {
        let Some(address) = locations::loaded_address(instruction) else {
            return;
        };
        if let Ok(vtable) = self.vtables.binary_search(&address)
            && self.loads.len() < MAX_LOADS
        {
            self.loads.push((instruction.ip(), vtable));
        }
    }

    /// Gives each vtable the places that its tasks are spawned at.
    pub(crate) fn finish(mut self, image: &Image<'_>, found: &mut [Found]) {
        if self.loads.len() >= MAX_LOADS {
            return;
        }
        self.calls.finish(image);
        let mut search = Search::new(image, &self);
        let Some(counter) = search.counter() else {
            return;
        };
        let mut places: Vec<Option<Places<'_>>> = vec![Some(Places::new()); found.len()];
        let cells = search.cells(counter, &mut places);
        for (function, cells) in cells {
            search.spawns(function, &cells, counter, found, &mut places);
        }
        for (found, places) in found.iter_mut().zip(places) {
            let places = places.unwrap_or_default();
            if places.len() <= MAX_LOCATIONS {
                found.vtable.spawned_at = places.iter().map(Location::to_string).collect();
            }
        }
    }
}

/// What the callers of a function give it.
#[derive(Clone, Debug)]
enum Given<'data> {
    /// None of them a location.
    Nothing,
    /// Each of them one of these.
    Places(Places<'data>),
    /// It is not known of all of them.
    Unknown,
}

/// A call, and what it is given.
type Call = (u64, [Value; 6]);

/// A place that draws a number, and the counter; `None` where it is not known which.
type Draw = (u64, Option<u64>);

/// The search up from the vtables.
#[derive(Debug)]
struct Search<'a, 'data> {
    image: &'a Image<'data>,
    origins: &'a Origins,
    /// Functions that are `Id::next`, and their counters.
    next: HashMap<u64, u64>,
    /// Places in a function that draw a number, by function.
    draws: HashMap<u32, Vec<Draw>>,
    /// Calls of a function that are given a constant or an argument, by function.
    sent: HashMap<u32, Vec<Call>>,
    given: HashMap<(u32, u8), Given<'data>>,
    steps: usize,
}

impl<'a, 'data> Search<'a, 'data> {
    fn new(image: &'a Image<'data>, origins: &'a Origins) -> Self {
        let mut search = Self {
            image,
            origins,
            next: HashMap::new(),
            draws: HashMap::new(),
            sent: HashMap::new(),
            given: HashMap::new(),
            steps: 0,
        };
        for &function in &origins.additions {
            if let Some(counter) = search.counter_of_next(function) {
                search.next.insert(function, counter);
            }
        }
        search
    }

    fn decode(&mut self, function: u32) -> Vec<Instruction> {
        let mut instructions = Vec::new();
        let range = self.image.functions().get(function as usize);
        if let Some(range) = range.filter(|_| self.steps < MAX_STEPS) {
            code::decode(self.image, range, &mut instructions);
            self.steps += instructions.len();
        }
        instructions
    }

    fn flow<'b>(&mut self, instructions: &'b [Instruction]) -> Option<Flow<'b, 'data>>
    where
        'a: 'b,
    {
        let (image, calls) = (self.image, &self.origins.calls);
        let flow = Flow::through(image, instructions, |call| calls.diverges(image, call))?;
        self.steps += flow.steps;
        Some(flow)
    }

    /// The counter of a function that does nothing but draw a number.
    fn counter_of_next(&mut self, function: u64) -> Option<u64> {
        let function = calls::number(self.image, function)?;
        let range = self.image.functions().get(function as usize)?;
        if range.end - range.start > MAX_NEXT_BYTES {
            return None;
        }
        let instructions = self.decode(function);
        let calls = |it: &Instruction| it.is_call_near() || it.is_call_near_indirect();
        if instructions.iter().any(calls) {
            return None;
        }
        match self.additions(&instructions)[..] {
            [(_, counter)] => counter,
            _ => None,
        }
    }

    /// Where a function draws numbers, and from which counters.
    fn draws(&mut self, function: u32) -> &[Draw] {
        if !self.draws.contains_key(&function) {
            let instructions = self.decode(function);
            let called = |instruction: &Instruction| {
                let target = code::direct_target(self.image, instruction)?;
                Some((instruction.ip(), Some(*self.next.get(&target)?)))
            };
            let mut draws: Vec<_> = instructions.iter().filter_map(called).collect();
            draws.extend(self.additions(&instructions));
            draws.sort_unstable();
            self.draws.insert(function, draws);
        }
        &self.draws[&function]
    }

    /// Tokio's ids start at one (`runtime/task/id.rs`).
    fn additions(&mut self, instructions: &[Instruction]) -> Vec<Draw> {
        let mut additions: Vec<Draw> = Vec::new();
        if !instructions.iter().any(flow::is_addition) {
            return additions;
        }
        match self.flow(instructions) {
            Some(flow) => flow.each_addition(|place, counter| additions.push((place, counter))),
            None => additions.push((instructions[0].ip(), None)),
        }
        let starts_at_one = |counter| self.image.word(counter) == Some(1);
        additions.retain(|addition| addition.1.is_none_or(starts_at_one));
        additions
    }

    /// The word that Tokio draws ids from: above most vtables it is what is drawn from
    /// first. `None` if another is as often.
    fn counter(&mut self) -> Option<u64> {
        let mut loads: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for &(place, vtable) in &self.origins.loads {
            loads.entry(vtable).or_default().push(place);
        }
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        for places in loads.into_values() {
            for counter in self.first_counters(places) {
                *votes.entry(counter).or_default() += 1;
            }
        }
        let most = votes.values().copied().max()?;
        let mut first = votes.into_iter().filter(|vote| vote.1 == most);
        let (counter, _) = first.next()?;
        first.next().is_none().then_some(counter)
    }

    fn first_counters(&mut self, mut places: Vec<u64>) -> BTreeSet<u64> {
        let mut seen = BTreeSet::new();
        for _ in 0..MAX_DEPTH {
            let mut counters = BTreeSet::new();
            let mut above = Vec::new();
            for place in places {
                let function = number_around(self.image, place);
                let Some(function) = function.filter(|_| seen.len() < MAX_ABOVE) else {
                    continue;
                };
                if seen.insert(function) {
                    counters.extend(self.draws(function).iter().filter_map(|draw| draw.1));
                    above.extend(self.origins.calls.callers(function).into_iter().flatten());
                }
            }
            if !counters.is_empty() || above.is_empty() {
                return counters;
            }
            places = above;
        }
        BTreeSet::new()
    }

    /// For each function that draws ids, the instructions that build a cell or call
    /// what builds one, with the vtable. A vtable with a cell that is built otherwise
    /// has no places.
    fn cells(
        &mut self,
        counter: u64,
        places: &mut [Option<Places<'data>>],
    ) -> BTreeMap<u32, Vec<(u64, usize)>> {
        let mut cells: BTreeMap<u32, Vec<(u64, usize)>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let loads = self.origins.loads.iter();
        let mut queue: Vec<_> = loads.map(|&(place, vtable)| (place, vtable, 0)).collect();
        while let Some((place, vtable, depth)) = queue.pop() {
            if !seen.insert((place, vtable)) {
                continue;
            }
            let function = number_around(self.image, place);
            let function = function.filter(|_| depth < MAX_DEPTH && seen.len() < MAX_LOADS);
            let Some(function) = function else {
                places[vtable] = None;
                continue;
            };
            let draws = self.draws(function);
            let is_drawn = draws.iter().any(|draw| draw.1 == Some(counter));
            let is_unclear = draws.iter().any(|draw| draw.1.is_none());
            if is_drawn {
                cells.entry(function).or_default().push((place, vtable));
                continue;
            }
            match self.origins.calls.callers(function) {
                Some(callers) if !is_unclear => {
                    queue.extend(callers.map(|caller| (caller, vtable, depth + 1)));
                }
                _ => places[vtable] = None,
            }
        }
        cells
    }

    /// Adds the places of the tasks whose ids a function draws.
    fn spawns(
        &mut self,
        function: u32,
        cells: &[(u64, usize)],
        counter: u64,
        found: &[Found],
        places: &mut [Option<Places<'data>>],
    ) {
        let all = self.draws(function).to_vec();
        let draws = all.iter().filter(|draw| draw.1 == Some(counter));
        let draws: Vec<_> = draws.map(|draw| draw.0).collect();
        let all = all.iter().map(|draw| draw.0);
        let mut ends: Vec<_> = all.chain(cells.iter().map(|cell| cell.0)).collect();
        ends.sort_unstable();
        let instructions = self.decode(function);
        let Some(flow) = self.flow(&instructions) else {
            for &(_, vtable) in cells {
                places[vtable] = None;
            }
            return;
        };
        let before: Vec<_> = draws
            .iter()
            .map(|&draw| flow.between(draw, &ends))
            .collect();
        for &(place, vtable) in cells {
            let of_cell = if found[vtable].vtable.blocking {
                vec![self.behind(function, &flow.between(place, &draws))]
            } else {
                let before = before.iter().filter(|it| it.reached.contains(&place));
                before
                    .map(|between| self.of_way(function, between))
                    .collect()
            };
            let known = of_cell.into_iter().reduce(Location::union).flatten();
            let all = places[vtable].take();
            places[vtable] = Location::union(all, known);
        }
    }

    /// The places of a task that is built at the end of these ways.
    fn of_way(&mut self, function: u32, between: &Between) -> Option<Places<'data>> {
        let places = self.users(&between.locations);
        let arguments = match between.last_arguments {
            0 => between.arguments,
            last => last,
        };
        match self.given(function, arguments, 0) {
            _ if between.is_lost => None,
            Given::Places(given) => Some(places.into_iter().chain(given).collect()),
            Given::Unknown if between.last_arguments != 0 => None,
            Given::Nothing | Given::Unknown => (!places.is_empty()).then_some(places),
        }
    }

    /// The places of a closure, by what may happen once it is built.
    fn behind(&mut self, function: u32, between: &Between) -> Option<Places<'data>> {
        let is_alone = self.users(&between.locations).is_empty() && !between.is_lost;
        match self.given(function, between.last_arguments, 0) {
            Given::Places(places) if is_alone => Some(places),
            _ => None,
        }
    }

    fn users(&self, locations: &[u64]) -> Places<'data> {
        let locations = locations
            .iter()
            .filter_map(|&it| Location::at(self.image, it));
        locations
            .filter(|location| !location.is_of_runtime())
            .collect()
    }

    /// What the callers of a function give it in these arguments.
    fn given(&mut self, function: u32, arguments: u8, depth: usize) -> Given<'data> {
        let key = (function, arguments);
        if arguments == 0 {
            return Given::Nothing;
        }
        if let Some(given) = self.given.get(&key) {
            return given.clone();
        }
        // A function that calls itself asks for what is not known yet.
        self.given.insert(key, Given::Unknown);
        let callers = self.origins.calls.callers(function);
        let callers: Vec<_> = callers.into_iter().flatten().collect();
        let is_lost = callers.is_empty() || depth >= MAX_DEPTH;
        let mut all = is_lost.then_some(Given::Unknown);
        for place in callers {
            if matches!(all, Some(Given::Unknown)) {
                break;
            }
            let given = self.given_at(place, arguments, depth);
            all = Some(match (all, given) {
                (None, given) => given,
                (Some(Given::Nothing), Given::Nothing) => Given::Nothing,
                (Some(Given::Places(one)), Given::Places(other)) => {
                    Given::Places(one.into_iter().chain(other).collect())
                }
                _ => Given::Unknown,
            });
        }
        let given = all.unwrap_or(Given::Unknown);
        self.given.insert(key, given.clone());
        given
    }

    fn given_at(&mut self, place: u64, arguments: u8, depth: usize) -> Given<'data> {
        let Some(caller) = number_around(self.image, place) else {
            return Given::Unknown;
        };
        let sent = self.sent(caller);
        let Ok(index) = sent.binary_search_by_key(&place, |call| call.0) else {
            return Given::Nothing;
        };
        let values = sent[index].1;
        let (mut locations, mut own) = (Places::new(), 0);
        for (number, value) in (0..).zip(values) {
            match value {
                _ if arguments >> number & 1 == 0 => {}
                Value::Constant(address) => locations.extend(Location::at(self.image, address)),
                Value::Argument(argument) => own |= 1 << argument,
                Value::Unknown => {}
            }
        }
        let is_of_runtime = locations.iter().any(Location::is_of_runtime);
        match locations.len() {
            0 => self.given(caller, own, depth + 1),
            1 if !is_of_runtime => Given::Places(locations),
            _ => Given::Unknown,
        }
    }

    /// The calls of a function that are given a constant or an argument, by place.
    fn sent(&mut self, function: u32) -> &[Call] {
        if !self.sent.contains_key(&function) {
            let instructions = self.decode(function);
            let mut sent = Vec::new();
            if let Some(flow) = self.flow(&instructions) {
                flow.each_call(|call, values| {
                    if values.iter().any(|value| *value != Value::Unknown) {
                        sent.push((call.ip(), values));
                    }
                });
            }
            self.sent.insert(function, sent);
        }
        &self.sent[&function]
    }
}

#[cfg(test)]
mod tests;
