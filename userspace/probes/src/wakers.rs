//! Wakes: the functions of the one waker vtable that all tasks share.
//!
//! In: tables of four code pointers. Out: for `wake` and `wake_by_ref` a set of
//! sites of which every call hits exactly one, also a call that finds the task
//! notified already. Never: wakers of other kinds.
//!
//! `runtime/task/waker.rs`: the data pointer of the waker is the task header.
//! Its `clone` returns the table's own address and adds `REF_ONE`, 64, to the
//! state word; the tables of `Arc` wakers add 1 elsewhere. Without optimization both are
//! done by functions that it calls.

use std::ops::Range;

use dial9_bpf_abi::cookie::{Cookie, Register};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};

use crate::code;
use crate::cut;
use crate::elf::Image;
use crate::entry;
use crate::graph;
use crate::inlined::InlinedWakes;
use crate::names;
use crate::plan::{Miss, Probe, Site};
use crate::unoptimized;

/// `runtime/task/waker.rs`.
const PATH: &str = "tokio::runtime::task::waker::";
const WORD: u64 = 8;
/// Slots of `core::task::RawWakerVTable`: clone, wake, `wake_by_ref`, drop.
const SLOTS: usize = 4;
/// `REF_ONE` in `runtime/task/state.rs`.
const ONE_REFERENCE: u32 = 64;
/// How much of `clone` is looked at, bytes.
const MAX_CLONE_BYTES: usize = 160;
/// The longest `clone` that leaves adding to another function, bytes.
const MAX_CALLING_BYTES: u64 = 64;

/// Adds the sites for wakes.
pub(crate) fn find(
    image: &Image<'_>,
    id_offset: u16,
    inlined: &InlinedWakes,
    sites: &mut Vec<Site>,
    misses: &mut Vec<Miss>,
) {
    let cookie = Cookie {
        id_offset,
        ..Cookie::EMPTY
    };
    let found = wake_sites(image, cookie);
    let reason = match found {
        Ok((functions, found)) => {
            sites.extend(found);
            let (copies, uncounted) = inlined.sites(image, &functions, cookie);
            sites.extend(copies);
            if uncounted == 0 {
                return;
            }
            format!("{uncounted} wakes that the compiler has inlined cannot be counted")
        }
        Err(reason) => reason,
    };
    misses.push(Miss {
        probe: Probe::Wake,
        reason,
    });
}

/// The waker's two functions, and their sites.
fn wake_sites(image: &Image<'_>, cookie: Cookie) -> Result<([u64; 2], Vec<Site>), String> {
    let (wake, by_ref) = functions(image)?;
    let mut found = function_sites(image, "wake_by_ref", by_ref, cookie)?;
    if wake == by_ref || jumps_to(image, wake, by_ref) {
        return Ok(([wake, by_ref], found));
    }
    if mentions(image, wake, by_ref) || mentions(image, by_ref, wake) {
        return Err(format!(
            "wake at {wake:#x} and wake_by_ref at {by_ref:#x} share code"
        ));
    }
    found.extend(function_sites(image, "wake", wake, cookie)?);
    Ok(([wake, by_ref], found))
}

/// The addresses of `wake` and `wake_by_ref`.
fn functions(image: &Image<'_>) -> Result<(u64, u64), String> {
    let tables = tables(image);
    let &[table] = tables.as_slice() else {
        let count = tables.len();
        return named(image)
            .filter(|_| count == 0)
            .ok_or_else(|| format!("{count} tables look like the task waker's, not 1"));
    };
    let slot = |slot: u64| {
        let address = table.wrapping_add(slot * WORD);
        let function = image.pointer(address);
        function.ok_or_else(|| format!("no function at {address:#x}"))
    };
    Ok((slot(1)?, slot(2)?))
}

/// The same by their symbols, where no `clone` has a known shape.
fn named(image: &Image<'_>) -> Option<(u64, u64)> {
    let only = |function: &str| {
        let is_it = |name: &str| name.strip_prefix(PATH) == Some(function);
        let found = names::functions(image, "waker", is_it)?;
        found.first().copied().filter(|_| found.len() == 1)
    };
    Some((only("wake_by_val")?, only("wake_by_ref")?))
}

