//! What would be attached and what it would cost, for `attach --dry-run`.
//!
//! In: plans and the prices measured on this machine. Out: text. Never: a
//! price that was not measured here.

use std::fmt::Write as _;

use bytesize::ByteSize;
use comfy_table::{CellAlignment, Table, presets};
use dial9_bpf_abi::stack::{BURST, PACE_NS};
use dial9_bpf_attach::{Object, Prices, Runtimes, Target, profile::CPU_PROFILE};
use dial9_bpf_probes::plan::{InstructionClass, Plan, Probe, Site, TaskVtable};
use dial9_bpf_trace::metadata::{LOCAL_QUEUE, RUNTIME_METRICS};

use crate::{
    identity::UNTYPED,
    objects::{Objects, Unusable},
};

/// Poll rates that the cost is worked out for, polls a second.
const POLL_RATES: [u32; 3] = [1_000, 10_000, 100_000];
/// The instruction classes, cheapest first.
const CLASSES: [InstructionClass; 3] = [
    InstructionClass::Emulated,
    InstructionClass::EmulatedStack,
    InstructionClass::SingleStepped,
];

/// The whole report. `prices` is the reason where they could not be measured.
pub(crate) fn render(target: &Target, objects: &Objects, prices: Result<Prices, String>) -> String {
    let Objects {
        traced, unusable, ..
    } = objects;
    let mut out = String::new();
    for object in traced {
        out.push_str(&headline(target, object));
        out.push('\n');
        out.push_str(&probes_table(object.plan()));
        out.push('\n');
        out.push_str(&missing(target, object));
    }
    for Unusable { path, reason } in unusable {
        writeln!(out, "missing: {path}: {reason}\n").expect("to a string");
    }
    match prices {
        Ok(prices) => {
            out.push_str(&price_table(&prices));
            out.push('\n');
            for object in traced {
                out.push_str(&rate_table(object.plan(), &prices));
            }
        }
        Err(reason) => {
            writeln!(out, "the price of a hit was not measured: {reason}").expect("to a string");
        }
    }
    for object in traced {
        out.push('\n');
        out.push_str(&sites_table(object.plan()));
    }
    out
}

/// What the profile would take. `possible` is the reason where there can be none.
pub(crate) fn profile(hz: u32, possible: Result<(), String>) -> String {
    let mut out = match possible {
        Ok(()) => format!("\nprofile: {hz} samples a second of each thread's CPU time\n"),
        Err(reason) => format!("\nmissing: {CPU_PROFILE}: {reason}\n"),
    };
    writeln!(out, "stacks of threads that wait: {}", off_cpu_stacks()).expect("to a string");
    out
}

/// What block I/O would take. `missing` is the reason where that is not known.
pub(crate) fn block_io(missing: Result<Vec<(&str, String)>, impl Into<anyhow::Error>>) -> String {
    let mut out = String::from("\n");
    let missing = missing.unwrap_or_else(|error| vec![("block-io", format!("{:#}", error.into()))]);
    let has = |part| missing.iter().all(|(name, _)| *name != part);
    if has("block-io") {
        out.push_str(
            "block I/O: six tracepoints of the kernel, of any process's; what they add to an \
             I/O is not measured here\n",
        );
    }
    if has("block-io") && has("syncs") {
        out.push_str("files synced: two tracepoints of ext4\n");
    }
    for (name, reason) in missing {
        writeln!(out, "missing: {name}: {reason}").expect("to a string");
    }
    out
}

/// Which stacks of threads that leave their CPUs are taken.
pub(crate) fn off_cpu_stacks() -> String {
    let a_second = 1_000_000_000 / PACE_NS;
    format!("inside polls, at most {a_second} a second and CPU, {BURST} at once")
}

/// What the ring of stacks adds to the others.
pub(crate) fn of_stacks(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        _ => format!(", {} for stacks", ByteSize(bytes)),
    }
}

/// Name of an instruction class in reports.
const fn class_name(class: InstructionClass) -> &'static str {
    match class {
        InstructionClass::Emulated => "emulated",
        InstructionClass::EmulatedStack => "emulated, stack",
        InstructionClass::SingleStepped => "single-stepped",
    }
}

/// What one poll costs with its end and one wake, ns: every hit at the dearest
/// class that its probe has in the plan.
fn poll_cycle_ns(plan: &Plan, prices: &Prices) -> f64 {
    let dearest = |probe: Probe| {
        let classes = plan.sites.iter().filter(|site| site.probe == probe);
        let hits = classes.map(|site| prices.hit_ns(probe, site.class));
        hits.fold(0.0, f64::max)
    };
    dearest(Probe::PollStart)
        + dearest(Probe::PollEnd)
        + dearest(Probe::Wake) * f64::from(traps_a_wake(plan))
}

/// Breakpoints that one wake passes: where the sites are branches of a
/// compare-exchange loop, two, of which one counts.
pub(crate) fn traps_a_wake(plan: &Plan) -> u8 {
    let branches = plan
        .sites
        .iter()
        .any(|site| site.probe == Probe::Wake && site.cookie.branch.is_some());
    if branches { 2 } else { 1 }
}

