//! What a hit reads: numbers first, then what they point to.

use aya_ebpf::{
    helpers::generated::{bpf_probe_read_user, bpf_probe_read_user_str},
    programs::ProbeContext,
};
use core::ffi::c_void;
use dial9_bpf_abi::declared::{
    BYTES, CONSTANT, DeclaredScratch, Definition, MAX_BYTES, MAX_READS, MAX_STEPS, MAX_VALUE_BYTES,
    NO_LENGTH, NO_REGISTER, NUMBER, Read, THREAD,
};

use super::words::{load_word, store_word};

/// The registers by their numbers in instruction encoding.
#[inline(always)]
pub fn note_registers(ctx: &ProbeContext, tid: u32, scratch: &mut DeclaredScratch) {
    macro_rules! note {
        ($($number:literal $field:ident),*) => {
            $(
                // SAFETY: a field of the program's own context.
                scratch.registers[$number] =
                    unsafe { core::ptr::read_volatile(&raw const (*ctx.regs).$field) };
            )*
        };
    }
    note!(0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi, 7 rdi);
    note!(8 r8, 9 r9, 10 r10, 11 r11, 12 r12, 13 r13, 14 r14, 15 r15);
    scratch.registers[THREAD as usize] = tid.into();
    scratch.registers[NO_REGISTER as usize] = 0;
}

/// Reads numbers, addresses and lengths.
#[inline(never)]
pub fn numbers(definition: &Definition, scratch: &mut DeclaredScratch) {
    store_word(&mut scratch.present, 0);
    store_word(&mut scratch.used, 0);
    for at in 0..MAX_READS {
        if at >= definition.read_count as usize {
            break;
        }
        if number(
            &definition.reads[at],
            &scratch.registers,
            &mut scratch.numbers[at],
        ) {
            let present = load_word(&scratch.present) | 1 << at;
            store_word(&mut scratch.present, present);
        }
    }
}

/// Reads one of them; false where it cannot be read, and then it is 0. This and others are
/// functions of their own since a function may have little on its stack
/// (`xtask/src/object/stack.rs`).
#[inline(never)]
fn number(read: &Read, registers: &[u64; 32], value: &mut u64) -> bool {
    let base = if read.register == CONSTANT {
        read.constant
    } else {
        registers[read.register as usize & 31]
    };
    let index = registers[read.index as usize & 31] << (read.shift & 3);
    store_word(value, base.wrapping_add(index));
    for step in 0..MAX_STEPS {
        if step >= read.steps as usize {
            break;
        }
        let address = load_word(value).wrapping_add(read.offsets[step] as i64 as u64);
        if !load(value, address, read.sizes[step]) {
            return false;
        }
    }
    let steps = read.steps as usize;
    if steps > MAX_STEPS {
        return false;
    }
    let sum = load_word(value).wrapping_add(read.offsets[steps] as i64 as u64);
    let is_number = read.what == NUMBER;
    let size = if is_number { read.size } else { 8 };
    store_word(value, narrowed(sum, size, read.is_signed != 0));
    true
}

/// Puts so many bytes at an address in place of the word; false where they cannot be read,
/// and then it is 0.
#[inline(always)]
fn load(word: &mut u64, address: u64, size: u8) -> bool {
    store_word(word, 0);
    let size = u32::from(size & 15);
    if size > 8 {
        return false;
    }
    // SAFETY: at most the eight bytes of the word; the helper checks the source.
    unsafe {
        bpf_probe_read_user(
            core::ptr::from_mut(word).cast(),
            size,
            address as *const c_void,
        ) == 0
    }
}

#[inline(always)]
fn narrowed(value: u64, size: u8, is_signed: bool) -> u64 {
    match (size, is_signed) {
        (1, false) => value as u8 as u64,
        (1, true) => value as i8 as i64 as u64,
        (2, false) => value as u16 as u64,
        (2, true) => value as i16 as i64 as u64,
        (4, false) => value as u32 as u64,
        (4, true) => value as i32 as i64 as u64,
        _ => value,
    }
}

/// Reads what is no number.
#[inline(never)]
pub fn bytes(definition: &Definition, scratch: &mut DeclaredScratch) {
    for at in 0..MAX_READS {
        if at >= definition.read_count as usize {
            break;
        }
        let read = &definition.reads[at];
        if read.what == NUMBER || load_word(&scratch.present) & (1 << at) == 0 {
            continue;
        }
        let used = load_word(&scratch.used);
        store_word(&mut scratch.starts[at], used);
        let address = load_word(&scratch.numbers[at]);
        let got = copied(read, address, scratch);
        if got < 0 {
            store_word(&mut scratch.numbers[at], 0);
            let present = load_word(&scratch.present) & !(1 << at);
            store_word(&mut scratch.present, present);
        } else {
            store_word(&mut scratch.numbers[at], got as u64);
            let used = load_word(&scratch.used) + got as u64;
            store_word(&mut scratch.used, used);
        }
    }
}

/// Copies one value behind the others; returns its bytes, or something negative where it
/// cannot be read.
#[inline(never)]
fn copied(read: &Read, address: u64, scratch: &mut DeclaredScratch) -> i64 {
    let mut length = u64::from(read.max);
    if read.length != NO_LENGTH {
        let of = read.length as usize & (MAX_READS - 1);
        if load_word(&scratch.present) & (1 << of) == 0 {
            return -1;
        }
        let actual = load_word(&scratch.numbers[of]);
        if actual < length {
            length = actual;
        }
    }
    let used = load_word(&scratch.used);
    if length > u64::from(MAX_VALUE_BYTES) || used > MAX_BYTES as u64 {
        return -1;
    }
    // SAFETY: the scratch has room for all bytes and one value more.
    let to: *mut c_void = unsafe { scratch.bytes.as_mut_ptr().add(used as usize).cast() };
    let from = address as *const c_void;
    if read.what == BYTES {
        // SAFETY: as above; the helper checks the source.
        let status = unsafe { bpf_probe_read_user(to, length as u32, from) };
        return if status == 0 { length as i64 } else { -1 };
    }
    // SAFETY: the same. The zero byte counts, and is not taken.
    let got = unsafe { bpf_probe_read_user_str(to, length as u32 + 1, from) };
    if got <= 0 || got > i64::from(MAX_VALUE_BYTES) + 1 {
        return -1;
    }
    got - 1
}