/// Addresses of the tables with the shape of the task waker's.
fn tables(image: &Image<'_>) -> Vec<u64> {
    let is_run = |run: &&[(u64, u64)]| run[SLOTS - 1].0.wrapping_sub(run[0].0) == 3 * WORD;
    image
        .code_pointers()
        .windows(SLOTS)
        .filter(is_run)
        .map(|run| run[0])
        .filter(|&(table, clone)| is_clone(image, table, clone))
        .map(|(table, _)| table)
        .collect()
}

/// Whether the function at `clone` clones wakers with the vtable `table`: it
/// takes the table's address, and it or a function that it calls adds the
/// reference.
fn is_clone(image: &Image<'_>, table: u64, clone: u64) -> bool {
    const LOCK: u8 = 0xf0;
    let has_lock = image
        .bytes(clone, MAX_CLONE_BYTES)
        .is_some_and(|code| code.contains(&LOCK));
    let Some(range) = image.function_at(clone).filter(|range| {
        let is_short = range.end - range.start <= MAX_CALLING_BYTES;
        (has_lock || is_short) && range.start == clone
    }) else {
        return false;
    };
    let body = first_instructions(image, &range);
    let takes_table = body
        .iter()
        .any(|instruction| names(image, instruction, table));
    if takes_table {
        adds_reference(&body) || calls_adder(image, &body)
    } else {
        is_unoptimized_clone(image, table, &body)
    }
}

/// Whether the function calls one that takes the table's address, `raw_waker`, and one
/// that hands the reference to `fetch_add`, `State::ref_inc`.
fn is_unoptimized_clone(image: &Image<'_>, table: u64, body: &[Instruction]) -> bool {
    let callees: Vec<_> = called(image, body)
        .filter_map(|function| {
            let range = image.function_at(function)?;
            (range.start == function).then(|| first_instructions(image, &range))
        })
        .collect();
    let takes_table = |callee: &Vec<Instruction>| {
        callee
            .iter()
            .any(|instruction| names(image, instruction, table))
    };
    let adds_reference = |callee: &Vec<Instruction>| {
        let mut given = unoptimized::given(image, callee, ONE_REFERENCE);
        given.any(|adds| {
            let range = image.function_at(adds);
            range.is_some_and(|range| {
                let adder = first_instructions(image, &range);
                range.start == adds && unoptimized::is_fetch_add(&adder)
            })
        })
    };
    callees.iter().any(takes_table) && callees.iter().any(adds_reference)
}

/// The functions that are called directly, or from a register that was loaded from the
/// pointer table just before.
fn called<'code>(
    image: &'code Image<'_>,
    body: &'code [Instruction],
) -> impl Iterator<Item = u64> + 'code {
    body.iter().enumerate().filter_map(|(index, call)| {
        if call.flow_control() == FlowControl::IndirectCall && call.op0_kind() == OpKind::Register {
            let load = &body[index.checked_sub(1)?];
            let is_load = load.code() == Code::Mov_r64_rm64
                && load.op0_register() == call.op0_register()
                && load.is_ip_rel_memory_operand();
            return image.pointer(is_load.then(|| load.ip_rel_memory_address())?);
        }
        let is_call = matches!(
            call.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        );
        is_call.then(|| code::direct_target(image, call)).flatten()
    })
}

fn first_instructions(image: &Image<'_>, range: &Range<u64>) -> Vec<Instruction> {
    let end = range
        .end
        .min(range.start.saturating_add(MAX_CLONE_BYTES as u64));
    let mut body = Vec::new();
    code::decode(image, &(range.start..end), &mut body);
    body
}

/// Whether it calls `State::ref_inc`, compiled on its own.
fn calls_adder(image: &Image<'_>, body: &[Instruction]) -> bool {
    let calls = body
        .iter()
        .filter(|instruction| instruction.flow_control() == FlowControl::Call);
    let mut called = calls.filter_map(code::near_target);
    called.any(|function| {
        let range = image.function_at(function);
        let range = range.filter(|range| range.start == function);
        range.is_some_and(|range| adds_reference(&first_instructions(image, &range)))
    })
}