fn headline(target: &Target, object: &Object) -> String {
    let plan = object.plan();
    let tokio = plan
        .tokio_version
        .as_deref()
        .unwrap_or("of unknown version");
    let symbols = if plan.has_symbols {
        "with symbols"
    } else {
        "without symbols"
    };
    let build_id = plan.build_id.as_deref().unwrap_or("none");
    let types = plan.vtables.len();
    let is_placed = |vtable: &&TaskVtable| !vtable.spawned_at.is_empty();
    let placed = plan.vtables.iter().filter(is_placed).count();
    format!(
        "process {} ({}): Tokio {tokio}, {types} task types, {placed} with the place of their spawn, \
         {symbols}, build id {build_id}\n",
        target.pid(),
        object.path().display(),
    )
}

/// What the object's trace will lack, with an empty line behind it.
fn missing(target: &Target, object: &Object) -> String {
    let plan = object.plan();
    let mut out = String::new();
    let mut miss = |name: &str, reason: &str| {
        writeln!(out, "missing: {name}: {reason}").expect("to a string");
    };
    for of in &plan.misses {
        miss(of.probe.name(), &of.reason);
    }
    if let Some(reason) = &plan.untyped {
        miss(UNTYPED, reason);
    }
    if object.is_executable() {
        let runtimes = Runtimes::of(target, plan.tokio_version.as_deref());
        if let Some(reason) = runtimes.absent() {
            miss(RUNTIME_METRICS, reason);
            miss(LOCAL_QUEUE, reason);
        }
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

fn probes_table(plan: &Plan) -> String {
    let mut table = table(&[
        "probe",
        "sites",
        "emulated",
        "emulated, stack",
        "single-stepped",
    ]);
    for probe in Probe::ALL {
        let of = |class| {
            let sites = plan.sites.iter().filter(|site| site.probe == probe);
            sites.filter(|site| site.class == class).count()
        };
        let counts = CLASSES.map(of);
        let mut row = vec![
            probe.name().to_owned(),
            counts.iter().sum::<usize>().to_string(),
        ];
        row.extend(counts.map(|count| count.to_string()));
        table.add_row(row);
    }
    align_right(&mut table, 1);
    text(&table)
}

fn price_table(prices: &Prices) -> String {
    let mut table = table(&[
        "a hit at an instruction that is",
        "ns",
        "ns with the task's id",
    ]);
    for class in CLASSES {
        table.add_row([
            class_name(class).to_owned(),
            format!("{:.0}", prices.hit_ns(Probe::PollEnd, class)),
            format!("{:.0}", prices.hit_ns(Probe::PollStart, class)),
        ]);
    }
    align_right(&mut table, 1);
    text(&table)
}

fn rate_table(plan: &Plan, prices: &Prices) -> String {
    let cycle_ns = poll_cycle_ns(plan, prices);
    let mut table = table(&["polls/s", "adds, of one core"]);
    for rate in POLL_RATES {
        let percent = f64::from(rate) * cycle_ns / 1e9 * 100.0;
        table.add_row([thousands(u64::from(rate)), format!("{percent:.2} %")]);
    }
    align_right(&mut table, 0);
    format!(
        "a poll with its end and one wake: {cycle_ns:.0} ns, measured on this machine\n{}",
        text(&table)
    )
}

fn sites_table(plan: &Plan) -> String {
    let mut table = table(&["probe", "offset", "class", "instruction", "function"]);
    for site in &plan.sites {
        let Site {
            probe,
            binary: _,
            file_offset,
            address: _,
            class,
            instruction,
            cookie: _,
            function,
            scheduler: _,
        } = site;
        table.add_row([
            probe.name(),
            &format!("{file_offset:#x}"),
            class_name(*class),
            instruction,
            function.as_deref().unwrap_or("-"),
        ]);
    }
    text(&table)
}

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

/// The table's lines, without the spaces that fill them up.
pub(crate) fn text(table: &Table) -> String {
    table.trim_fmt() + "\n"
}

/// Aligns every column from `first` on to the right.
pub(crate) fn align_right(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// A number with its thousands apart: `12,345`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{block_io, thousands};

    #[test]
    fn block_io_is_there_or_missing() {
        let text = block_io(Ok::<_, anyhow::Error>(Vec::new()));
        assert!(text.contains("block I/O: ") && text.contains("files synced: "));
        let text = block_io(Ok::<_, anyhow::Error>(vec![("syncs", "no ext4".into())]));
        assert!(text.contains("block I/O: ") && !text.contains("files synced: "));
        assert!(text.contains("missing: syncs: no ext4"));
        let text = block_io(Err(anyhow::anyhow!("it may not")));
        assert_eq!(text.trim(), "missing: block-io: it may not");
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(12_345_678), "12,345,678");
    }
}