/// Whether an instruction takes the address `table`.
fn names(image: &Image<'_>, instruction: &Instruction, table: u64) -> bool {
    let is_relative = instruction.is_ip_rel_memory_operand();
    match instruction.mnemonic() {
        Mnemonic::Lea => is_relative && instruction.ip_rel_memory_address() == table,
        Mnemonic::Mov if is_relative => {
            image.pointer(instruction.ip_rel_memory_address()) == Some(table)
        }
        Mnemonic::Mov => immediate(instruction) == Some(table),
        _ => false,
    }
}

/// Whether the code adds one reference to a word atomically.
fn adds_reference(body: &[Instruction]) -> bool {
    let is_amount = |instruction: &Instruction| {
        matches!(
            instruction.mnemonic(),
            Mnemonic::Mov | Mnemonic::Add | Mnemonic::Push
        ) && immediate(instruction) == Some(ONE_REFERENCE.into())
    };
    body.iter().any(is_amount)
        && body.iter().any(|instruction| {
            instruction.has_lock_prefix()
                && matches!(instruction.mnemonic(), Mnemonic::Xadd | Mnemonic::Add)
        })
}

fn immediate(instruction: &Instruction) -> Option<u64> {
    let operand = instruction.op_count().checked_sub(1)?;
    let is_immediate = matches!(
        instruction.op_kind(operand),
        OpKind::Immediate8
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    );
    is_immediate.then(|| instruction.immediate(operand))
}

/// Sites of which every call of the function at `address` hits one.
fn function_sites(
    image: &Image<'_>,
    name: &str,
    address: u64,
    cookie: Cookie,
) -> Result<Vec<Site>, String> {
    cut_sites(image, address, cookie)
        .or_else(|| entry_site(image, address, cookie))
        .ok_or_else(|| {
            format!("no set of instructions of {name} at {address:#x} counts each call once")
        })
}

fn cut_sites(image: &Image<'_>, address: u64, cookie: Cookie) -> Option<Vec<Site>> {
    let range = image
        .function_at(address)
        .filter(|range| range.start == address)?;
    let mut instructions = Vec::new();
    if !code::decode(image, &range, &mut instructions) {
        return None;
    }
    let graph = graph::build(&instructions)?;
    let views = cut::views(image, &instructions, &graph, Register::RDI);
    cut::find(&graph, &views)?
        .into_iter()
        .map(
            |cut::Crossing {
                 node,
                 header,
                 branch,
             }| {
                code::site(
                    image,
                    Probe::Wake,
                    &instructions[node],
                    Cookie {
                        header,
                        branch,
                        ..cookie
                    },
                )
            },
        )
        .collect()
}

fn entry_site(image: &Image<'_>, address: u64, cookie: Cookie) -> Option<Vec<Site>> {
    let entry = entry::find(image, address, Register::RDI)?;
    let cookie = Cookie {
        header: entry.header,
        ..cookie
    };
    Some(vec![code::site(
        image,
        Probe::Wake,
        &entry.instruction,
        cookie,
    )?])
}

/// Whether the function at `from` does nothing but jump to `to`.
fn jumps_to(image: &Image<'_>, from: u64, to: u64) -> bool {
    let mut instructions = Vec::new();
    image.function_at(from).is_some_and(|range| {
        code::decode(image, &(from..range.end), &mut instructions);
        let first = instructions.first();
        first.is_some_and(|first| {
            first.flow_control() == FlowControl::UnconditionalBranch
                && code::near_target(first) == Some(to)
        })
    })
}

/// Whether the function at `from` calls or jumps to `to`.
fn mentions(image: &Image<'_>, from: u64, to: u64) -> bool {
    let mut instructions = Vec::new();
    image.function_at(from).is_some_and(|range| {
        code::decode(image, &range, &mut instructions);
        instructions
            .iter()
            .any(|instruction| code::direct_target(image, instruction) == Some(to))
    })
}
